//! CustomResourceDefinitions; the rules are in [`crate::crd`].

use berth_apimachinery::field::Error;
use berth_apimachinery::meta;
use serde_json::{Value, json};

use super::{Context, Strategy};
use crate::crd::features::{self, Features};
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
        features::drop_disabled(object, None, Features::SERVED);
        set_status(object, context);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, context: &Context<'_>) {
        features::drop_disabled(new, Some(old), Features::SERVED);
        set_status(new, context);
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        crd::validate(object)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        crd::validate_update(new, old)
    }

    fn validate_status_update(&self, new: &Value, _old: &Value) -> Vec<Error> {
        crd::validate::validate_status_update(new)
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        crd::warnings::unknown_formats(new, old)
    }
}

fn set_status(object: &mut Value, context: &Context<'_>) {
    let taken = context.objects.names_in_the_way(object).with_builtin(object, context.registry);
    let now = context.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    definition::set_status(object, &taken, &now);
}
