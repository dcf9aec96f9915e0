//! Serializes selected top-level members of an object, each as JSON text, to compute the difference
//! between two states. Most members are equal in both states, and comparing their texts avoids
//! parsing them.

use std::collections::BTreeMap;

use serde::ser::{Error as _, Impossible, SerializeMap, SerializeStruct};
use serde::{Serialize, Serializer};
use serde_json::Error;

/// The members of `object` whose names `wanted` accepts, as JSON text by name.
///
/// # Errors
/// The object is not serialized as a JSON object, or cannot be serialized.
pub(crate) fn members<T: Serialize>(
    object: &T,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, String>, Error> {
    object.serialize(Members { wanted, found: BTreeMap::new(), key: None })
}

struct Members<F> {
    wanted: F,
    found: BTreeMap<String, String>,
    key: Option<String>,
}

impl<F: Fn(&str) -> bool> Members<F> {
    fn put<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<(), Error> {
        if (self.wanted)(key) {
            self.found.insert(key.to_owned(), serde_json::to_string(value)?);
        }
        Ok(())
    }
}

impl<F: Fn(&str) -> bool> SerializeStruct for Members<F> {
    type Ok = BTreeMap<String, String>;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
        self.put(key, value)
    }

    fn end(self) -> Result<Self::Ok, Error> {
        Ok(self.found)
    }
}

impl<F: Fn(&str) -> bool> SerializeMap for Members<F> {
    type Ok = BTreeMap<String, String>;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        match serde_json::to_value(key)? {
            serde_json::Value::String(key) => {
                self.key = Some(key);
                Ok(())
            }
            _ => Err(not_an_object()),
        }
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let key = self.key.take().ok_or_else(not_an_object)?;
        self.put(&key, value)
    }

    fn end(self) -> Result<Self::Ok, Error> {
        Ok(self.found)
    }
}

fn not_an_object() -> Error {
    Error::custom("expected an object with named members")
}

type Refused = Impossible<BTreeMap<String, String>, Error>;

/// Writes the methods of [`Serializer`] for values that are not objects.
macro_rules! refused {
    ($($method:ident($($argument:ty),*) -> $answer:ty;)*) => {
        $(fn $method(self, $(_: $argument),*) -> Result<$answer, Error> {
            Err(not_an_object())
        })*
    };
}

impl<F: Fn(&str) -> bool> Serializer for Members<F> {
    type Ok = BTreeMap<String, String>;
    type Error = Error;
    type SerializeSeq = Refused;
    type SerializeTuple = Refused;
    type SerializeTupleStruct = Refused;
    type SerializeTupleVariant = Refused;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Refused;

    fn serialize_map(self, _: Option<usize>) -> Result<Self, Error> {
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Error> {
        Ok(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<Self::Ok, Error> {
        value.serialize(self)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Self::Ok, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<Self::Ok, Error> {
        Err(not_an_object())
    }

    refused! {
        serialize_bool(bool) -> Self::Ok;
        serialize_i8(i8) -> Self::Ok;
        serialize_i16(i16) -> Self::Ok;
        serialize_i32(i32) -> Self::Ok;
        serialize_i64(i64) -> Self::Ok;
        serialize_u8(u8) -> Self::Ok;
        serialize_u16(u16) -> Self::Ok;
        serialize_u32(u32) -> Self::Ok;
        serialize_u64(u64) -> Self::Ok;
        serialize_f32(f32) -> Self::Ok;
        serialize_f64(f64) -> Self::Ok;
        serialize_char(char) -> Self::Ok;
        serialize_str(&str) -> Self::Ok;
        serialize_bytes(&[u8]) -> Self::Ok;
        serialize_none() -> Self::Ok;
        serialize_unit() -> Self::Ok;
        serialize_unit_struct(&'static str) -> Self::Ok;
        serialize_unit_variant(&'static str, u32, &'static str) -> Self::Ok;
        serialize_seq(Option<usize>) -> Refused;
        serialize_tuple(usize) -> Refused;
        serialize_tuple_struct(&'static str, usize) -> Refused;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Refused;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Refused;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_selected_members_are_serialized() {
        let object = json!({"spec": {"a": [1, "x"]}, "status": {"b": 2}, "metadata": {"name": "n"}});
        let found = members(&object, |name| name != "status").unwrap();
        let expected = [("metadata", r#"{"name":"n"}"#), ("spec", r#"{"a":[1,"x"]}"#)];
        assert_eq!(found, expected.map(|(key, text)| (key.to_owned(), text.to_owned())).into());
    }

    #[test]
    fn values_without_members_are_rejected() {
        assert!(members(&json!([1]), |_| true).is_err());
        assert!(members(&Some("x"), |_| true).is_err());
    }
}
