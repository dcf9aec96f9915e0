//! Values that are an integer or a string such as a percentage (`maxUnavailable: 30%`).

use serde_json::Value;

/// The parsed form of an int-or-string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A number.
    Number(i64),
    /// A percentage of a total.
    Percent(i64),
}

/// Parses a string as command lines do: to a number if it is a 32-bit integer, else to a string.
pub fn parse(text: &str) -> Value {
    match text.parse::<i32>() {
        Ok(number) => Value::from(number),
        Err(_) => Value::from(text),
    }
}

/// Parses a value: a number, or a string of an integer and a percent sign.
pub fn amount(value: &Value) -> Result<Amount, String> {
    match value {
        Value::Number(number) => {
            number.as_i64().map(Amount::Number).ok_or_else(|| format!("invalid value {number}: must be a whole number"))
        }
        Value::String(text) => {
            let digits = text
                .strip_suffix('%')
                .ok_or_else(|| format!("invalid type: string is not a percentage: {}", crate::field::quote(text)))?;
            let percent = digits.parse().map_err(|_| {
                format!("invalid value {}: must be a whole number of percent", crate::field::quote(text))
            })?;
            Ok(Amount::Percent(percent))
        }
        other => Err(format!("invalid type: neither int nor percentage: {other}")),
    }
}

/// The number that a value denotes for a total; a percentage is rounded up or down.
pub fn scaled(value: &Value, total: i64, round_up: bool) -> Result<i64, String> {
    Ok(match amount(value)? {
        Amount::Number(number) => number,
        Amount::Percent(percent) => {
            let product = i128::from(percent) * i128::from(total);
            let (whole, rest) = (product.div_euclid(100), product.rem_euclid(100));
            let scaled = if round_up && rest != 0 { whole + 1 } else { whole };
            i64::try_from(scaled).map_err(|_| format!("{percent}% of {total} is out of range"))?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_percentage_is_rounded_up_or_down() {
        assert_eq!(scaled(&json!("90%"), 95, true), Ok(86));
        assert_eq!(scaled(&json!("90%"), 95, false), Ok(85));
        assert_eq!(scaled(&json!(3), 95, false), Ok(3));
        assert!(scaled(&json!("90"), 95, false).is_err());
    }
}
