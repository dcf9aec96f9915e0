//! Which form an answer takes: the `Accept` header, and what bodies may come in.

use berth_apimachinery::status::Status;

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
}

const OFFERED: [&str; 3] = ["application/json", "application/yaml", "text/plain"];

/// Picks the first acceptable clause of `accept`, by quality, then in order. No header means JSON.
pub(crate) fn accept(accept: &str) -> Result<Negotiated, Status> {
    let object = Negotiated { form: Form::Object, encoding: Encoding::Json };
    if accept.trim().is_empty() {
        return Ok(object);
    }
    let mut clauses: Vec<(u32, &str)> = accept.split(',').map(|clause| (quality(clause), clause.trim())).collect();
    clauses.sort_by_key(|(quality, _)| std::cmp::Reverse(*quality));
    clauses.into_iter().find_map(|(_, clause)| acceptable(clause)).ok_or_else(|| Status::not_acceptable(&OFFERED))
}

/// The `q` parameter in thousandths.
fn quality(clause: &str) -> u32 {
    parameters(clause)
        .find(|(key, _)| *key == "q")
        .and_then(|(_, value)| value.parse::<f64>().ok())
        .map_or(1000, |quality| (quality.clamp(0.0, 1.0) * 1000.0) as u32)
}

fn parameters(clause: &str) -> impl Iterator<Item = (&str, &str)> {
    clause.split(';').skip(1).filter_map(|parameter| {
        let (key, value) = parameter.split_once('=')?;
        Some((key.trim(), value.trim()))
    })
}

fn acceptable(clause: &str) -> Option<Negotiated> {
    let media = clause.split(';').next().unwrap_or_default().trim();
    let encoding = match media {
        "application/json" | "application/*" | "*/*" => Encoding::Json,
        "application/yaml" => Encoding::Yaml,
        _ => return None,
    };
    let parameter = |name: &str| parameters(clause).find(|(key, _)| *key == name).map(|(_, value)| value);
    let form = match parameter("as") {
        None | Some("") => Form::Object,
        Some(kind) => {
            let version = parameter("v").unwrap_or("v1");
            if parameter("g") != Some("meta.k8s.io") || !matches!(version, "v1" | "v1beta1") {
                return None;
            }
            match kind {
                "Table" => Form::Table(version.to_owned()),
                "PartialObjectMetadata" | "PartialObjectMetadataList" => Form::Metadata(version.to_owned()),
                _ => return None,
            }
        }
    };
    Some(Negotiated { form, encoding })
}

/// Checks the media type of a request's body; the parameters do not matter.
pub(crate) fn content_type(header: &str) -> Result<(), Status> {
    let media = header.split(';').next().unwrap_or_default().trim();
    match media {
        "" | "application/json" | "application/yaml" | "text/yaml" | "application/x-yaml" | "text/plain" => Ok(()),
        _ => Err(Status::unsupported_media_type(&["application/json", "application/yaml"])),
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
