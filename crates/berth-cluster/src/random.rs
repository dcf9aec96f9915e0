//! Deterministic pseudo-random values: a hash of the seed and of a description. No generator state
//! has to survive a restart.

use sha2::{Digest, Sha256};

/// A 64-bit hash of a list of words.
pub fn hash(words: &[&str]) -> u64 {
    let mut digest = Sha256::new();
    for word in words {
        digest.update(word.as_bytes());
        digest.update([0]);
    }
    let bytes = digest.finalize();
    u64::from_be_bytes(bytes[..8].try_into().expect("a SHA-256 digest has more than 8 bytes"))
}

/// A pseudo-random number for a seed and a list of words.
pub fn draw(seed: u64, words: &[&str]) -> u64 {
    let seed = seed.to_string();
    let mut all = vec![seed.as_str()];
    all.extend(words);
    hash(&all)
}

/// A pseudo-random name suffix of `length` characters from Kubernetes' alphabet, which avoids
/// characters that form words or look alike.
pub fn suffix(seed: u64, words: &[&str], length: usize) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut number = draw(seed, words);
    (0..length)
        .map(|_| {
            let letter = ALPHABET[(number % ALPHABET.len() as u64) as usize];
            number /= ALPHABET.len() as u64;
            char::from(letter)
        })
        .collect()
}
