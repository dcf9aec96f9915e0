//! A short run of every target: its seeds, what was found before, and random inputs around them.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Random inputs per target; `BERTH_FUZZ_CASES` says how many otherwise.
const CASES: usize = 3_000;

/// What random inputs follow from: other ones each time, unless `BERTH_FUZZ_SEED` names those of an earlier run.
fn seed() -> u64 {
    let named = std::env::var("BERTH_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
    named.unwrap_or_else(|| RandomState::new().hash_one(0))
}

fn files(folder: &str, target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(target);
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a file")).collect()
}

/// A seed with some bytes changed, taken out or doubled.
fn changed(seed: &[u8], random: &mut SmallRng) -> Vec<u8> {
    let mut input = seed.to_vec();
    for _ in 0..random.random_range(1..6) {
        let at = random.random_range(0..=input.len());
        match random.random_range(0..4) {
            0 => input.insert(at, random.random()),
            1 if at < input.len() => input[at] = random.random(),
            2 if at < input.len() => drop(input.remove(at)),
            _ => {
                let part = input[at..(at + random.random_range(0..8)).min(input.len())].to_vec();
                input.splice(at..at, part);
            }
        }
    }
    input
}

fn run(name: &str) {
    let (_, target) = berth_fuzz::TARGETS.iter().find(|(known, _)| *known == name).expect("a target");
    let cases = std::env::var("BERTH_FUZZ_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(CASES);
    let seeds = files("seeds", name);
    assert!(!seeds.is_empty(), "no seeds for {name}");
    files("findings", name).iter().chain(&seeds).for_each(|input| target(input));
    let from = seed();
    println!("{name}: BERTH_FUZZ_SEED={from} makes the same inputs again");
    let mut random = SmallRng::seed_from_u64(from);
    for case in 0..cases {
        let input = if case % 2 == 0 {
            changed(&seeds[random.random_range(0..seeds.len())], &mut random)
        } else {
            (0..random.random_range(0..200)).map(|_| random.random()).collect()
        };
        if let Err(panic) = std::panic::catch_unwind(|| target(&input)) {
            eprintln!("{name}, case {case}: {:?}", String::from_utf8_lossy(&input));
            eprintln!("bytes: {input:?}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn patches_do_not_panic() {
    run("patches");
}

#[test]
fn selectors_do_not_panic() {
    run("selectors");
}

#[test]
fn quantities_do_not_panic() {
    run("quantities");
}

#[test]
fn expressions_do_not_panic() {
    run("expressions");
}

#[test]
fn schemas_do_not_panic() {
    run("schemas");
}

#[test]
fn requests_are_answered() {
    run("http");
}
