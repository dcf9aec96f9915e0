//! Quantities and semantic versions.

use std::cmp::Ordering;
use std::sync::Arc;

use berth_apimachinery::quantity::{Format, Quantity, QuantityError};

use super::{Implementation, no_overload, of_text};
use crate::error::EvalError;
use crate::value::{Outcome, Semver, Value};

pub(super) fn implementation(name: &str) -> Option<Implementation> {
    Some(match name {
        "quantity" => |_, args| match args {
            [Value::String(text)] => {
                parse(text).map(Value::Quantity).map_err(|error| EvalError::message(error.to_string()))
            }
            _ => no_overload(),
        },
        "isQuantity" => |_, args| of_text(args, |text| Value::Bool(parse(text).is_ok())),
        "isInteger" => |_, args| match args {
            [Value::Quantity(quantity)] => Ok(Value::Bool(quantity.as_i64().is_some())),
            _ => no_overload(),
        },
        "asInteger" => |_, args| match args {
            [Value::Quantity(quantity)] => {
                quantity.as_i64().map(Value::Int).ok_or_else(|| EvalError::message("cannot convert value to integer"))
            }
            _ => no_overload(),
        },
        "asApproximateFloat" => |_, args| match args {
            [Value::Quantity(quantity)] => Ok(Value::Double(quantity.as_approximate_f64())),
            _ => no_overload(),
        },
        "sign" => |_, args| match args {
            [Value::Quantity(quantity)] => Ok(Value::Int(i64::from(quantity.sign()))),
            _ => no_overload(),
        },
        "add" => |_, args| combine(args, Quantity::add),
        "sub" => |_, args| combine(args, Quantity::sub),
        "isLessThan" => |_, args| order(args, |order| Value::Bool(order == Ordering::Less)),
        "isGreaterThan" => |_, args| order(args, |order| Value::Bool(order == Ordering::Greater)),
        "compareTo" => |_, args| order(args, |order| Value::Int(order as i64)),
        "semver" => |_, args| match args {
            [Value::String(text)] => made(text, false),
            [Value::String(text), Value::Bool(normalize)] => made(text, *normalize),
            _ => no_overload(),
        },
        "isSemver" => |_, args| match args {
            [Value::String(text)] => Ok(Value::Bool(Semver::parse(text, false).is_ok())),
            [Value::String(text), Value::Bool(normalize)] => Ok(Value::Bool(Semver::parse(text, *normalize).is_ok())),
            _ => no_overload(),
        },
        "major" => |_, args| part(args, 0),
        "minor" => |_, args| part(args, 1),
        "patch" => |_, args| part(args, 2),
        _ => return None,
    })
}

/// Parses a quantity. One that is too large saturates at a value that no integer equals.
fn parse(text: &str) -> Result<Quantity, QuantityError> {
    match Quantity::parse(text) {
        Err(QuantityError::TooLarge) => {
            let sign = if text.starts_with('-') { -1 } else { 1 };
            Quantity::from_scaled(sign * i128::MAX, -9, Format::DecimalSi).ok_or(QuantityError::TooLarge)
        }
        other => other,
    }
}

fn combine<'a>(args: &[Value<'a>], apply: fn(&mut Quantity, Quantity)) -> Outcome<'a> {
    let (mut quantity, other) = match args {
        [Value::Quantity(quantity), Value::Quantity(other)] => (*quantity, *other),
        [Value::Quantity(quantity), Value::Int(other)] => (*quantity, Quantity::new(*other, Format::DecimalSi)),
        _ => return no_overload(),
    };
    apply(&mut quantity, other);
    Ok(Value::Quantity(quantity))
}

/// The order of two quantities, or of two semantic versions.
fn order<'a>(args: &[Value<'a>], answer: fn(Ordering) -> Value<'static>) -> Outcome<'a> {
    match args {
        [Value::Quantity(a), Value::Quantity(b)] => Ok(answer(a.cmp(b))),
        [Value::Semver(a), Value::Semver(b)] => Ok(answer(a.compare(b))),
        _ => no_overload(),
    }
}

fn made<'a>(text: &str, normalize: bool) -> Outcome<'a> {
    Semver::parse(text, normalize).map(|version| Value::Semver(Arc::new(version))).map_err(EvalError::message)
}

fn part<'a>(args: &[Value<'a>], index: usize) -> Outcome<'a> {
    match args {
        [Value::Semver(version)] => Ok(Value::Int(version.numbers[index] as i64)),
        _ => no_overload(),
    }
}
