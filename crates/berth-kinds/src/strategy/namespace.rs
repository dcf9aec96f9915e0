//! Namespaces: the label with their name, the finalizer in their specification, and their phase.

use berth_apimachinery::validation::NameCheck;
use berth_apimachinery::{meta, names};
use serde_json::{Value, json};

use super::{Context, Strategy, spec_mut};

/// Label of every namespace with its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

pub(crate) struct Namespaces;

impl Strategy for Namespaces {
    fn name_check(&self) -> NameCheck {
        names::is_dns1123_label
    }

    fn default(&self, namespace: &mut Value) {
        let name = meta::name(namespace).to_owned();
        if !name.is_empty() {
            meta::set_label(namespace, NAME_LABEL, &name);
        }
    }

    fn prepare_create(&self, namespace: &mut Value, _context: &Context<'_>) {
        let finalizers = spec_mut(namespace).entry("finalizers").or_insert_with(|| json!([]));
        if let Some(finalizers) = finalizers.as_array_mut()
            && !finalizers.iter().any(|finalizer| finalizer == "kubernetes")
        {
            finalizers.push("kubernetes".into());
        }
        meta::map_mut(namespace).insert("status".to_owned(), json!({"phase": "Active"}));
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, _context: &Context<'_>) {
        // Only the subresource `finalize` changes the finalizers in the specification.
        meta::map_mut(new).insert("spec".to_owned(), old["spec"].clone());
    }

    fn prepare_delete(&self, namespace: &mut Value) {
        namespace["status"]["phase"] = "Terminating".into();
    }

    fn is_deletion_pending(&self, namespace: &Value) -> bool {
        namespace["spec"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty())
    }
}
