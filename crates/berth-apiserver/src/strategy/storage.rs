//! Volumes and what provides them: defaults, and what of drivers stays. Nobody binds claims here; they wait as in a cluster without a provisioner.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::map_mut;
use serde_json::{Map, Value, json};

use super::pod_defaults::amounts;
use super::{Context, Strategy, immutable, set_default, set_default_text, spec_mut};

/// What a claim says when nothing is said, also inside templates.
pub(super) fn claim_spec(spec: &mut Map<String, Value>) {
    set_default_text(spec, "volumeMode", "Filesystem");
    if let Some(Value::Object(resources)) = spec.get_mut("resources") {
        amounts(resources);
    }
}

pub(crate) struct Claims;

impl Strategy for Claims {
    fn default(&self, claim: &mut Value) {
        claim_spec(spec_mut(claim));
    }

    fn prepare_create(&self, claim: &mut Value, _context: &Context<'_>) {
        map_mut(claim).insert("status".to_owned(), json!({"phase": "Pending"}));
    }
}

pub(crate) struct Volumes;

impl Strategy for Volumes {
    fn default(&self, volume: &mut Value) {
        let spec = spec_mut(volume);
        set_default_text(spec, "persistentVolumeReclaimPolicy", "Retain");
        set_default_text(spec, "volumeMode", "Filesystem");
        if let Some(Value::Object(path)) = spec.get_mut("hostPath") {
            set_default(path, "type", "");
        }
    }

    fn prepare_create(&self, volume: &mut Value, context: &Context<'_>) {
        let now = context.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let status = json!({"phase": "Pending", "lastPhaseTransitionTime": now});
        map_mut(volume).insert("status".to_owned(), status);
    }
}

pub(crate) struct Classes;

impl Strategy for Classes {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn default(&self, class: &mut Value) {
        let class = map_mut(class);
        set_default_text(class, "reclaimPolicy", "Delete");
        set_default_text(class, "volumeBindingMode", "Immediate");
    }
}

pub(crate) struct Drivers;

impl Strategy for Drivers {
    fn default(&self, driver: &mut Value) {
        let spec = spec_mut(driver);
        set_default(spec, "attachRequired", true);
        set_default_text(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        for field in ["podInfoOnMount", "requiresRepublish", "seLinuxMount", "storageCapacity"] {
            set_default(spec, field, false);
        }
        set_default(spec, "volumeLifecycleModes", json!(["Persistent"]));
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        // Upstream's name of the field in this message.
        if new["spec"]["attachRequired"] != old["spec"]["attachRequired"] {
            let path = Path::new("spec");
            let value = new["spec"]["attachRequired"].clone();
            errors.push(Error::invalid(&path.child("attachedRequired"), value, "field is immutable"));
        }
        immutable(new, old, &["spec", "volumeLifecycleModes"], &mut errors);
        errors
    }
}

pub(crate) struct Attachments;

impl Strategy for Attachments {
    fn prepare_create(&self, attachment: &mut Value, _context: &Context<'_>) {
        map_mut(attachment).insert("status".to_owned(), json!({"attached": false}));
    }
}
