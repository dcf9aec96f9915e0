//! Suites of quantities, numbers, times, versions, names of kinds, YAML streams and tables.

use berth_apimachinery::quantity::{self, Format, Quantity};
use berth_apimachinery::{decode, int_or_string, meta, revision, table, times};
use serde_json::{Value, json};

use super::{equal, input, input_text, outcome, same, want};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "quantity-parse" => quantity_parse,
        "quantity-split" => quantity_split,
        "quantity-format" => quantity_format,
        "quantity-round" => quantity_round,
        "quantity-arithmetic" => quantity_arithmetic,
        "quantity-float" => quantity_float,
        "quantity-json" => quantity_json,
        "int-or-string" => int_or_percent,
        "json-numbers" => json_numbers,
        "time-json" => time_json,
        "duration-human" => duration_human,
        "resource-version-compare" => version_compare,
        "resource-version-parse" => version_parse,
        "kube-version-order" => kube_version,
        "group-version-parse" => group_version,
        "kind-to-resource" => kind_to_resource,
        "yaml-or-json-stream" => stream,
        _ => return None,
    })
}

fn format(name: &str) -> Format {
    match name {
        "DecimalSI" => Format::DecimalSi,
        "BinarySI" => Format::BinarySi,
        _ => Format::DecimalExponent,
    }
}

/// Reads a quantity that is recorded as text, or as exact decimal and format.
fn read(value: &Value) -> Result<Quantity, String> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    if let Some(text) = text("text") {
        return Quantity::parse(text).map_err(|e| e.to_string());
    }
    decimal(text("decimal").unwrap_or_default(), format(text("format").unwrap_or_default()))
}

fn decimal(text: &str, format: Format) -> Result<Quantity, String> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("{whole}{fraction}");
    // Some recorded decimals end in hundreds of zeros.
    let short = digits.trim_end_matches('0');
    let scale = (digits.len() - short.len()) as i32 - fraction.len() as i32;
    let digits: i128 =
        if matches!(short, "" | "-") { Ok(0) } else { short.parse() }.map_err(|_| format!("{text} is out of range"))?;
    Quantity::from_scaled(digits, scale, format).ok_or(format!("{text} is out of range"))
}

/// Compares a quantity with an exact decimal number.
fn is_decimal(what: &str, quantity: Quantity, wanted: &Value) -> Verdict {
    match wanted.as_str() {
        None => Ok(()),
        Some(text) if decimal(text, Format::DecimalSi)? == quantity => Ok(()),
        Some(text) => Err(format!("{what}: got {}, want {text}", quantity.decimal())),
    }
}

fn quantity_parse(case: &Case) -> Verdict {
    let Some(got) = outcome(case, Quantity::parse(input_text(case, "text")))? else { return Ok(()) };
    is_decimal("decimal", got, want(case, "decimal"))?;
    if let Some(wanted) = want(case, "format").as_str() {
        equal("format", &json!(got.format().name()), &json!(wanted))?;
    }
    match want(case, "string") {
        Value::Null => Ok(()),
        wanted => equal("string", &json!(got.to_string()), wanted),
    }
}

fn quantity_split(case: &Case) -> Verdict {
    let got = quantity::split(input_text(case, "text")).map_err(|e| e.to_string())?;
    let got = json!({"positive": got.positive, "value": got.value, "num": got.integer, "denom": got.fraction, "suffix": got.suffix});
    equal("parts", &got, case.want.whole())
}

fn quantity_format(case: &Case) -> Verdict {
    let number = |key: &str| input(case, key).as_i64().unwrap_or_default();
    let got = match input_text(case, "unit") {
        "one" => Quantity::new(number("value"), format(input_text(case, "format"))),
        "milli" => Quantity::from_milli(number("value"), format(input_text(case, "format"))),
        "scaled" => {
            let scale = number("scale") as i32;
            Quantity::from_scaled(i128::from(number("value")), scale, Format::DecimalSi).ok_or("out of range")?
        }
        _ => match input(case, "quantity") {
            Value::Null => read(case.input.whole())?,
            quantity => read(quantity)?,
        },
    };
    equal("string", &json!(got.to_string()), want(case, "string"))?;
    if let Some(alternate) = want(case, "alternate").as_str() {
        let alternate = Quantity::parse(alternate).map_err(|e| e.to_string())?;
        if alternate != got {
            return Err(format!("alternate: {alternate} is not {got}"));
        }
    }
    if !want(case, "sameValueAs").is_null() && read(want(case, "sameValueAs"))? != got {
        return Err(format!("want the value of {}, got {got}", want(case, "sameValueAs")));
    }
    if want(case, "roundTripsMilliValue") == &json!(true) {
        equal("milliValue", &json!(got.milli_value()), input(case, "value"))?;
    }
    Ok(())
}

fn quantity_round(case: &Case) -> Verdict {
    let mut got = read(case.input.whole())?;
    let scale = input(case, "scale").as_i64().unwrap_or_default() as i32;
    if !want(case, "scaledValue").is_null() {
        return equal("scaledValue", &json!(got.scaled_value(scale)), want(case, "scaledValue"));
    }
    let exact = got.round_up(scale);
    is_decimal("decimal", got, want(case, "decimal"))?;
    equal("exact", &json!(exact), want(case, "exact"))
}

fn quantity_arithmetic(case: &Case) -> Verdict {
    let mut got = read(input(case, "a"))?;
    match input_text(case, "op") {
        "cmp" => {
            let order = got.cmp(&read(input(case, "b"))?) as i8;
            return equal("cmp", &json!(order), want(case, "cmp"));
        }
        "add" => got.add(read(input(case, "b"))?),
        "sub" => got.sub(read(input(case, "b"))?),
        "neg" => got.neg(),
        "mul" => {
            let fits = got.mul(input(case, "b").as_i64().ok_or("input.b is not an integer")?);
            equal("fitsInt64", &json!(fits), want(case, "fitsInt64"))?;
        }
        other => return Err(format!("unknown op {other}")),
    }
    is_decimal("decimal", got, want(case, "decimal"))?;
    if let Some(wanted) = want(case, "format").as_str() {
        equal("format", &json!(got.format().name()), &json!(wanted))?;
    }
    match want(case, "string") {
        Value::Null => Ok(()),
        wanted => equal("string", &json!(got.to_string()), wanted),
    }
}

fn quantity_float(case: &Case) -> Verdict {
    let got = match input(case, "quantity") {
        Value::Null => read(case.input.whole())?,
        quantity => read(quantity)?,
    };
    // Floats that JSON cannot express, such as infinity, are recorded as strings.
    let wanted = want(case, "float");
    let wanted = wanted.as_f64().or_else(|| wanted.as_str()?.parse().ok()).ok_or("want.float is not a number")?;
    let got = if input_text(case, "mode") == "approximate" { got.as_approximate_f64() } else { got.as_f64() };
    if got == wanted { Ok(()) } else { Err(format!("got {got}, want {wanted}")) }
}

fn quantity_json(case: &Case) -> Verdict {
    let value: Value = serde_json::from_str(input_text(case, "json")).map_err(|e| e.to_string())?;
    let got = Quantity::from_json(&value).map_err(|e| e.to_string())?;
    equal("string", &json!(got.to_string()), want(case, "string"))
}

fn int_or_percent(case: &Case) -> Verdict {
    match input_text(case, "op") {
        "parse" => equal("value", &int_or_string::parse(input_text(case, "text")), want(case, "value")),
        "numberOrPercent" => {
            let Some(got) = outcome(case, int_or_string::amount(input(case, "value")))? else { return Ok(()) };
            let (value, percent) = match got {
                int_or_string::Amount::Number(value) => (value, false),
                int_or_string::Amount::Percent(value) => (value, true),
            };
            equal("value", &json!(value), want(case, "value"))?;
            equal("isPercent", &json!(percent), want(case, "isPercent"))
        }
        "scale" => {
            let total = input(case, "total").as_i64().unwrap_or_default();
            let up = input(case, "roundUp").as_bool().unwrap_or_default();
            match outcome(case, int_or_string::scaled(input(case, "value"), total, up))? {
                Some(got) => equal("value", &json!(got), want(case, "value")),
                None => Ok(()),
            }
        }
        _ => {
            let text = input(case, "json").as_str().unwrap_or_default();
            let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
            let value = value.get("val").cloned().unwrap_or(value);
            equal("value", &value, want(case, "value"))
        }
    }
}

fn json_numbers(case: &Case) -> Verdict {
    let decoded = decode::json(input_text(case, "json").as_bytes()).map(|decoded| decoded.value);
    let Some(value) = outcome(case, decoded)? else { return Ok(()) };
    equal("value", &value, want(case, "value"))?;
    equal("json", &json!(decode::to_text(&value)), want(case, "json"))
}

fn time_json(case: &Case) -> Verdict {
    const ZERO: &str = "0001-01-01T00:00:00Z";
    let kind = input_text(case, "type");
    let show = |text: &str| -> Result<Value, String> {
        if text == ZERO {
            return Ok(Value::Null);
        }
        let at = times::parse_time(text)?;
        Ok(json!(if kind == "microtime" { times::micro_time(at) } else { times::time(at) }))
    };
    if let Some(text) = input(case, "time").as_str() {
        let wanted: Value =
            serde_json::from_str(want(case, "json").as_str().unwrap_or_default()).map_err(|e| e.to_string())?;
        return equal("json", &json!({"t": show(text)?}), &wanted);
    }
    if let Some(text) = input(case, "duration").as_str() {
        let got = times::duration(times::parse_duration(text)?);
        let wanted: Value =
            serde_json::from_str(want(case, "json").as_str().unwrap_or_default()).map_err(|e| e.to_string())?;
        return equal("json", &json!({"d": got}), &wanted);
    }
    let value: Value = serde_json::from_str(input_text(case, "json")).map_err(|e| e.to_string())?;
    if kind == "duration" {
        let result = times::parse_duration(value["d"].as_str().unwrap_or_default());
        let Some(got) = outcome(case, result)? else { return Ok(()) };
        return equal("duration", &json!(times::duration(got)), want(case, "duration"));
    }
    let wanted = want(case, "time").as_str().unwrap_or_default();
    match value["t"].as_str() {
        None => equal("time", &json!(ZERO), &json!(wanted)),
        Some(text) => {
            let (got, wanted) = (times::parse_time(text)?, times::parse_time(wanted)?);
            if got == wanted { Ok(()) } else { Err(format!("got {got}, want {wanted}")) }
        }
    }
}

fn duration_human(case: &Case) -> Verdict {
    let seconds = times::parse_duration(input_text(case, "duration"))?.as_secs();
    let got = if input_text(case, "style") == "short" {
        table::short_duration(seconds)
    } else {
        table::human_duration(seconds)
    };
    equal("text", &json!(got), want(case, "text"))
}

fn version_compare(case: &Case) -> Verdict {
    let result = revision::compare(input_text(case, "a"), input_text(case, "b"));
    match outcome(case, result)? {
        Some(order) => equal("cmp", &json!(order as i8), want(case, "cmp")),
        None => Ok(()),
    }
}

fn version_parse(case: &Case) -> Verdict {
    // The suite is recorded twice, with different field names.
    let text = input(case, "text").as_str().or(input(case, "version").as_str()).unwrap_or_default();
    let fails = super::wants_error(case) || want(case, "err") == &json!(true);
    match (revision::parse(text), fails) {
        (Ok(got), false) => {
            let wanted = case.want.get("value").or(case.want.get("expectVersion"));
            equal("value", &json!(got), wanted.unwrap_or(&json!(0)))
        }
        (Err(_), true) => Ok(()),
        (result, _) => Err(format!("got {result:?}")),
    }
}

fn kube_version(case: &Case) -> Verdict {
    let greater = meta::compare_versions(input_text(case, "a"), input_text(case, "b")).is_lt();
    equal("aGreater", &json!(greater), want(case, "aGreater"))
}

fn group_version(case: &Case) -> Verdict {
    let text = input_text(case, "text");
    match input_text(case, "op") {
        "GroupResourceParse" => {
            let got = meta::GroupResource::parse(text);
            equal("out", &json!({"Group": got.group, "Resource": got.resource}), want(case, "out"))
        }
        "ParseGroupKind" => {
            let got = meta::GroupKind::parse(text);
            equal("out", &json!({"Group": got.group, "Kind": got.kind}), want(case, "out"))
        }
        "ParseResourceArg" => {
            let gvr = meta::GroupVersionResource::parse_argument(text)
                .map(|gvr| json!({"Group": gvr.group, "Version": gvr.version, "Resource": gvr.resource}));
            let gr = meta::GroupResource::parse(text);
            equal("gvr", &gvr.unwrap_or_default(), want(case, "gvr"))?;
            equal("gr", &json!({"Group": gr.group, "Resource": gr.resource}), want(case, "gr"))
        }
        "ParseKindArg" => {
            let gvk = meta::GroupVersionKind::parse_argument(text)
                .map(|gvk| json!({"Group": gvk.group, "Version": gvk.version, "Kind": gvk.kind}));
            let gk = meta::GroupKind::parse(text);
            equal("gvk", &gvk.unwrap_or_default(), want(case, "gvk"))?;
            equal("gk", &json!({"Group": gk.group, "Kind": gk.kind}), want(case, "gk"))
        }
        _ => match outcome(case, meta::GroupVersion::parse(text))? {
            Some(got) => equal("parsed", &json!({"group": got.group, "version": got.version}), case.want.whole()),
            None => Ok(()),
        },
    }
}

fn kind_to_resource(case: &Case) -> Verdict {
    let (plural, singular) = meta::GroupVersionKind::new("", "v1", input_text(case, "kind")).guess_resource();
    equal("names", &json!({"plural": plural.resource, "singular": singular.resource}), case.want.whole())
}

fn stream(case: &Case) -> Verdict {
    let result = decode::documents(input_text(case, "text"));
    match outcome(case, result)? {
        Some(documents) if same(&Value::from(documents.clone()), want(case, "documents")) => Ok(()),
        Some(documents) => Err(format!("got {documents:?}, want {}", want(case, "documents"))),
        None => Ok(()),
    }
}
