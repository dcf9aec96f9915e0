//! Distributes pods over the units of one level.
//!
//! Documented choices, where Sakkara's KEP leaves them open:
//! - `pack` uses as few units as possible. If one unit can take all pods, the one with the least
//!   capacity is taken ("fullest fitting first"). Otherwise units are filled, the one with the most
//!   capacity first; the rest goes to the unit with the least capacity that takes it.
//! - `spread` uses as many units as possible, and the largest part is as small as possible, then
//!   the smallest part as large as possible. Larger parts go to units with more capacity ("least
//!   used first").
//! - `partitions` uses exactly that many units, with parts as for `spread`. With `pack`, units with
//!   the least capacity are taken first; with `spread`, those with the most.
//! - Equal units are taken in the order of the tree: by name, nodes that the tree does not list
//!   last.

use super::constraints::{Constraint, Shape};
use super::counts::{Bits, Counts, add_row, rows};

/// Maximum number of words of the tables of one distribution, 32 MiB. A level that needs more is
/// distributed without regard to the number of used units.
const TABLE_WORDS_MAX: usize = 1 << 22;

/// The number of pods of each unit, with the sum `size`; `None` if there is no such distribution.
/// `capacity` is the number of pods that each unit could take if it were used alone.
pub fn distribute(sets: &[&Counts], capacity: &[usize], constraint: &Constraint, size: usize) -> Option<Vec<usize>> {
    let plain: Option<Vec<usize>> = sets
        .iter()
        .map(|set| match set {
            Counts::UpTo(most) => Some(*most),
            Counts::Some(_) => None,
        })
        .collect();
    match plain.filter(|_| constraint.partitions.is_none()) {
        Some(most) if most.iter().fold(0_usize, |sum, it| sum.saturating_add(*it)) < size => None,
        Some(most) if constraint.shape == Shape::Pack => Some(pack(&most, capacity, size)),
        Some(most) => Some(spread(&most, capacity, size)),
        None => by_tables(sets, capacity, constraint, size),
    }
}

fn pack(most: &[usize], capacity: &[usize], size: usize) -> Vec<usize> {
    let mut counts = vec![0; most.len()];
    let mut left = size;
    while left > 0 {
        let free = (0..most.len()).filter(|unit| counts[*unit] == 0 && most[*unit] > 0);
        let fitting = free.clone().filter(|unit| most[*unit] >= left).min_by_key(|unit| (capacity[*unit], *unit));
        let Some(unit) = fitting.or_else(|| free.min_by_key(|unit| (usize::MAX - most[*unit], capacity[*unit], *unit)))
        else {
            break;
        };
        counts[unit] = most[unit].min(left);
        left -= counts[unit];
    }
    counts
}

fn spread(most: &[usize], capacity: &[usize], size: usize) -> Vec<usize> {
    let filled = |height: usize| most.iter().map(|most| (*most).min(height)).sum::<usize>();
    // The largest height to which all units can be filled.
    let (mut low, mut high) = (0, size);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if filled(middle) <= size { low = middle } else { high = middle - 1 }
    }
    let mut counts: Vec<usize> = most.iter().map(|most| (*most).min(low)).collect();
    let mut left = size - filled(low);
    let mut higher: Vec<usize> = (0..most.len()).filter(|unit| most[*unit] > low).collect();
    higher.sort_by_key(|unit| (usize::MAX - capacity[*unit], *unit));
    for unit in higher {
        if left == 0 {
            break;
        }
        counts[unit] += 1;
        left -= 1;
    }
    counts
}

/// The sets reduced to 0 and the numbers from `least` to `most`.
fn within(sets: &[&Counts], least: usize, most: usize, size: usize) -> Vec<Counts> {
    let bounds = Constraint { min: Some(least), max: Some(most), ..Constraint::default() };
    sets.iter().map(|set| (*set).clone().restricted(&bounds, size)).collect()
}

fn is_reachable(sets: &[Counts], used: usize, size: usize) -> bool {
    let sets: Vec<&Counts> = sets.iter().collect();
    rows(&sets, used, size)[used].contains(size)
}

fn by_tables(sets: &[&Counts], capacity: &[usize], constraint: &Constraint, size: usize) -> Option<Vec<usize>> {
    if size == 0 {
        return Some(vec![0; sets.len()]);
    }
    let usable: Vec<usize> = (0..sets.len()).filter(|unit| sets[*unit].most(size) > 0).collect();
    let usable_sets: Vec<&Counts> = usable.iter().map(|unit| sets[*unit]).collect();
    let words = Bits::none(size).words();
    let used_max = usable.len().min(size);
    let affordable = (TABLE_WORDS_MAX / (words * (usable.len() + 1))).saturating_sub(1).min(used_max);
    let used = match constraint.partitions {
        Some(partitions) if partitions > affordable => return None,
        Some(partitions) => Some(partitions),
        None => {
            let reachable = rows(&usable_sets, affordable, size);
            let mut counts = (1..=affordable).filter(|used| reachable[*used].contains(size));
            if constraint.shape == Shape::Pack { counts.next() } else { counts.next_back() }
        }
    };
    let is_even = constraint.shape == Shape::Spread || constraint.partitions.is_some();
    let (least, most) = match used {
        Some(used) if is_even => even_bounds(&usable_sets, used, size)?,
        _ => (1, size),
    };
    let bounded = within(&usable_sets, least, most, size);
    // Few large parts for `pack` over several units, and larger parts for units with more capacity.
    let most_capacity_first = constraint.shape == Shape::Spread || constraint.partitions.is_none() && used != Some(1);
    let mut order: Vec<usize> = (0..usable.len()).collect();
    order.sort_by_key(|at| {
        let capacity = capacity[usable[*at]];
        (if most_capacity_first { usize::MAX - capacity } else { capacity }, *at)
    });
    let ordered: Vec<&Counts> = order.iter().map(|at| &bounded[*at]).collect();
    let chosen = choose(&ordered, used, size)?;
    let mut counts = vec![0; sets.len()];
    for (at, count) in order.iter().zip(chosen) {
        counts[usable[*at]] = count;
    }
    Some(counts)
}

/// The smallest largest part, and with it the largest smallest part, of `used` parts.
fn even_bounds(sets: &[&Counts], used: usize, size: usize) -> Option<(usize, usize)> {
    if !is_reachable(&within(sets, 1, size, size), used, size) {
        return None;
    }
    let (mut low, mut most) = (size.div_ceil(used), size);
    while low < most {
        let middle = low + (most - low) / 2;
        if is_reachable(&within(sets, 1, middle, size), used, size) { most = middle } else { low = middle + 1 }
    }
    let (mut least, mut high) = (1, size / used);
    while least < high {
        let middle = least + (high - least).div_ceil(2);
        if is_reachable(&within(sets, middle, most, size), used, size) { least = middle } else { high = middle - 1 }
    }
    Some((least, most))
}

/// Takes the largest possible number of each set in turn, with the sum `size` and exactly `used`
/// positive numbers (any number of them if `None`).
fn choose(sets: &[&Counts], used: Option<usize>, size: usize) -> Option<Vec<usize>> {
    // Row `at` has the sums of the sets from `at` on.
    let mut suffixes = Vec::with_capacity(sets.len() + 1);
    let mut last = vec![Bits::none(size); used.map_or(1, |used| used + 1)];
    last[0].insert(0);
    suffixes.push(last);
    for set in sets.iter().rev() {
        let mut next = suffixes.last().expect("the row of the empty suffix was pushed").clone();
        match used {
            Some(_) => add_row(&mut next, set, size),
            None => {
                let before = next[0].clone();
                for number in set.positive(size) {
                    next[0].add_shifted(&before, number);
                }
            }
        }
        suffixes.push(next);
    }
    suffixes.reverse();
    let (mut left, mut parts) = (size, used.unwrap_or(0));
    if !suffixes[0][parts].contains(left) {
        return None;
    }
    let mut counts = Vec::with_capacity(sets.len());
    for (at, set) in sets.iter().enumerate() {
        let can_follow = |count: &usize| match used {
            Some(_) => parts > 0 && suffixes[at + 1][parts - 1].contains(left - count),
            None => suffixes[at + 1][0].contains(left - count),
        };
        let count = set.positive(left).rev().find(can_follow).unwrap_or(0);
        if count > 0 && used.is_some() {
            parts -= 1;
        }
        left -= count;
        counts.push(count);
    }
    Some(counts)
}
