//! Which form an answer takes: the `Accept` header, and what bodies may come in.

use berth_apimachinery::status::Status;

use crate::negotiation::{self, Parameters, parameter};

/// The form of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The object as it is.
    Object,
    /// `as=Table`, with the version of the meta.k8s.io group asked for.
    Table(String),
    /// `as=PartialObjectMetadata` or `…List`.
    Metadata(String),
}

/// Encoding of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
}

/// What to answer with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    pub(crate) form: Form,
    pub(crate) encoding: Encoding,
    /// Whether the clause asks for an indented answer.
    pub(crate) pretty: bool,
    /// Whether the answer may lack `managedFields`; nothing in a header says so, see [`super::Lean`].
    pub(crate) lean: bool,
}

const OFFERED: [&str; 2] = ["application/json", "application/yaml"];

/// Picks the form and encoding `accept` asks for; no header means JSON.
pub(crate) fn accept(accept: &str) -> Result<Negotiated, Status> {
    let allows = |_: &str, parameters: &Parameters<'_>| form(parameters).is_some();
    let (media, parameters) =
        negotiation::choose(accept, &OFFERED, allows).ok_or_else(|| Status::not_acceptable(&OFFERED))?;
    Ok(Negotiated {
        form: form(&parameters).unwrap_or(Form::Object),
        encoding: if media == "application/yaml" { Encoding::Yaml } else { Encoding::Json },
        pretty: parameter(&parameters, "pretty") == Some("1"),
        lean: false,
    })
}

/// The form a clause asks for; `None` for one nobody makes.
fn form(parameters: &Parameters<'_>) -> Option<Form> {
    let Some(kind) = parameter(parameters, "as").filter(|kind| !kind.is_empty()) else { return Some(Form::Object) };
    let version = parameter(parameters, "v").unwrap_or("v1");
    if parameter(parameters, "g") != Some("meta.k8s.io") || !matches!(version, "v1" | "v1beta1") {
        return None;
    }
    match kind {
        "Table" => Some(Form::Table(version.to_owned())),
        "PartialObjectMetadata" | "PartialObjectMetadataList" => Some(Form::Metadata(version.to_owned())),
        _ => None,
    }
}

/// Media types of bodies. Protobuf is turned into JSON before it comes here.
pub(crate) const BODIES: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

/// Checks the media type of a request's body; the parameters do not matter.
pub(crate) fn content_type(header: &str) -> Result<(), Status> {
    let media = header.split(';').next().unwrap_or_default().trim();
    match media {
        "" | "application/json" | "application/yaml" => Ok(()),
        _ => Err(Status::unsupported_media_type(&BODIES)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_gets_a_table() {
        let header = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(accept(header).unwrap().form, Form::Table("v1".to_owned()));
    }

    #[test]
    fn protobuf_clients_that_also_take_json_get_json() {
        let header = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(accept(header).unwrap().form, Form::Object);
        assert_eq!(accept("application/vnd.kubernetes.protobuf").unwrap_err().code, 406);
    }

    #[test]
    fn quality_decides_before_order() {
        assert_eq!(accept("application/yaml;q=0.4, application/json;q=0.9").unwrap().encoding, Encoding::Json);
    }
}
