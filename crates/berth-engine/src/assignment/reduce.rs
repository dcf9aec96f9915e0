//! Partial admission: the largest number of pods that can be served (§12).

/// Searches for the smallest reduction that `serves` accepts.
///
/// Pod sets shrink together, each in proportion to the pods it can do without. The search is a
/// binary search over the total reduction, so `serves` is assumed to be monotone. A result that
/// contradicts this is discarded.
pub(crate) fn search<T>(
    counts: &[(i32, Option<i32>)],
    mut serves: impl FnMut(&[i32]) -> Option<T>,
) -> Option<(Vec<i32>, T)> {
    let deltas: Vec<i64> =
        counts.iter().map(|(count, least)| least.map_or(0, |least| i64::from((*count - least).max(0)))).collect();
    let total: i64 = deltas.iter().sum();
    if total == 0 {
        return None;
    }
    let reduced = |index: i64| -> Vec<i32> {
        counts
            .iter()
            .zip(&deltas)
            .map(|((count, _), delta)| count - i32::try_from(delta * index / total).unwrap_or(0))
            .collect()
    };
    let mut best: Option<(i64, Vec<i32>, T)> = None;
    let (mut low, mut high) = (0, total + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        let candidate = reduced(middle);
        match serves(&candidate) {
            Some(found) => {
                best = Some((middle, candidate, found));
                high = middle;
            }
            None => low = middle + 1,
        }
    }
    best.filter(|(index, ..)| *index == low).map(|(_, counts, found)| (counts, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_reduction_that_fits_is_found() {
        let limit = |limit: i32| move |counts: &[i32]| (counts.iter().sum::<i32>() <= limit).then_some(());
        assert_eq!(search(&[(10, Some(5))], limit(7)).map(|(counts, ())| counts), Some(vec![7]));
        assert_eq!(search(&[(10, Some(5))], limit(4)).map(|(counts, ())| counts), None);
        assert_eq!(search(&[(10, None)], limit(4)).map(|(counts, ())| counts), None);
    }

    #[test]
    fn pod_sets_shrink_in_proportion_to_their_spare_pods() {
        let found = search(&[(10, Some(0)), (20, Some(10)), (5, None)], |counts| {
            (counts.iter().sum::<i32>() <= 25).then_some(())
        });
        assert_eq!(found.map(|(counts, ())| counts), Some(vec![5, 15, 5]));
    }
}
