//! CustomResourceDefinitions; the rules are in [`crate::crd`].

use berth_apimachinery::field::Error;
use berth_apimachinery::meta;
use serde_json::{Value, json};

use super::{Context, Strategy};
use crate::crd::{self, definition};

pub(crate) struct Definitions;

impl Strategy for Definitions {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        definition::default(object);
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        let metadata = meta::metadata_mut(object);
        let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
        if let Some(finalizers) = finalizers.as_array_mut()
            && !finalizers.iter().any(|finalizer| finalizer == definition::FINALIZER)
        {
            finalizers.push(definition::FINALIZER.into());
        }
        let now = context.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        definition::set_status(object, Some(context.registry), &now);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        // Names that were accepted stay; what is added (short names, categories) is accepted too, and the storage
        // version joins the stored ones.
        let since = old["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
        if definition::is_accepted(old) {
            definition::set_status(new, None, &since);
        }
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        crd::validate(object)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        crd::validate_update(new, old)
    }
}
