//! The common base of this crate's object types: the root of a custom resource, string
//! enumerations, and serde helpers that decode as leniently as Kubernetes' own decoder.
//!
//! Roots are declared with [`custom_resource!`] instead of kube's `CustomResource` derive for two
//! reasons. The derive requires `spec` when reading, while a `ResourceFlavor` or `ClusterQueue`
//! without `spec` is valid and must not break a reflector. Its schemas also mark every optional
//! field `nullable`, unlike the upstream definitions. This module provides the derive's other
//! features: a `kube::Resource` and a constructor.
//!
//! A missing field is never a decoding error: the API server has already enforced `required`.
//! Objects made in tests or by older versions get zero values, as in Go.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Deserializer};

/// The zero time of Kubernetes' clients, year 1: the value of a missing timestamp.
pub fn zero_time() -> Time {
    Time(jiff::Timestamp::from_second(-62_135_596_800).expect("year 1 is within jiff's range"))
}

/// True if the integer is zero. For counters that are omitted when zero.
pub(crate) fn is_zero(value: &i32) -> bool {
    *value == 0
}

/// Writes a quantity; an unset one is written as zero, as Go does, because the empty string is not
/// a quantity.
pub(crate) fn quantity<S: serde::Serializer>(value: &Quantity, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if value.0.is_empty() { "0" } else { &value.0 })
}

/// Reads a list of conditions; entries without `lastTransitionTime` (or with null) get
/// [`zero_time`].
pub(crate) fn conditions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Condition>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Lenient {
        last_transition_time: Option<Time>,
        message: String,
        observed_generation: Option<i64>,
        reason: String,
        status: String,
        r#type: String,
    }
    let read = Option::<Vec<Lenient>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(read
        .into_iter()
        .map(|c| Condition {
            last_transition_time: c.last_transition_time.unwrap_or_else(zero_time),
            message: c.message,
            observed_generation: c.observed_generation,
            reason: c.reason,
            status: c.status,
            type_: c.r#type,
        })
        .collect())
}

/// Reads a timestamp; null, which Go's clients write, is [`zero_time`].
pub(crate) fn time_or_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
    Ok(Option::<Time>::deserialize(deserializer)?.unwrap_or_else(zero_time))
}

/// Declares the root type of a custom resource: metadata, the given fields, `kube::Resource`, and
/// reading and writing with `apiVersion` and `kind`.
///
/// The fields are usually `spec` and `status`; they are read with their default when absent.
macro_rules! custom_resource {
    (
        $(#[$meta:meta])*
        $kind:ident: $scope:ident $group:literal $version:literal $plural:literal {
            $( $(#[$fmeta:meta])* $field:ident: $ty:ty, )*
        }
    ) => {
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, crate::JsonSchema)]
        #[serde(rename_all = "camelCase", default)]
        #[schemars(!default)]
        $(#[$meta])*
        pub struct $kind {
            /// Standard object metadata.
            #[schemars(skip)]
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            $( $(#[$fmeta])* pub $field: $ty, )*
        }

        impl serde::Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                #[derive(serde::Serialize)]
                #[serde(rename_all = "camelCase")]
                struct Wire<'a> {
                    api_version: &'a str,
                    kind: &'a str,
                    metadata: &'a k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
                    #[serde(flatten)]
                    fields: Fields<'a>,
                }
                #[derive(serde::Serialize)]
                #[serde(rename_all = "camelCase")]
                struct Fields<'a> {
                    $( #[serde(skip_serializing_if = "crate::resource::Absent::is_absent")] $field: &'a $ty, )*
                }
                serde::Serialize::serialize(
                    &Wire {
                        api_version: concat!($group, "/", $version),
                        kind: stringify!($kind),
                        metadata: &self.metadata,
                        fields: Fields { $( $field: &self.$field, )* },
                    },
                    serializer,
                )
            }
        }

        impl kube::Resource for $kind {
            type DynamicType = ();
            type Scope = $crate::resource::scope!($scope);

            fn kind(_: &()) -> std::borrow::Cow<'_, str> {
                stringify!($kind).into()
            }
            fn group(_: &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }
            fn version(_: &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }
            fn plural(_: &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }

        $crate::implement_json!($kind);

        impl $kind {
            /// An object of this kind with the given name and no other fields.
            pub fn named(name: &str) -> Self {
                let mut object = Self::default();
                object.metadata.name = Some(name.to_owned());
                object
            }
        }
    };
}
pub(crate) use custom_resource;

/// Declares the root type of a version that is neither read nor written as a type: only its schema
/// is used. Metadata are no part of a schema.
#[cfg(feature = "schema")]
macro_rules! schema_root {
    (
        $(#[$meta:meta])*
        $kind:ident { $( $(#[$fmeta:meta])* $field:ident: $ty:ty, )* }
    ) => {
        #[derive(crate::JsonSchema)]
        #[serde(rename_all = "camelCase", default)]
        #[schemars(!default)]
        $(#[$meta])*
        pub struct $kind {
            $( $(#[$fmeta])* pub $field: $ty, )*
        }
    };
}
#[cfg(feature = "schema")]
pub(crate) use schema_root;

macro_rules! scope {
    (namespaced) => {
        kube::core::NamespaceResourceScope
    };
    (cluster) => {
        kube::core::ClusterResourceScope
    };
}
pub(crate) use scope;

/// True if the root field is omitted when written: an absent option or an empty string. `spec` is
/// always written.
pub(crate) trait Absent {
    /// True if the field is omitted when written.
    fn is_absent(&self) -> bool;
}

impl<T> Absent for &T
where
    T: Absent,
{
    fn is_absent(&self) -> bool {
        (**self).is_absent()
    }
}

impl<T> Absent for Option<T> {
    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

impl Absent for String {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}

impl Absent for serde_json::Value {
    fn is_absent(&self) -> bool {
        self.is_null()
    }
}

/// Declares that these types are always written as root fields.
macro_rules! always_written {
    ($($ty:ty),* $(,)?) => {
        $(impl crate::resource::Absent for $ty {
            fn is_absent(&self) -> bool {
                false
            }
        })*
    };
}
pub(crate) use always_written;

always_written!(i32);

/// Declares a string enumeration. The first variant is the default, which is also the default of
/// the API field. The empty string, which Go's clients write for "unset", is read as the default.
macro_rules! string_enum {
    (
        $(#[$meta:meta])*
        $name:ident { $( $(#[$vmeta:meta])* $variant:ident $(= $text:literal)? ),* $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        pub enum $name {
            $( $(#[$vmeta])* $(#[serde(rename = $text)])? $variant, )*
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                if text.is_empty() {
                    return Ok(Self::default());
                }
                const NAMES: &[&str] = &[ $( $name::$variant.as_str() ),* ];
                Self::ALL
                    .iter()
                    .copied()
                    .find(|value| value.as_str() == text)
                    .ok_or_else(|| serde::de::Error::unknown_variant(&text, NAMES))
            }
        }

        impl $name {
            /// All values in the order of their declaration, the default first.
            pub const ALL: &'static [$name] = &[ $( $name::$variant ),* ];

            /// The value as written in the API.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $( $name::$variant => $crate::resource::string_enum!(@text $variant $($text)?), )*
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::ALL[0]
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn inline_schema() -> bool {
                true
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let values: Vec<&str> = Self::ALL.iter().map(|value| value.as_str()).collect();
                schemars::json_schema!({ "type": "string", "enum": values })
            }
        }
    };
    (@text $variant:ident $text:literal) => { $text };
    (@text $variant:ident) => { stringify!($variant) };
}
pub(crate) use string_enum;
