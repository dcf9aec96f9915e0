//! Deterministic names and numbers: a hash of words. The UID of an object, which the API server
//! draws from its seed, makes them differ between objects and runs.

use sha1::{Digest, Sha1};

/// Kubernetes' alphabet of generated names: without characters that form words or look alike.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Length of a suffix.
const LENGTH: usize = 5;

/// A number for a list of words.
pub fn number(words: &[&str]) -> u64 {
    let mut digest = Sha1::new();
    for word in words {
        digest.update(word.as_bytes());
        digest.update([0]);
    }
    let digest = digest.finalize();
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A name suffix of five characters for a list of words.
pub fn suffix(words: &[&str]) -> String {
    let mut number = number(words);
    let mut letter = || {
        let letter = ALPHABET[usize::try_from(number % ALPHABET.len() as u64).unwrap_or(0)];
        number /= ALPHABET.len() as u64;
        char::from(letter)
    };
    (0..LENGTH).map(|_| letter()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suffix_depends_on_all_words_and_their_order() {
        let first = suffix(&["u1", "7", "cluster"]);
        assert_eq!(first, suffix(&["u1", "7", "cluster"]));
        assert_eq!(first.len(), LENGTH);
        assert_ne!(first, suffix(&["u1", "8", "cluster"]));
        assert_ne!(first, suffix(&["7", "u1", "cluster"]));
        assert_ne!(first, suffix(&["u17", "cluster"]));
    }
}
