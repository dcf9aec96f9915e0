//! The webhooks of AppWrappers, which `berth controller --appwrapper` serves.

use berth_controllers::webhooks::review::{self, Stage};
use berth_operators::appwrapper::admission::{self, Creator};
use berth_operators::appwrapper::config::AppWrapperConfiguration;
use berth_operators::appwrapper::rights;
use kube::Client;
use serde_json::Value;

/// The webhooks, with the client that asks for the rights of creators.
#[derive(Clone)]
pub struct AppWrappers {
    /// Configuration.
    pub configuration: AppWrapperConfiguration,
    /// Client.
    pub client: Client,
}

impl AppWrappers {
    /// Responds to an AdmissionReview. An error is the message of a 400 response: the body is not a
    /// valid review.
    pub async fn answer(&self, stage: Stage, review: &Value) -> Result<Value, String> {
        let asked = review::request(review)?;
        let object = &asked["object"];
        if !object.is_object() || asked["subResource"].as_str().is_some_and(|part| !part.is_empty()) {
            return Ok(review::respond(asked, None, &[]));
        }
        let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
        let (user, namespace) = (&asked["userInfo"], text(&asked["namespace"]));
        let (name, uid) = (text(&user["username"]), text(&user["uid"]));
        let creator = Creator { name: &name, uid: &uid };
        match (stage, asked["operation"].as_str().unwrap_or_default()) {
            (Stage::Mutate, "CREATE") => {
                let mut changed = object.clone();
                admission::default_on_create(&mut changed, creator, &self.configuration);
                Ok(review::respond(asked, Some(&changed), &[]))
            }
            (Stage::Validate, "CREATE") => {
                let verdicts = if self.configuration.user_rbac_admission_check {
                    Some(rights::verdicts(&self.client, object, &namespace, user).await)
                } else {
                    None
                };
                let errors = admission::validate_create(object, &namespace, creator, verdicts.as_deref());
                Ok(review::respond(asked, None, &errors))
            }
            (Stage::Validate, "UPDATE") => {
                Ok(review::respond(asked, None, &admission::validate_update(object, &asked["oldObject"])))
            }
            _ => Ok(review::respond(asked, None, &[])),
        }
    }
}
