//! Cache of generated OpenAPI documents.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;

/// Cache of the documents of one state of the registry. A document that is being generated delays
/// only requests of the same document.
#[derive(Clone, Debug, Default)]
pub struct Cache(Arc<Mutex<BTreeMap<String, Arc<OnceLock<Document>>>>>);

/// A generated document.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) content: Bytes,
    pub(super) hash: String,
}

impl Cache {
    /// The document under `key`; generated on first use.
    pub(super) fn get(&self, key: &str, make: impl FnOnce() -> Vec<u8>) -> Document {
        let place = self.0.lock().entry(key.to_owned()).or_default().clone();
        let document = place.get_or_init(|| {
            let content = make();
            Document { hash: hash(&[&content]), content: Bytes::from(content) }
        });
        document.clone()
    }
}

/// SHA-256 of the parts and their lengths, in upper-case hexadecimal digits.
pub(super) fn hash(parts: &[&[u8]]) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    context.finish().as_ref().iter().map(|byte| format!("{byte:02X}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_can_be_read_while_another_one_is_generated() {
        let cache = Cache::default();
        let outer = cache.get("v2", || cache.get("v3", || b"of a group".to_vec()).content.to_vec());
        assert_eq!(outer.content, "of a group");
        let cached = cache.get("v3", || unreachable!("it was generated already"));
        assert_eq!(cached.hash, outer.hash);
    }
}
