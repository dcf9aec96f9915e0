//! Quantities: amounts of resources such as `500m`, `1.5Gi` or `1e3`.
//!
//! A quantity is an exact decimal down to one nano (10⁻⁹), kept as an integer of nanos, plus the family of suffixes it was
//! written in. Finer parts are rounded away from zero when read. Comparison is by value; text is only for people.
//!
//! Source: Kubernetes' documentation of `resource.Quantity`. Deliberate difference: text is always made canonical
//! (`+1` reads back as `1`), and amounts beyond about 10²⁹ are refused instead of kept exactly.

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

const NANO: i128 = 1_000_000_000;

/// The family of suffixes a quantity is written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `n u m (none) k M G T P E`
    DecimalSi,
    /// `Ki Mi Gi Ti Pi Ei`
    BinarySi,
    /// `e3`, `E-6`
    DecimalExponent,
}

impl Format {
    /// The format's name in Kubernetes.
    pub const fn name(self) -> &'static str {
        match self {
            Format::DecimalSi => "DecimalSI",
            Format::BinarySi => "BinarySI",
            Format::DecimalExponent => "DecimalExponent",
        }
    }
}

/// Why a quantity could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text has another shape.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// The number before the suffix is no number.
    #[error("unable to parse numeric part of quantity")]
    Number,
    /// There is no such suffix.
    #[error("unable to parse quantity's suffix")]
    Suffix,
    /// The amount is larger than can be kept.
    #[error("quantity is too large")]
    TooLarge,
}

/// An amount. Equality and order are by value, whatever the format.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// The parts of a quantity's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Whether there is no minus sign.
    pub positive: bool,
    /// Sign and number as written.
    pub value: &'a str,
    /// Digits before the point without leading zeros, `0` if there are none.
    pub integer: &'a str,
    /// Digits after the point.
    pub fraction: &'a str,
    /// Everything behind the number.
    pub suffix: &'a str,
}

/// Splits a text into sign, number and suffix without interpreting the suffix.
pub fn split(text: &str) -> Result<Parts<'_>, QuantityError> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sign = text.len() - unsigned.len();
    let digits = |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let whole = digits(unsigned);
    let mut end = whole;
    let mut fraction = "";
    if unsigned[whole..].starts_with('.') {
        let length = digits(&unsigned[whole + 1..]);
        fraction = &unsigned[whole + 1..whole + 1 + length];
        end = whole + 1 + length;
    }
    let suffix = &unsigned[end..];
    // A suffix is letters, then perhaps a signed exponent, and nothing else.
    let letters = suffix.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
    let exponent = letters.strip_prefix(['+', '-']).unwrap_or(letters);
    if text.is_empty() || end == 0 || exponent.len() != digits(exponent) {
        return Err(QuantityError::Format);
    }
    let integer = unsigned[..whole].trim_start_matches('0');
    Ok(Parts {
        positive: !text.starts_with('-'),
        value: &text[..sign + end],
        integer: if integer.is_empty() { "0" } else { integer },
        fraction,
        suffix,
    })
}

const DECIMAL_SUFFIXES: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY_SUFFIXES: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

enum Multiplier {
    Decimal(i32, Format),
    Binary(u32),
}

fn multiplier(suffix: &str) -> Result<Multiplier, QuantityError> {
    if let Some((_, exponent)) = DECIMAL_SUFFIXES.iter().find(|(known, _)| *known == suffix) {
        return Ok(Multiplier::Decimal(*exponent, Format::DecimalSi));
    }
    if let Some((_, bits)) = BINARY_SUFFIXES.iter().find(|(known, _)| *known == suffix) {
        return Ok(Multiplier::Binary(*bits));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).filter(|digits| !digits.is_empty()).ok_or(QuantityError::Suffix)?;
    let exponent: i32 = exponent.parse().map_err(|_| QuantityError::Suffix)?;
    Ok(Multiplier::Decimal(exponent, Format::DecimalExponent))
}

impl Quantity {
    /// Zero, in decimal format.
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::DecimalSi };

    /// A whole amount.
    pub const fn new(value: i64, format: Format) -> Self {
        Quantity { nanos: value as i128 * NANO, format }
    }

    /// An amount in thousandths.
    pub const fn from_milli(milli: i64, format: Format) -> Self {
        Quantity { nanos: milli as i128 * (NANO / 1000), format }
    }

    /// `value` × 10^`scale`; parts finer than a nano are rounded away from zero. `None` when too large.
    pub fn from_scaled(value: i128, scale: i32, format: Format) -> Option<Self> {
        scale_decimal(value, scale + 9).map(|nanos| Quantity { nanos, format })
    }

    /// Reads a text. No blanks are allowed.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let parts = split(text)?;
        let multiplier = multiplier(parts.suffix)?;
        let fraction = parts.fraction.trim_end_matches('0');
        let mut digits: i128 = 0;
        let mut scale = -(fraction.len() as i32);
        let mut lost = false;
        for digit in parts.integer.bytes().chain(fraction.bytes()) {
            let digit = i128::from(digit - b'0');
            match digits.checked_mul(10).and_then(|digits| digits.checked_add(digit)) {
                // Beyond 30 digits only the fact that something follows matters, for rounding.
                Some(longer) if longer < 10_i128.pow(30) && !lost => digits = longer,
                _ => {
                    lost |= digit != 0;
                    scale += 1;
                }
            }
        }
        let (magnitude, format) = match multiplier {
            Multiplier::Decimal(exponent, format) => (
                scale_decimal(digits, scale.saturating_add(exponent).saturating_add(9))
                    .ok_or(QuantityError::TooLarge)?,
                format,
            ),
            Multiplier::Binary(bits) => (binary(digits, scale, bits), Format::BinarySi),
        };
        let magnitude = if lost && scale < -9 { magnitude.saturating_add(1) } else { magnitude };
        // Less than one byte is no binary amount.
        let format =
            if format == Format::BinarySi && magnitude > 0 && magnitude < NANO { Format::DecimalSi } else { format };
        Ok(Quantity { nanos: if parts.positive { magnitude } else { -magnitude }, format })
    }

    /// Reads a JSON value: a text (blanks around it are tolerated), a number, or null for zero.
    pub fn from_json(value: &Value) -> Result<Self, QuantityError> {
        match value {
            Value::Null => Ok(Quantity::ZERO),
            Value::String(text) => Quantity::parse(text.trim()),
            Value::Number(number) => Quantity::parse(&number.to_string()),
            _ => Err(QuantityError::Format),
        }
    }

    /// The family of suffixes.
    pub const fn format(&self) -> Format {
        self.format
    }

    /// The exact amount in nanos.
    pub const fn nanos(&self) -> i128 {
        self.nanos
    }

    /// The amount in whole units, rounded away from zero, saturating.
    pub fn value(&self) -> i64 {
        self.scaled_value(0)
    }

    /// The amount in thousandths, rounded away from zero, saturating.
    pub fn milli_value(&self) -> i64 {
        self.scaled_value(-3)
    }

    /// The amount in units of 10^`scale`, rounded away from zero, saturating.
    pub fn scaled_value(&self, scale: i32) -> i64 {
        let scaled =
            scale_decimal(self.nanos, -9 - scale).unwrap_or(if self.nanos < 0 { i128::MIN } else { i128::MAX });
        i64::try_from(scaled).unwrap_or(if scaled < 0 { i64::MIN } else { i64::MAX })
    }

    /// Rounds away from zero to a multiple of 10^`scale`; says whether nothing was lost.
    pub fn round_up(&mut self, scale: i32) -> bool {
        let Some(step) = u32::try_from(scale + 9).ok().and_then(|digits| 10_i128.checked_pow(digits)) else {
            return true;
        };
        let rounded = divide_away(self.nanos, step) * step;
        let exact = rounded == self.nanos;
        self.nanos = rounded;
        exact
    }

    /// The whole amount, if it is whole and fits.
    pub fn as_i64(&self) -> Option<i64> {
        (self.nanos % NANO == 0).then(|| i64::try_from(self.nanos / NANO).ok()).flatten()
    }

    /// The amount as a float, the nearest one.
    pub fn as_f64(&self) -> f64 {
        let whole = self.nanos / NANO;
        if self.nanos % NANO == 0 { whole as f64 } else { self.decimal().parse().unwrap_or(whole as f64) }
    }

    /// The amount as a float, cheaply: digits times a power of ten, which may be off in the last place.
    pub fn as_approximate_f64(&self) -> f64 {
        let (mut digits, mut exponent) = (self.nanos, -9);
        while exponent < 0 && digits % 10 == 0 {
            digits /= 10;
            exponent += 1;
        }
        digits as f64 * 10_f64.powi(exponent)
    }

    /// The exact amount as a plain decimal number without suffix.
    pub fn decimal(&self) -> String {
        let magnitude = self.nanos.unsigned_abs();
        let (whole, fraction) = (magnitude / NANO as u128, magnitude % NANO as u128);
        let sign = if self.nanos < 0 { "-" } else { "" };
        if fraction == 0 {
            return format!("{sign}{whole}");
        }
        format!("{sign}{whole}.{}", format!("{fraction:09}").trim_end_matches('0'))
    }

    /// Whether the amount is zero.
    pub const fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// -1, 0 or 1.
    pub const fn sign(&self) -> i32 {
        self.nanos.signum() as i32
    }

    /// Adds, saturating. Keeps the format unless this amount is zero, which takes the other's.
    pub fn add(&mut self, other: Quantity) {
        if self.is_zero() {
            self.format = other.format;
        }
        self.nanos = self.nanos.saturating_add(other.nanos);
    }

    /// Subtracts, saturating. Keeps the format unless this amount is zero, which takes the other's.
    pub fn sub(&mut self, other: Quantity) {
        if self.is_zero() {
            self.format = other.format;
        }
        self.nanos = self.nanos.saturating_sub(other.nanos);
    }

    /// Multiplies by a whole number, saturating; `false` when the result leaves 64 bits.
    pub fn mul(&mut self, factor: i64) -> bool {
        self.nanos = self.nanos.saturating_mul(i128::from(factor));
        self.as_i64().is_some() || (self.nanos % NANO != 0 && i64::try_from(self.nanos / NANO).is_ok())
    }

    /// Changes the sign.
    pub fn neg(&mut self) {
        self.nanos = self.nanos.saturating_neg();
    }
}

/// Divides, rounding away from zero.
fn divide_away(value: i128, by: i128) -> i128 {
    let quotient = value / by;
    if value % by == 0 { quotient } else { quotient + value.signum() }
}

/// `value` × 10^`exponent`, rounded away from zero. `None` on overflow.
fn scale_decimal(value: i128, exponent: i32) -> Option<i128> {
    if value == 0 {
        return Some(0);
    }
    if exponent >= 0 {
        return 10_i128.checked_pow(exponent.unsigned_abs()).and_then(|factor| value.checked_mul(factor));
    }
    match 10_i128.checked_pow(exponent.unsigned_abs()) {
        Some(divisor) => Some(divide_away(value, divisor)),
        None => Some(value.signum()),
    }
}

/// `digits` × 10^`scale` × 2^`bits` in nanos, capped at the largest 64-bit amount of units.
fn binary(digits: i128, scale: i32, bits: u32) -> i128 {
    let cap = i128::from(i64::MAX) * NANO;
    let shift = 1_i128 << bits;
    // Dividing first would lose precision and multiplying first may overflow; both cannot happen for amounts below the cap.
    let exponent = scale + 9;
    let product = match digits.checked_mul(shift) {
        Some(product) => scale_decimal(product, exponent),
        None => scale_decimal(digits, exponent).and_then(|nanos| nanos.checked_mul(shift)),
    };
    product.unwrap_or(cap).min(cap)
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl std::str::FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Quantity::parse(text)
    }
}

impl fmt::Display for Quantity {
    /// The canonical text: the largest suffix of the format that leaves a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let whole = self.nanos % NANO == 0;
        let units = self.nanos / NANO;
        if self.format == Format::BinarySi && whole && units.unsigned_abs() >= 1024 {
            let fitting = BINARY_SUFFIXES.iter().rev().find(|(_, bits)| units % (1_i128 << bits) == 0);
            return match fitting {
                Some((suffix, bits)) => write!(f, "{}{suffix}", units >> bits),
                None => write!(f, "{units}"),
            };
        }
        // Three decimal digits at a time.
        let mut mantissa = self.nanos;
        let mut exponent = -9;
        while mantissa % 1000 == 0 && (exponent < 18 || self.format == Format::DecimalExponent) {
            mantissa /= 1000;
            exponent += 3;
        }
        match self.format {
            Format::DecimalExponent if exponent == 0 => write!(f, "{mantissa}"),
            Format::DecimalExponent => write!(f, "{mantissa}e{exponent}"),
            _ => {
                let suffix = DECIMAL_SUFFIXES.iter().find(|(_, e)| *e == exponent).map_or("", |(suffix, _)| suffix);
                write!(f, "{mantissa}{suffix}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        Quantity::parse(text).expect("parses").to_string()
    }

    #[test]
    fn text_is_made_canonical_in_its_own_family() {
        assert_eq!(canonical("1024Mi"), "1Gi");
        assert_eq!(canonical("1.5Gi"), "1536Mi");
        assert_eq!(canonical("0.5"), "500m");
        assert_eq!(canonical("1000M"), "1G");
        assert_eq!(canonical("1.3E+6"), "1300e3");
        assert_eq!(canonical("1E"), "1E");
        assert_eq!(canonical("100.035Ki"), "102435840m");
    }

    #[test]
    fn values_round_up() {
        assert_eq!(Quantity::parse("100m").expect("parses").value(), 1);
        assert_eq!(Quantity::parse("1n").expect("parses").milli_value(), 1);
        assert_eq!(Quantity::parse("-1.5").expect("parses").value(), -2);
        assert_eq!(Quantity::parse("3.001n").expect("parses").nanos(), 4);
    }

    #[test]
    fn comparison_is_by_value() {
        assert_eq!(Quantity::parse("1000m"), Quantity::parse("1"));
        assert!(Quantity::parse("1Ki").expect("parses") > Quantity::parse("1k").expect("parses"));
    }

    #[test]
    fn malformed_texts_are_refused() {
        for text in ["", " 1", "1 ", "1.1.M", "1K", "1i", "abc", "+", "1e", "1ee3", "1Mi2"] {
            assert!(Quantity::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_sum_takes_the_format_of_the_first_amount_that_is_not_zero() {
        let mut sum = Quantity::ZERO;
        sum.add(Quantity::parse("1Gi").expect("parses"));
        assert_eq!(sum.to_string(), "1Gi");
        sum.add(Quantity::parse("1k").expect("parses"));
        assert_eq!(sum.to_string(), "1073742824");
    }
}
