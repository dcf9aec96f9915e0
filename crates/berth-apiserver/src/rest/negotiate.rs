//! The form of a response by the `Accept` header, and the media types of request bodies.

use std::borrow::Cow;

use berth_apimachinery::status::Status;
use http::{HeaderMap, HeaderValue, header};

use crate::negotiation::{self, Parameters, parameter};
use crate::protobuf;

/// The form of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The object itself.
    Object,
    /// `as=Table`, with the requested version of meta.k8s.io.
    Table(String),
    /// `as=PartialObjectMetadata` or `…List`.
    Metadata(String),
}

/// Encoding of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

impl Encoding {
    /// The encoding of a media type.
    pub(crate) fn of(media: &str) -> Encoding {
        match media {
            "application/yaml" => Encoding::Yaml,
            protobuf::MEDIA_TYPE => Encoding::Protobuf,
            _ => Encoding::Json,
        }
    }

    /// The `Content-Type` of a response.
    pub(crate) fn media_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Encoding::Json => "application/json",
            Encoding::Yaml => "application/yaml",
            Encoding::Protobuf => protobuf::MEDIA_TYPE,
        })
    }
}

/// The negotiated form and encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    pub(crate) form: Form,
    pub(crate) encoding: Encoding,
    /// True if the clause requests an indented response.
    pub(crate) pretty: bool,
    /// True if the response may omit `managedFields`. No header requests this; see
    /// [`super::Choices`].
    pub(crate) lean: bool,
}

/// Media types of responses; the first is the default.
pub(crate) const OFFERED: [&str; 3] = ["application/json", "application/yaml", protobuf::MEDIA_TYPE];
/// Media types of watches.
const OFFERED_STREAMS: [&str; 2] =
    ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];

/// The properties of a request that limit the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct About {
    /// True if the objects are custom resources. Their protobuf encoding exists only for metadata.
    pub(crate) custom: bool,
    /// True if the response is a stream of events.
    pub(crate) watch: bool,
    /// True if the response can be a Table.
    pub(crate) table: bool,
}

/// Picks the form and encoding that `accept` requests; no header means JSON.
pub(crate) fn accept(accept: &str, about: About) -> Result<Negotiated, Status> {
    let allows = |media: &str, parameters: &Parameters<'_>| {
        let encoding = Encoding::of(media);
        let streams = parameter(parameters, "stream").filter(|stream| !stream.is_empty());
        let fits = match form(parameters) {
            Some(Form::Object) => encoding != Encoding::Protobuf || !about.custom,
            Some(Form::Table(_)) => encoding != Encoding::Protobuf && about.table,
            Some(Form::Metadata(_)) => true,
            None => false,
        };
        fits && streams.is_none_or(|stream| stream == "watch" && encoding != Encoding::Yaml)
    };
    let (media, parameters) =
        negotiation::choose(accept, &OFFERED, allows).ok_or_else(|| Status::not_acceptable(&OFFERED))?;
    let encoding = Encoding::of(media);
    if about.watch && encoding == Encoding::Yaml {
        return Err(Status::not_acceptable(&OFFERED_STREAMS));
    }
    Ok(Negotiated {
        form: form(&parameters).unwrap_or(Form::Object),
        encoding,
        pretty: parameter(&parameters, "pretty") == Some("1"),
        lean: false,
    })
}

/// The encoding of a response that has only one form: errors, and discovery. `None` if no accepted
/// encoding is possible.
pub(crate) fn plain(accept: &str) -> Option<Encoding> {
    let is_plain = |_: &str, parameters: &Parameters<'_>| {
        parameter(parameters, "as").is_none_or(str::is_empty)
            && parameter(parameters, "stream").is_none_or(|stream| matches!(stream, "" | "watch"))
    };
    negotiation::choose(accept, &OFFERED, is_plain).map(|(media, _)| Encoding::of(media))
}

/// The `Accept` headers of a request as one header.
pub(crate) fn accept_header(headers: &HeaderMap) -> Cow<'_, str> {
    let mut values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let first = values.next().unwrap_or_default();
    values.fold(Cow::Borrowed(first), |all, value| Cow::Owned(format!("{all},{value}")))
}

/// The form that a clause requests; `None` for unknown forms.
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

/// Media types of bodies. Protobuf is converted to JSON earlier.
pub(crate) const BODIES: [&str; 3] = OFFERED;

/// Checks the media type of a request's body; its parameters are ignored.
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

    const PROTOBUF: &str = protobuf::MEDIA_TYPE;

    fn chosen(header: &str, custom: bool, watch: bool) -> Option<(Encoding, Form)> {
        accept(header, About { custom, watch, table: true }).ok().map(|it| (it.encoding, it.form))
    }

    #[test]
    fn kubectl_gets_a_table() {
        let header = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(chosen(header, false, false), Some((Encoding::Json, Form::Table("v1".to_owned()))));
    }

    #[test]
    fn protobuf_is_for_built_in_kinds_and_metadata() {
        let both = format!("{PROTOBUF},application/json");
        assert_eq!(chosen(&both, false, false), Some((Encoding::Protobuf, Form::Object)));
        assert_eq!(chosen(&both, true, false), Some((Encoding::Json, Form::Object)));
        assert_eq!(chosen(PROTOBUF, false, false), Some((Encoding::Protobuf, Form::Object)));
        assert_eq!(chosen(PROTOBUF, true, false), None);
        let metadata = format!("{PROTOBUF};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
        assert_eq!(chosen(&metadata, true, true), Some((Encoding::Protobuf, Form::Metadata("v1".to_owned()))));
        let table = format!("{PROTOBUF};as=Table;g=meta.k8s.io;v=v1");
        assert_eq!(chosen(&table, false, false), None);
        let either = format!("{table},application/json;as=Table;g=meta.k8s.io;v=v1");
        assert_eq!(chosen(&either, false, false), Some((Encoding::Json, Form::Table("v1".to_owned()))));
    }

    #[test]
    fn watches_use_only_encodings_that_can_be_streamed() {
        let stream = format!("{PROTOBUF};stream=watch");
        assert_eq!(chosen(&stream, false, true), Some((Encoding::Protobuf, Form::Object)));
        assert_eq!(chosen(&format!("{PROTOBUF};stream=other"), false, true), None);
        assert_eq!(chosen("application/yaml;stream=watch", false, true), None);
        let rejected = accept("application/yaml", About { custom: false, watch: true, table: true }).unwrap_err();
        assert!(rejected.message.ends_with("application/vnd.kubernetes.protobuf;stream=watch"), "{rejected}");
    }

    #[test]
    fn a_kind_without_a_table_is_not_returned_in_another_form() {
        let about = About { custom: false, watch: false, table: false };
        let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
        assert_eq!(accept(table, about).unwrap_err().code, 406);
        let either = accept(&format!("{table},application/json"), about).expect("JSON");
        assert_eq!(either.form, Form::Object);
    }

    #[test]
    fn quality_decides_before_order() {
        let json = chosen("application/yaml;q=0.4, application/json;q=0.9", false, false);
        assert_eq!(json, Some((Encoding::Json, Form::Object)));
        let json = chosen(&format!("{PROTOBUF};q=0.5,application/json"), false, false);
        assert_eq!(json, Some((Encoding::Json, Form::Object)));
    }

    #[test]
    fn errors_use_an_accepted_encoding_if_possible() {
        assert_eq!(plain(""), Some(Encoding::Json));
        assert_eq!(plain(PROTOBUF), Some(Encoding::Protobuf));
        assert_eq!(plain(&format!("{PROTOBUF};as=Table;g=meta.k8s.io;v=v1")), None);
        assert_eq!(plain("text/html"), None);
    }
}
