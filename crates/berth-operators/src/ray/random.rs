//! Deterministic numbers: hashes of lists of words. With the UID of an object among the words, the
//! numbers differ between objects and between seeds, because the API server draws UIDs from its
//! seed. The random ends of names are made by [`super::names::suffix`].

use sha1::{Digest, Sha1};

/// A number for a list of words.
pub fn number(words: &[&str]) -> u64 {
    let mut digest = Sha1::new();
    for word in words {
        digest.update(word.as_bytes());
        digest.update([0]);
    }
    digest.finalize().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_depends_on_all_words_and_their_order() {
        assert_eq!(number(&["run", "u1"]), number(&["run", "u1"]));
        assert_ne!(number(&["run", "u1"]), number(&["u1", "run"]));
        assert_ne!(number(&["run", "u1"]), number(&["runu1"]));
    }
}
