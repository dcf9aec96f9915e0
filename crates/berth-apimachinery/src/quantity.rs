//! Quantities: amounts of resources such as `500m`, `1.5Gi` or `1e3`.
//!
//! A quantity is an exact decimal down to one nano (10⁻⁹), stored as an integer of nanos with the
//! family of suffixes of its text. Finer parts are rounded away from zero when parsed. Comparison
//! is by value. Amounts beyond 1.7 × 10²⁹, which exceed an integer of nanos, also store a power of
//! ten.
//!
//! Source: Kubernetes' documentation of `resource.Quantity`. Deliberate differences: text is always
//! made canonical (`+1` becomes `1`); amounts beyond 1.7 × 10²⁹ keep their 30 leading digits;
//! amounts of more than a thousand digits are rejected, so that a short text cannot take unbounded
//! memory.

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

const NANO: i128 = 1_000_000_000;
/// Largest power of ten stored with an amount; sums and products saturate there.
const POWER_MAX: i32 = 1000;

/// The family of suffixes of a quantity.
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

/// The reason why a quantity cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The string does not have the form of a quantity.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// The part before the suffix is not a number.
    #[error("unable to parse numeric part of quantity")]
    Number,
    /// The suffix is unknown.
    #[error("unable to parse quantity's suffix")]
    Suffix,
    /// The amount is too large to store.
    #[error("quantity is too large")]
    TooLarge,
}

/// An amount. Equality and order are by value, regardless of the format.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    /// In units of 10^`power` nanos.
    amount: i128,
    /// Zero for every amount that fits an integer of nanos. Otherwise the smallest possible power,
    /// so that a larger power means a larger amount.
    power: i32,
    format: Format,
}

/// The parts of a quantity's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// True if the text has no minus sign.
    pub positive: bool,
    /// Sign and number as written.
    pub value: &'a str,
    /// Digits before the point without leading zeros, `0` if there are none.
    pub integer: &'a str,
    /// Digits after the point.
    pub fraction: &'a str,
    /// The text after the number.
    pub suffix: &'a str,
}

/// Splits a string into sign, number and suffix without interpreting the suffix.
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
    // A suffix consists of letters and an optional signed exponent.
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
    pub const ZERO: Quantity = Quantity { amount: 0, power: 0, format: Format::DecimalSi };

    /// A whole amount.
    pub const fn new(value: i64, format: Format) -> Self {
        Quantity { amount: value as i128 * NANO, power: 0, format }
    }

    /// An amount in thousandths.
    pub const fn from_milli(milli: i64, format: Format) -> Self {
        Quantity { amount: milli as i128 * (NANO / 1000), power: 0, format }
    }

    /// `value` × 10^`scale`; parts finer than a nano are rounded away from zero. `None` when too
    /// large.
    pub fn from_scaled(value: i128, scale: i32, format: Format) -> Option<Self> {
        let (amount, power) = normal(value, scale.saturating_add(9))?;
        Some(Quantity { amount, power, format })
    }

    /// Parses a string, which may not contain blanks.
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
                // Beyond 30 digits, only the presence of further digits matters, for rounding.
                Some(longer) if longer < 10_i128.pow(30) && !lost => digits = longer,
                _ => {
                    lost |= digit != 0;
                    scale += 1;
                }
            }
        }
        let ((magnitude, power), format) = match multiplier {
            Multiplier::Decimal(exponent, format) => {
                let exponent = scale.saturating_add(exponent).saturating_add(9);
                (normal(digits, exponent).ok_or(QuantityError::TooLarge)?, format)
            }
            Multiplier::Binary(bits) => ((binary(digits, scale, bits), 0), Format::BinarySi),
        };
        let magnitude = if lost && scale < -9 { magnitude.saturating_add(1) } else { magnitude };
        // Amounts below one have no binary suffix.
        let format =
            if format == Format::BinarySi && magnitude > 0 && magnitude < NANO { Format::DecimalSi } else { format };
        Ok(Quantity { amount: if parts.positive { magnitude } else { -magnitude }, power, format })
    }

    /// Parses a JSON value: a string (with optional blanks around it), a number, or null for zero.
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

    /// The amount in nanos, saturating.
    pub const fn nanos(&self) -> i128 {
        match self.power {
            0 => self.amount,
            _ if self.amount < 0 => i128::MIN,
            _ => i128::MAX,
        }
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
        let scaled = scale_decimal(self.amount, self.power - 9 - scale);
        let scaled = scaled.unwrap_or(if self.amount < 0 { i128::MIN } else { i128::MAX });
        i64::try_from(scaled).unwrap_or(if scaled < 0 { i64::MIN } else { i64::MAX })
    }

    /// Rounds away from zero to a multiple of 10^`scale`. Returns true if the amount did not
    /// change.
    pub fn round_up(&mut self, scale: i32) -> bool {
        let digits = u32::try_from(scale + 9 - self.power).ok();
        let Some(step) = digits.and_then(|digits| 10_i128.checked_pow(digits)) else {
            return true;
        };
        let rounded = divide_away(self.amount, step);
        let exact = self.amount % step == 0;
        if !exact {
            self.set(normal(rounded, scale + 9));
        }
        exact
    }

    /// The amount as an integer, if it is one and fits.
    pub fn as_i64(&self) -> Option<i64> {
        let is_whole = self.power == 0 && self.amount % NANO == 0;
        is_whole.then(|| i64::try_from(self.amount / NANO).ok()).flatten()
    }

    /// The float nearest to the amount.
    pub fn as_f64(&self) -> f64 {
        if self.power != 0 {
            // Infinite if the amount exceeds the range of floats.
            return format!("{}e{}", self.amount, self.power - 9).parse().unwrap_or(f64::NAN);
        }
        let whole = self.amount / NANO;
        if self.amount % NANO == 0 { whole as f64 } else { self.decimal().parse().unwrap_or(whole as f64) }
    }

    /// An approximate float, computed cheaply as digits times a power of ten; the last place may be
    /// wrong.
    pub fn as_approximate_f64(&self) -> f64 {
        let (mut digits, mut exponent) = (self.amount, self.power - 9);
        while exponent < 0 && digits % 10 == 0 {
            digits /= 10;
            exponent += 1;
        }
        digits as f64 * 10_f64.powi(exponent)
    }

    /// The exact amount as a plain decimal number without suffix.
    pub fn decimal(&self) -> String {
        let magnitude = self.amount.unsigned_abs();
        let sign = if self.amount < 0 { "-" } else { "" };
        if self.power >= 9 {
            return format!("{sign}{magnitude}{}", "0".repeat((self.power - 9).unsigned_abs() as usize));
        }
        // At most nine digits follow the point.
        let digits = (9 - self.power).unsigned_abs();
        let unit = 10_u128.pow(digits);
        let (whole, fraction) = (magnitude / unit, magnitude % unit);
        if fraction == 0 {
            return format!("{sign}{whole}");
        }
        let fraction = format!("{fraction:0width$}", width = digits as usize);
        format!("{sign}{whole}.{}", fraction.trim_end_matches('0'))
    }

    /// True if the amount is zero.
    pub const fn is_zero(&self) -> bool {
        self.amount == 0
    }

    /// True if the amount is an integer.
    pub const fn is_whole(&self) -> bool {
        match self.power {
            0 => self.amount % NANO == 0,
            1..9 => self.amount % 10_i128.pow(9 - self.power.unsigned_abs()) == 0,
            _ => true,
        }
    }

    /// -1, 0 or 1.
    pub const fn sign(&self) -> i32 {
        self.amount.signum() as i32
    }

    /// Adds, saturating. Keeps the format unless this amount is zero, which takes the other's.
    pub fn add(&mut self, other: Quantity) {
        if self.is_zero() {
            self.format = other.format;
        }
        match self.amount.checked_add(other.amount) {
            Some(sum) if self.power == 0 && other.power == 0 => self.amount = sum,
            _ => self.set(sum((self.amount, self.power), (other.amount, other.power))),
        }
    }

    /// Subtracts, saturating. Keeps the format unless this amount is zero, which takes the other's.
    pub fn sub(&mut self, other: Quantity) {
        let mut other = other;
        other.neg();
        self.add(other);
    }

    /// Multiplies by an integer, saturating; returns `false` if the result exceeds 64 bits.
    pub fn mul(&mut self, factor: i64) -> bool {
        match self.amount.checked_mul(i128::from(factor)) {
            Some(product) if self.power == 0 => self.amount = product,
            _ => {
                if factor < 0 {
                    self.neg();
                }
                // Half of the digits times any factor fits.
                const HALF: i128 = 10_i128.pow(19);
                let factor = i128::from(factor.unsigned_abs());
                let (high, low) = (self.amount / HALF * factor, self.amount % HALF * factor);
                self.set(sum((high, self.power + 19), (low, self.power)));
            }
        }
        self.as_i64().is_some()
            || (self.power == 0 && self.amount % NANO != 0 && i64::try_from(self.amount / NANO).is_ok())
    }

    /// Changes the sign.
    pub fn neg(&mut self) {
        match self.amount.checked_neg() {
            Some(amount) => self.amount = amount,
            None => self.set(sum((i128::MAX, self.power), (1, self.power))),
        }
    }

    /// Sets the amount; `None` saturates in the amount's direction.
    fn set(&mut self, amount: Option<(i128, i32)>) {
        let largest = if self.amount < 0 { -i128::MAX } else { i128::MAX };
        (self.amount, self.power) = amount.unwrap_or((largest, POWER_MAX));
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

/// `value` × 10^`exponent` as an amount with its smallest power, rounded away from zero. `None` if
/// too large.
fn normal(value: i128, exponent: i32) -> Option<(i128, i32)> {
    if let Some(amount) = scale_decimal(value, exponent) {
        return Some((amount, 0));
    }
    // Store as many digits as fit.
    let (mut amount, mut power) = (value, exponent);
    while let Some(longer) = amount.checked_mul(10) {
        amount = longer;
        power -= 1;
    }
    (power <= POWER_MAX).then_some((amount, power))
}

/// The sum of two amounts with their powers. Digits after the 37th are dropped, so adding and then
/// removing an amount that is too small to show leaves the sum unchanged.
fn sum(a: (i128, i32), b: (i128, i32)) -> Option<(i128, i32)> {
    // Zero is valid with any power.
    let power = match (a.0, b.0) {
        (0, _) => return normal(b.0, b.1),
        (_, 0) => return normal(a.0, a.1),
        _ => a.1.max(b.1),
    };
    let aligned = |(amount, own): (i128, i32), room: i32| {
        let digits = (power + room - own).unsigned_abs();
        10_i128.checked_pow(digits).map_or(0, |unit| amount / unit)
    };
    match aligned(a, 0).checked_add(aligned(b, 0)) {
        Some(sum) => normal(sum, power),
        None => normal(aligned(a, 1) + aligned(b, 1), power + 1),
    }
}

/// `digits` × 10^`scale` × 2^`bits` in nanos, capped at the largest 64-bit amount of units.
fn binary(digits: i128, scale: i32, bits: u32) -> i128 {
    let cap = i128::from(i64::MAX) * NANO;
    let shift = 1_i128 << bits;
    // Dividing first would lose precision and multiplying first may overflow; amounts below the cap
    // do neither.
    let exponent = scale + 9;
    let product = match digits.checked_mul(shift) {
        Some(product) => scale_decimal(product, exponent),
        None => scale_decimal(digits, exponent).and_then(|nanos| nanos.checked_mul(shift)),
    };
    product.unwrap_or(cap).min(cap)
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.amount == other.amount && self.power == other.power
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
        match (self.power, other.power) {
            (a, b) if a == b => self.amount.cmp(&other.amount),
            // Neither amount is zero here, or the zero has no power.
            (a, b) if a > b => 0.cmp(&-self.amount.signum()),
            _ => 0.cmp(&other.amount.signum()),
        }
    }
}

impl std::str::FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Quantity::parse(text)
    }
}

impl Quantity {
    /// The canonical text of an amount that has a power.
    fn write_large(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimal = self.decimal();
        let zeros = match decimal.contains('.') {
            true => 0,
            false => decimal.len() - decimal.trim_end_matches('0').len(),
        };
        let largest = if self.format == Format::DecimalExponent { zeros } else { zeros.min(18) };
        let exponent = match decimal.split_once('.') {
            // As below, in steps of three decimal digits.
            Some((_, fraction)) => -(fraction.len().div_ceil(3) as i32) * 3,
            None => (largest / 3 * 3) as i32,
        };
        let mut digits = decimal.replace('.', "");
        if exponent < 0 {
            let fraction = decimal.len() - decimal.find('.').unwrap_or(decimal.len()) - 1;
            digits.push_str(&"0".repeat(exponent.unsigned_abs() as usize - fraction));
        } else {
            digits.truncate(digits.len() - exponent.unsigned_abs() as usize);
        }
        match self.format {
            _ if exponent == 0 => f.write_str(&digits),
            Format::DecimalExponent => write!(f, "{digits}e{exponent}"),
            _ => {
                let suffix = DECIMAL_SUFFIXES.iter().find(|(_, e)| *e == exponent).map_or("", |(suffix, _)| suffix);
                write!(f, "{digits}{suffix}")
            }
        }
    }
}

impl fmt::Display for Quantity {
    /// The canonical text: the largest suffix of the format that leaves a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.amount == 0 {
            return f.write_str("0");
        }
        let whole = self.power == 0 && self.amount % NANO == 0;
        let units = self.amount / NANO;
        if self.format == Format::BinarySi && whole && units.unsigned_abs() >= 1024 {
            let fitting = BINARY_SUFFIXES.iter().rev().find(|(_, bits)| units % (1_i128 << bits) == 0);
            return match fitting {
                Some((suffix, bits)) => write!(f, "{}{suffix}", units >> bits),
                None => write!(f, "{units}"),
            };
        }
        if self.power != 0 {
            return self.write_large(f);
        }
        // In steps of three decimal digits.
        let mut mantissa = self.amount;
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
    fn quantity_text_is_canonical_and_keeps_its_suffix_family() {
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
    fn malformed_quantities_are_rejected() {
        for text in ["", " 1", "1 ", "1.1.M", "1K", "1i", "abc", "+", "1e", "1ee3", "1Mi2"] {
            assert!(Quantity::parse(text).is_err(), "{text}");
        }
    }

    fn read(text: &str) -> Quantity {
        Quantity::parse(text).expect("parses")
    }

    #[test]
    fn large_amounts_are_kept_with_a_power_of_ten() {
        for (text, shown) in [
            ("1e30", "1e30"),
            ("12e500", "1200e498"),
            ("-1200000000000000000000000000000000000000", "-1200000000000000000000E"),
            ("170141183460469231731687303716", "170141183460469231731687303716"),
            ("200000000000000000000000000000.5", "200000000000000000000000000000"),
        ] {
            assert_eq!(read(text), read(shown), "{text}");
            assert_eq!(canonical(shown), canonical(text), "{text}");
        }
        assert_eq!(canonical("12e500"), "1200e498");
        assert_eq!(canonical("-1200000000000000000000000000000000000000"), "-1200000000000000000000E");
        assert_eq!(canonical("170141183460469231731687303716"), "170141183460469231731687303716");
        let ordered =
            ["-1e500", "-1e30", "-1e29", "0", "1n", "1e29", "1.8e29", "1e30", "9e30", "1e31", "1e500"].map(read);
        for (at, amount) in ordered.iter().enumerate() {
            for (other_at, other) in ordered.iter().enumerate() {
                assert_eq!(amount.cmp(other), at.cmp(&other_at), "{amount} and {other}");
            }
        }
        let large = read("1e500");
        assert_eq!((large.nanos(), large.value(), large.as_i64()), (i128::MAX, i64::MAX, None));
        assert_eq!((large.as_f64(), read("-1e500").as_approximate_f64()), (f64::INFINITY, f64::NEG_INFINITY));
        assert_eq!((read("12e30").as_f64(), read("12e30").decimal()), (12e30, format!("12{}", "0".repeat(30))));
        for text in ["1e1100", "1e2147483647", "-1e9999"] {
            assert_eq!(Quantity::parse(text), Err(QuantityError::TooLarge), "{text}");
        }
        assert_eq!(read("1e-2147483640"), read("1n"));
        assert!(["0", "1", "1e29", "1e30", "-1e31", "1e500"].iter().all(|text| read(text).is_whole()));
        assert!(!["1n", "-1.5"].iter().any(|text| read(text).is_whole()));
        // An amount beyond an integer of nanos, with an additional half unit.
        let digits = 2 * 10_i128.pow(37) + 5 * 10_i128.pow(7);
        let half = Quantity::from_scaled(digits, -8, Format::DecimalSi).expect("it can be kept");
        assert!(!half.is_whole());
        assert_eq!(half.decimal(), "200000000000000000000000000000.5");
        assert_eq!(half.to_string(), "200000000000000000000000000000500m");
    }

    #[test]
    fn sums_beyond_an_integer_of_nanos_return_to_it_when_they_shrink() {
        let mut amount = read("1e29");
        amount.add(amount);
        assert_eq!((amount, amount.to_string().as_str()), (read("2e29"), "200e27"));
        amount.sub(read("1e29"));
        amount.sub(read("1e29"));
        assert!(amount.is_zero() && amount.power == 0);
        let mut amount = read("3e28");
        assert!(!amount.mul(-20));
        assert_eq!(amount, read("-6e29"));
        assert!(!amount.mul(i64::MIN));
        assert_eq!(amount, read("5534023222112865484800000000000000000000000000000"));
        amount.neg();
        assert_eq!(amount, read("-5534023222112865484800000000000000000000000000000"));
        let (small, mut amount) = (read("1n"), read("1e40"));
        amount.add(small);
        amount.sub(small);
        assert_eq!(amount, read("1e40"));
        assert!(amount.round_up(3) && amount == read("1e40"));
        let mut amount = read("123456789e30");
        assert!(!amount.round_up(32));
        assert_eq!(amount, read("1234568e32"));
        for _ in 0..200 {
            amount.mul(i64::MAX);
        }
        let largest = amount;
        amount.add(largest);
        assert!(amount == largest && amount > read("1e1000"), "it stays at the largest");
        amount.neg();
        assert!(amount < read("-1e1000"));
    }

    #[test]
    fn sums_and_products_are_those_of_numbers_at_any_power() {
        let numbers = [-1_000_000_i64, -999_983, -1024, -10, -7, -1, 0, 1, 2, 5, 10, 99, 4096, 123_457, 1_000_000];
        for power in 0..60 {
            let scaled = |value: i64| {
                Quantity::from_scaled(i128::from(value), power, Format::DecimalSi).expect("it can be kept")
            };
            for a in numbers {
                for b in numbers {
                    let (mut sum, mut product) = (scaled(a), scaled(a));
                    sum.add(scaled(b));
                    assert_eq!(sum, scaled(a + b), "{a} + {b} at {power}");
                    sum.sub(scaled(b));
                    assert_eq!(sum, scaled(a), "{a} + {b} - {b} at {power}");
                    product.mul(b);
                    assert_eq!(product, scaled(a * b), "{a} * {b} at {power}");
                    assert_eq!(scaled(a).cmp(&scaled(b)), a.cmp(&b), "{a} and {b} at {power}");
                    assert_eq!(Quantity::parse(&product.to_string()), Ok(product), "{product}");
                    assert_eq!(Quantity::parse(&product.decimal()), Ok(product), "{product}");
                }
            }
        }
    }

    #[test]
    fn a_sum_has_the_format_of_the_first_amount_that_is_not_zero() {
        let mut sum = Quantity::ZERO;
        sum.add(Quantity::parse("1Gi").expect("parses"));
        assert_eq!(sum.to_string(), "1Gi");
        sum.add(Quantity::parse("1k").expect("parses"));
        assert_eq!(sum.to_string(), "1073742824");
    }
}
