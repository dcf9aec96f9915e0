//! Cache of generated OpenAPI documents.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Cache of the documents of one state of the registry.
#[derive(Clone, Debug, Default)]
pub struct Cache(Arc<Mutex<BTreeMap<String, Document>>>);

/// A generated document.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) content: Bytes,
    pub(super) hash: String,
}

impl Cache {
    /// The document under `key`; generated on first use.
    pub(super) fn get(&self, key: &str, make: impl FnOnce() -> Vec<u8>) -> Document {
        let mut documents = self.0.lock();
        if let Some(document) = documents.get(key) {
            return document.clone();
        }
        let content = make();
        let document = Document { hash: hash(&[&content]), content: Bytes::from(content) };
        documents.insert(key.to_owned(), document.clone());
        document
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
