//! Random parts of objects: uids and suffixes of generated names.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A UUID of a version and of RFC 9562's variant. The bits of both are replaced in `bits`.
pub(crate) fn uuid(version: u128, bits: u128) -> String {
    let bits = (bits & !(0xf << 76) & !(0x3 << 62)) | (version << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// A version 4 UUID.
pub(crate) fn random(generator: &mut SmallRng) -> String {
    uuid(0x4, generator.random())
}

/// Uids of objects, in ascending order: version 7 UUIDs (RFC 9562, section 6.2, method 2).
/// Creation timestamps have whole seconds, and queues order the workloads of one second by their
/// uids. So with these uids, the workloads of one second have the order of their creation.
#[derive(Debug)]
pub(crate) struct Uids {
    random: SmallRng,
    /// Time of the last uid, in milliseconds since 1970.
    time: u64,
    /// The lower bits of the last uid.
    tail: u128,
}

impl Uids {
    /// Number of bits besides the time, the version and the variant.
    const TAIL_BITS: u32 = 74;

    /// Uids from a seeded generator.
    pub(crate) fn new(seed: u64) -> Uids {
        Uids { random: SmallRng::seed_from_u64(seed), time: 0, tail: 0 }
    }

    /// The next uid. If the clock did not advance, it has the time of the last one.
    pub(crate) fn next(&mut self, now: jiff::Timestamp) -> String {
        let now = u64::try_from(now.as_millisecond()).unwrap_or_default();
        let next = self.tail + 1 + u128::from(self.random.random::<u32>());
        if now > self.time || next >> Self::TAIL_BITS != 0 {
            self.time = now.max(self.time + 1);
            self.tail = self.random.random::<u128>() >> (u128::BITS - Self::TAIL_BITS);
        } else {
            self.tail = next;
        }
        let (high, low) = (self.tail >> 62, self.tail & (u128::MAX >> 66));
        uuid(0x7, (u128::from(self.time) << 80) | (high << 64) | low)
    }
}

/// Five random characters for generated names: no vowels and no look-alikes, as upstream.
pub(crate) fn suffix(generator: &mut SmallRng) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    (0..5).map(|_| char::from(ALPHABET[generator.random_range(0..ALPHABET.len())])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> jiff::Timestamp {
        jiff::Timestamp::from_millisecond(milliseconds).expect("a time")
    }

    #[test]
    fn uids_ascend_within_a_millisecond_and_when_the_clock_goes_back() {
        let mut uids = Uids::new(7);
        let times = [1_000, 1_000, 1_000, 2_000, 1_500, 1_500, 2_000, 3_000];
        let made: Vec<String> = times.map(|time| uids.next(at(time))).into();
        assert!(made.is_sorted_by(|a, b| a < b), "{made:#?}");
        assert_eq!(made, {
            let mut again = Uids::new(7);
            times.map(|time| again.next(at(time))).to_vec()
        });
    }

    #[test]
    fn a_uid_has_the_time_the_version_and_the_variant() {
        let uid = Uids::new(1).next(at(0x0123_4567_89ab));
        assert!(uid.starts_with("01234567-89ab-7"), "{uid}");
        assert!(matches!(uid.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{uid}");
    }

    #[test]
    fn used_up_random_bits_continue_in_the_next_millisecond() {
        let mut uids = Uids::new(1);
        let first = uids.next(at(5));
        uids.tail = (1 << Uids::TAIL_BITS) - 1;
        let second = uids.next(at(5));
        assert!(first < second && second.starts_with("00000000-0006-7"), "{first} {second}");
    }
}
