//! Many texts that are like each other, in little memory: each as what it shares with one that was seen before.
//!
//! Objects of one kind are written by the same few programs: two workloads of a cluster differ in names, times and
//! identifiers, and nothing else of their text says anything new. A [`Condenser`] keeps some texts as references, and of
//! every other text what has to be copied from a reference and what has to be put between the copies. Reading one back is
//! a few copies. There is no format to agree on: nothing condensed leaves the process.

use std::sync::Arc;

/// References a condenser tries.
const REFERENCES_MAX: usize = 4;
/// The shortest part worth copying: shorter ones take no less to describe.
const COPY_MIN: usize = 8;
/// Longest reference, so that places in it are small numbers.
const REFERENCE_MAX: usize = u16::MAX as usize;

/// Condenses texts of one kind.
#[derive(Debug, Default)]
pub struct Condenser {
    /// The one that was of use last comes first.
    references: Vec<Reference>,
}

/// A text and where its parts are: for the hash of each [`COPY_MIN`] bytes a place they may begin at, plus one.
#[derive(Debug)]
struct Reference {
    text: Arc<[u8]>,
    places: Box<[u16]>,
}

/// A condensed text.
#[derive(Clone, Debug)]
pub struct Condensed {
    reference: Arc<[u8]>,
    /// Repeated: the length of what is new, what is new, the length of what is copied then, and from where.
    steps: Box<[u8]>,
    length: usize,
}

impl Condenser {
    /// Condenses a text. One that is like none of the references becomes a reference, in the place of the one that has been
    /// of no use for longest.
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
    /// The text as it was.
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

    /// How long the text is.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Is the text empty?
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl Reference {
    fn new(text: &[u8]) -> Self {
        let size = text.len().saturating_mul(2).next_power_of_two().clamp(256, 1 << 15);
        let mut places = vec![0; size].into_boxed_slice();
        for (at, part) in text.windows(COPY_MIN).enumerate() {
            // Texts are no longer than what fits.
            places[slot(part, size)] = at as u16 + 1;
        }
        Self { text: Arc::from(text), places }
    }

    /// What makes `text` from this one, unless that takes more than `most` bytes: then the search ends as soon as it is clear.
    fn steps_to(&self, text: &[u8], most: usize) -> Option<Vec<u8>> {
        let mut steps = Vec::with_capacity(text.len() / 4);
        let (mut done, mut at) = (0, 0);
        // Where the last copy ended, in the reference: what differs is mostly as long in both.
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
    // The upper bits are the mixed ones.
    (hash >> 40) as usize & (size - 1)
}

/// Seven bits a byte, the lowest first.
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
    fn texts_like_each_other_take_little_and_come_back() {
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
    fn kinds_of_texts_that_take_turns_have_a_reference_each() {
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
    fn nothing_and_very_much_come_back() {
        let mut condenser = Condenser::default();
        let long: Vec<u8> = (0..100_000u32).flat_map(|number| number.to_le_bytes()).collect();
        for text in [&[][..], b"x", &long, &long[..REFERENCE_MAX], &long] {
            assert_eq!(condenser.condense(text).text(), text);
        }
    }

    #[test]
    fn whatever_is_condensed_comes_back() {
        let mut condenser = Condenser::default();
        let mut state = 1u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..5_000 {
            // Few letters make many matches, of all lengths.
            let (length, letters) = (draw(200), 1 + draw(4));
            let text: Vec<u8> = (0..length).map(|_| b'a' + draw(letters) as u8).collect();
            assert_eq!(condenser.condense(&text).text(), text);
        }
    }
}
