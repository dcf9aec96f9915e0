//! A short run of every fuzz target: seeds, earlier findings, mutated seeds and random bytes.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Number of random inputs per target, unless `BERTH_FUZZ_CASES` is set.
const CASES: usize = 3_000;

/// Seed of the random inputs: `BERTH_FUZZ_SEED` repeats those of an earlier run, otherwise random.
fn random_seed() -> u64 {
    let given = std::env::var("BERTH_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| RandomState::new().hash_one(0))
}

/// Contents of the files of a target, in name order. Empty if the folder does not exist.
fn files(folder: &str, target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(target);
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("the file is readable")).collect()
}

/// A seed with some bytes inserted, changed, removed or repeated.
fn mutated(seed: &[u8], random: &mut SmallRng) -> Vec<u8> {
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
    let (_, target) = berth_fuzz::TARGETS.iter().find(|(other, _)| *other == name).expect("the target exists");
    let cases = std::env::var("BERTH_FUZZ_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(CASES);
    let seeds = files("seeds", name);
    assert!(!seeds.is_empty(), "fuzz/seeds/{name} is empty");
    files("findings", name).iter().chain(&seeds).for_each(|input| target(input));
    let seed = random_seed();
    println!("{name}: set BERTH_FUZZ_SEED={seed} to repeat these inputs");
    let mut random = SmallRng::seed_from_u64(seed);
    for case in 0..cases {
        let input = if case % 2 == 0 {
            mutated(&seeds[random.random_range(0..seeds.len())], &mut random)
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
fn requests_get_a_response_other_than_500() {
    run("http");
}
