//! Caches authorization checks, so that a request makes each check once.

use std::cell::RefCell;

use berth_apimachinery::selector::{FieldSelector, LabelSelector};

use crate::authorization::{Attributes, Authorizer, Verdict};

/// An authorizer that caches verdicts for the duration of one request.
pub struct CachingAuthorizer<'a> {
    authorizer: &'a dyn Authorizer,
    known: RefCell<Vec<(Attributes, Verdict)>>,
}

impl<'a> CachingAuthorizer<'a> {
    /// Adds a cache to an authorizer.
    pub fn new(authorizer: &'a dyn Authorizer) -> Self {
        CachingAuthorizer { authorizer, known: RefCell::new(Vec::new()) }
    }
}

impl Authorizer for CachingAuthorizer<'_> {
    fn authorize(&self, attributes: &Attributes) -> Verdict {
        let key = key(attributes);
        if let Some((_, verdict)) = self.known.borrow().iter().find(|(known, _)| *known == key) {
            return verdict.clone();
        }
        let verdict = self.authorizer.authorize(attributes);
        self.known.borrow_mut().push((key, verdict.clone()));
        verdict
    }
}

/// The cache key of a check: groups are sorted and selectors that cannot be parsed are dropped, so
/// that equal checks have equal keys.
fn key(attributes: &Attributes) -> Attributes {
    let mut key = attributes.clone();
    if let Some(user) = &mut key.user {
        user.groups.sort();
    }
    key.field_selector = key.field_selector.filter(|selector| FieldSelector::parse(selector).is_ok());
    key.label_selector = key.label_selector.filter(|selector| LabelSelector::parse(selector).is_ok());
    key
}
