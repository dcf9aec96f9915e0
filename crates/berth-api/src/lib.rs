//! The vocabulary: types of the API groups Berth serves or consumes, their CRDs, labels, annotations, conditions and reasons.
