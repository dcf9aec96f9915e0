//! Suites of the function library and its costs.

use berth_cel::authorization::{Attributes, Authorizer, Check, Verdict as Decision};
use berth_cel::estimate::Sizes;
use berth_cel::types::Type;
use berth_cel::value::Value as Cel;
use berth_cel::{Env, Run};
use serde_json::{Value, json};

use super::{Case, Runner, Verdict, same, text, want};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "cel-library" => |case| run(case, false),
        "cel-library-cost" => |case| run(case, true),
        _ => return None,
    })
}

struct AllowAll;

impl Authorizer for AllowAll {
    fn authorize(&self, _: &Attributes) -> Decision {
        Decision { allowed: true, ..Decision::default() }
    }
}

/// The assumption of upstream's cost tests: strings have at most twelve characters, unless the
/// expression determines their length.
struct ShortTexts;

impl Sizes for ShortTexts {
    fn max_size(&self, _: &[&str], type_: &Type) -> Option<u64> {
        matches!(type_, Type::String | Type::Bytes).then_some(12)
    }
}

fn run(case: &Case, cost: bool) -> Verdict {
    let authorizer = Type::Opaque("kubernetes.authorization.Authorizer");
    // Upstream's cost tests do not fold constants, and enable mixed literals and patches.
    let env = Env::new(berth_cel::NEWEST).variable("authorizer", authorizer).fold_constants(!cost);
    let env = if cost { env.mixed_literals(true).patches() } else { env };
    let program = match env.compile(text(&case.input, "expression")) {
        Ok(program) => program,
        Err(issues) => {
            let got: Vec<&str> = issues.messages().collect();
            let wanted: Vec<&str> =
                want(case, "compileErrors").as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            return same("compile errors", got, wanted);
        }
    };
    let run = Run { authorizer: Some(&AllowAll), ..Run::default() };
    let ran = program.run(&[Check::authorizer().into()], run);
    if cost {
        let estimate = program.estimate(&ShortTexts);
        let wanted = want(case, "estimatedCost");
        let got = ((Some(estimate.min), Some(estimate.max)), Some(ran.cost));
        let bounds = (wanted["min"].as_u64(), wanted["max"].as_u64());
        same("estimate and cost", got, (bounds, want(case, "runtimeCost").as_u64()))?;
    }
    match (ran.result, want(case, "runtimeError").as_str()) {
        (Err(error), Some(wanted)) => same("error", error.to_string().as_str(), wanted),
        (Err(error), None) => Err(format!("error: {error}")),
        (Ok(value), Some(wanted)) => Err(format!("got {}, want error {wanted}", shown(&value))),
        (Ok(value), None) => same("result", &shown(&value), want(case, "result")),
    }
}

/// A value in the form of the recorded cases.
fn shown(value: &Cel<'_>) -> Value {
    let name = value.type_name();
    match value {
        Cel::List(_) => json!({"type": name, "value": items(value)}),
        Cel::Map(map) => {
            let entries: Vec<Value> =
                map.entries().iter().map(|(key, value)| json!([shown(key), shown(value)])).collect();
            json!({"type": name, "entries": entries})
        }
        Cel::Bytes(octets) => {
            let octets: Vec<String> = octets.iter().map(u8::to_string).collect();
            json!({"type": name, "value": format!("[{}]", octets.join(" "))})
        }
        Cel::Duration(_) => json!({"type": "duration", "value": value.to_json()}),
        Cel::Timestamp(_) => {
            let text = value.to_json().and_then(|json| json.as_str()?.parse::<jiff::Timestamp>().ok());
            json!({"type": "timestamp", "value": text.map(|at| at.to_string())})
        }
        // Upstream prints this text for all authorizer types.
        _ if name.starts_with("kubernetes.authorization.") => json!({"type": name, "value": "no such overload"}),
        Cel::Optional(None) => json!({"type": "optional", "value": null}),
        Cel::Optional(Some(inner)) => json!({"type": "optional", "value": shown(inner)}),
        Cel::Ip(ip) => json!({"type": name, "value": ip.to_string()}),
        Cel::Cidr(cidr) => json!({"type": name, "value": cidr.to_string()}),
        Cel::Url(url) => json!({"type": name, "value": url.to_string()}),
        Cel::Semver(version) => json!({"type": name, "value": version.to_string()}),
        Cel::Quantity(quantity) => json!({"type": name, "value": quantity.to_string()}),
        other => json!({"type": name, "value": other.to_json()}),
    }
}

fn items(value: &Cel<'_>) -> Value {
    match value {
        Cel::List(list) => (0..list.len()).filter_map(|index| list.item(index)).map(|item| shown(&item)).collect(),
        _ => Value::Null,
    }
}
