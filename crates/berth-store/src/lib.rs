//! Revisions, watch history and compaction behind one small trait.
