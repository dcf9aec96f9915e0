//! Compression of many similar texts: each is stored as its difference from a reference text.
//!
//! A few programs write the objects of one kind: two workloads of a cluster differ mostly in names,
//! times and identifiers. A [`Condenser`] keeps some texts as references. Every other text is
//! stored as a sequence of ranges to copy from a reference and bytes to insert between them.
//! Reading a text back takes a few copies. The format is private to the process.

use std::sync::Arc;

/// Maximum number of references of a condenser.
const REFERENCES_MAX: usize = 4;
/// Minimum length of a copied range; the description of a shorter one takes as much space.
const COPY_MIN: usize = 8;
/// Maximum length of a reference, so that positions fit in two bytes.
const REFERENCE_MAX: usize = u16::MAX as usize;

/// Condenses texts of one kind.
#[derive(Debug, Default)]
pub struct Condenser {
    /// Ordered by last use, the most recent first.
    references: Vec<Reference>,
}

/// A text and the positions of its parts: for the hash of each [`COPY_MIN`] bytes a position where
/// they may begin, plus one.
#[derive(Debug)]
struct Reference {
    text: Arc<[u8]>,
    places: Box<[u16]>,
}

/// A condensed text.
#[derive(Clone, Debug)]
pub struct Condensed {
    reference: Arc<[u8]>,
    /// Repeated groups of: length of the new bytes, the new bytes, length of the copy, position of
    /// the copy.
    steps: Box<[u8]>,
    length: usize,
}

impl Condenser {
    /// Condenses a text. A text that resembles no reference replaces the least recently used
    /// reference, unless it is too long.
    pub fn condense(&mut self, text: &[u8]) -> Condensed {
        for at in 0..self.references.len() {
            if let Some(steps) = self.references[at].steps_to(text, text.len() / 2) {
                self.references[..=at].rotate_right(1);
                let (reference, steps) = (self.references[0].text.clone(), steps.into_boxed_slice());
                return Condensed { reference, steps, length: text.len() };
            }
        }
        if text.len() > REFERENCE_MAX {
            let mut steps = Vec::with_capacity(text.len() + 8);
            put_number(&mut steps, text.len());
            steps.extend_from_slice(text);
            return Condensed { reference: Arc::from([]), steps: steps.into_boxed_slice(), length: text.len() };
        }
        let reference = Reference::new(text);
        let steps = reference.steps_to(text, usize::MAX).unwrap_or_default().into_boxed_slice();
        let condensed = Condensed { reference: reference.text.clone(), steps, length: text.len() };
        self.references.truncate(REFERENCES_MAX - 1);
        self.references.insert(0, reference);
        condensed
    }
}

impl Condensed {
    /// The original text.
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.length);
        let mut steps = &self.steps[..];
        while !steps.is_empty() {
            let length = take_number(&mut steps);
            let (new, rest) = steps.split_at(length);
            text.extend_from_slice(new);
            steps = rest;
            if !steps.is_empty() {
                let length = take_number(&mut steps);
                let from = take_number(&mut steps);
                text.extend_from_slice(&self.reference[from..from + length]);
            }
        }
        text
    }

    /// Length of the original text, in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if the original text is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl Reference {
    fn new(text: &[u8]) -> Self {
        let size = text.len().saturating_mul(2).next_power_of_two().clamp(256, 1 << 15);
        let mut places = vec![0; size].into_boxed_slice();
        for (at, part) in text.windows(COPY_MIN).enumerate() {
            // A reference is short enough for its positions to fit.
            places[slot(part, size)] = at as u16 + 1;
        }
        Self { text: Arc::from(text), places }
    }

    /// The steps that build `text` from this reference. `None` as soon as they exceed `most` bytes.
    fn steps_to(&self, text: &[u8], most: usize) -> Option<Vec<u8>> {
        let mut steps = Vec::with_capacity(text.len() / 4);
        let (mut done, mut at) = (0, 0);
        // End of the last copy in the reference: differing parts usually have the same length in
        // both.
        let mut resume = 0;
        while at + COPY_MIN <= text.len() {
            let part = &text[at..at + COPY_MIN];
            let aligned = resume + (at - done);
            let listed = usize::from(self.places[slot(part, self.places.len())]);
            let places = [Some(aligned), listed.checked_sub(1)];
            let found =
                places.into_iter().flatten().find(|place| self.text.get(*place..*place + COPY_MIN) == Some(part));
            let Some(place) = found else {
                at += 1;
                if steps.len() + (at - done) > most {
                    return None;
                }
                continue;
            };
            let before = text[done..at].iter().rev().zip(self.text[..place].iter().rev());
            let before = before.take_while(|(new, known)| new == known).count();
            let after = text[at..].iter().zip(&self.text[place..]).take_while(|(new, known)| new == known).count();
            put_number(&mut steps, at - before - done);
            steps.extend_from_slice(&text[done..at - before]);
            put_number(&mut steps, before + after);
            put_number(&mut steps, place - before);
            at += after;
            done = at;
            resume = place + after;
        }
        if done < text.len() {
            put_number(&mut steps, text.len() - done);
            steps.extend_from_slice(&text[done..]);
        }
        (steps.len() <= most).then_some(steps)
    }
}

fn slot(part: &[u8], size: usize) -> usize {
    let bytes = part.try_into().expect("a part has as many bytes as a number");
    let hash = u64::from_le_bytes(bytes).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    // The multiplication mixes the upper bits best.
    (hash >> 40) as usize & (size - 1)
}

/// Appends a number in groups of seven bits, the lowest first.
fn put_number(steps: &mut Vec<u8>, mut number: usize) {
    while number > 0x7f {
        steps.push(number as u8 | 0x80);
        number >>= 7;
    }
    steps.push(number as u8);
}

fn take_number(steps: &mut &[u8]) -> usize {
    let (mut number, mut shift) = (0, 0);
    while let Some((byte, rest)) = steps.split_first() {
        *steps = rest;
        number |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(number: usize) -> String {
        let labels = "\"kueue.x-k8s.io/queue-name\":\"team\",\"app\":\"training\"";
        format!(
            "{{\"metadata\":{{\"name\":\"job-{number}\",\"uid\":\"{:032x}\",\"labels\":{{{labels}}}}},\"spec\":{{\"podSets\":[\
             {{\"name\":\"main\",\"count\":1,\"template\":{{\"spec\":{{\"containers\":[{{\"name\":\"c\",\"image\":\"i\"}}]}}}}}}]}}}}",
            number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
        )
    }

    #[test]
    fn similar_texts_are_small_and_restored() {
        let mut condenser = Condenser::default();
        let all: Vec<(String, Condensed)> =
            (0..100).map(workload).map(|text| (text.clone(), condenser.condense(text.as_bytes()))).collect();
        let plain: usize = all.iter().map(|(text, _)| text.len()).sum();
        let steps: usize = all.iter().map(|(_, condensed)| condensed.steps.len()).sum();
        assert!(steps * 4 < plain, "{steps} of {plain} bytes");
        assert_eq!(condenser.references.len(), 1);
        for (text, condensed) in &all {
            assert_eq!(condensed.text(), text.as_bytes());
        }
    }

    #[test]
    fn alternating_kinds_of_text_have_one_reference_each() {
        let mut condenser = Condenser::default();
        for round in 0..10 {
            for letter in ["a", "b", "c"] {
                let text = format!("{} {round}", (0..100).map(|n| format!("{letter}{n}")).collect::<String>());
                assert_eq!(condenser.condense(text.as_bytes()).text(), text.as_bytes());
            }
        }
        assert_eq!(condenser.references.len(), 3);
    }

    #[test]
    fn empty_and_large_texts_are_restored() {
        let mut condenser = Condenser::default();
        let long: Vec<u8> = (0..100_000u32).flat_map(|number| number.to_le_bytes()).collect();
        for text in [&[][..], b"x", &long, &long[..REFERENCE_MAX], &long] {
            assert_eq!(condenser.condense(text).text(), text);
        }
    }

    #[test]
    fn every_condensed_text_is_restored() {
        let mut condenser = Condenser::default();
        let mut state = 1u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..5_000 {
            // A small alphabet produces many matches of all lengths.
            let (length, letters) = (draw(200), 1 + draw(4));
            let text: Vec<u8> = (0..length).map(|_| b'a' + draw(letters) as u8).collect();
            assert_eq!(condenser.condense(&text).text(), text);
        }
    }
}
