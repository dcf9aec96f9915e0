//! Suites of `x-kubernetes-validations`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use berth_apimachinery::field::Path;
use berth_apimachinery::schema::Schema;
use berth_cel::rules::{self, ArrayNotation, Correlated, MapList, Request};
use berth_cel::types::Type;
use berth_cel::{Decl, Env, Rules};
use serde_json::Value;

use super::{Case, Runner, Verdict, flag, input, same, text, want};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "cel-rules"
        | "cel-rules-in-validation"
        | "cel-rules-limits"
        | "cel-rules-messages"
        | "cel-rules-optional-old-self"
        | "cel-rules-ratcheting"
        | "cel-rules-schema-levels"
        | "cel-rules-runtime-cost" => validate,
        "cel-rules-compile" => |case| compile(case, false),
        "cel-rules-estimated-cost" => |case| compile(case, true),
        "cel-rules-field-path" => field_path,
        "cel-correlation" => correlation,
        "cel-map-list" => map_list,
        "cel-max-length-estimate" => max_length,
        "cel-escaping" => escaping,
        _ => return None,
    })
}

fn schema(value: &Value) -> Result<Arc<Schema>, String> {
    Schema::parse_crd(value).map_err(|error| error.to_string())
}

fn validate(case: &Case) -> Verdict {
    let schema = schema(input(case, "schema"))?;
    let resource = flag(&case.input, "isResourceRoot");
    let old = input(case, "oldObject");
    let cancelled = AtomicBool::new(true);
    let request = Request {
        old: (!old.is_null()).then_some(old),
        budget: input(case, "costBudget").as_u64(),
        call_limit: Some(input(case, "perCallLimit").as_u64().unwrap_or(rules::CALL_COST_MAX)),
        ratcheting: flag(&case.input, "ratcheting"),
        interrupt: flag(&case.input, "contextCancelled").then_some(&cancelled),
    };
    let path = Path::new(text(&case.input, "path"));
    let findings = match Rules::of_schema(&schema, resource, Env::new(version(case))) {
        Some(rules) => rules.validate(input(case, "object"), &path, request),
        None => rules::Findings::default(),
    };
    let mut got: Vec<(String, String, String)> = findings
        .errors
        .iter()
        .map(|error| (error.kind.reason().to_owned(), error.field.clone(), error.to_string()))
        .collect();
    let mut wanted: Vec<(String, String, String)> = want(case, "errors")
        .as_array()
        .into_iter()
        .flatten()
        .map(|error| (text(error, "type").to_owned(), text(error, "field").to_owned(), text(error, "error").to_owned()))
        .collect();
    got.sort();
    wanted.sort();
    same("errors", got, wanted)?;
    let mut warnings: Vec<String> = findings.warnings.iter().map(ToString::to_string).collect();
    let mut wanted: Vec<String> =
        want(case, "warnings").as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    warnings.sort();
    wanted.sort();
    same("warnings", warnings, wanted)?;
    same("budget exceeded", findings.exhausted, flag(&case.want, "budgetExceeded"))?;
    let varies = flag(&case.want, "costVaries");
    if !varies && let Some(wanted) = want(case, "cost").as_u64() {
        same("cost", findings.cost, wanted)?;
    }
    match want(case, "compiled").as_array() {
        None => Ok(()),
        Some(wanted) => {
            let env = Env::new(version(case));
            let known = Known { rules: false, messages: false };
            same_compiled(&rules::compile(&schema, resource, &env, &env, &known), wanted, true)
        }
    }
}

/// Whether the stored object had the case's rules and message expressions.
struct Known {
    rules: bool,
    messages: bool,
}

impl rules::Stored for Known {
    fn has_rule(&self, _: &str) -> bool {
        self.rules
    }

    fn has_message(&self, _: &str) -> bool {
        self.messages
    }
}

/// The minor version of Kubernetes that the case's expressions must be compatible with.
pub fn version(case: &Case) -> u32 {
    let version = input(case, "celCompatibilityVersion").as_str().and_then(|version| version.split_once('.'));
    version.and_then(|(_, minor)| minor.parse().ok()).unwrap_or(berth_cel::NEWEST)
}

fn compile(case: &Case, cost: bool) -> Verdict {
    let schema = schema(input(case, "schema"))?;
    let env = Env::new(version(case));
    let stored = env.clone().constant_function("test", Vec::new(), Type::Bool).constant_function(
        "fakeFunction",
        vec![Type::String],
        Type::String,
    );
    // The stored expressions were not recorded. The names of the cases imply them.
    let known = Known {
        rules: ["unmodified expression", "if expressions are unchanged", "if message expression is changed"]
            .iter()
            .any(|part| case.name.contains(part)),
        messages: ["unmodified expression", "if expressions are unchanged", "if rule expression is changed"]
            .iter()
            .any(|part| case.name.contains(part)),
    };
    let compiled = rules::compile(&schema, false, &env, &stored, &known);
    same_compiled(&compiled, want(case, "results").as_array().map_or(&[], Vec::as_slice), cost)
}

/// Compares the compiled rules: errors, use of `oldSelf`, and the cardinality (how often a rule can
/// run). With `cost`, also the estimated cost of a run.
fn same_compiled(compiled: &[rules::Compiled], wanted: &[Value], cost: bool) -> Verdict {
    same("rules", compiled.len(), wanted.len())?;
    for (got, wanted) in compiled.iter().zip(wanted) {
        let error = match &got.program {
            Some(Err(error)) => Some(error.as_str()),
            _ => None,
        };
        let detail = |field: &str| wanted.get(field).map(|error| text(error, "detail"));
        same(&format!("error of {}", got.rule.rule), error, detail("error"))?;
        let error = match &got.message {
            Some(Err(error)) => Some(error.as_str()),
            _ => None,
        };
        same(&format!("error of message of {}", got.rule.rule), error, detail("messageExpressionError"))?;
        same("uses oldSelf", got.uses_old_self, flag(wanted, "usesOldSelf"))?;
        if cost {
            same("estimated cost", got.max_cost, wanted["maxCost"].as_u64().unwrap_or_default())?;
            same(
                "cost of message",
                got.message_max_cost,
                wanted["messageExpressionMaxCost"].as_u64().unwrap_or_default(),
            )?;
        }
        same("cardinality", Some(got.max_cardinality), wanted["maxCardinality"].as_u64())?;
    }
    Ok(())
}

fn field_path(case: &Case) -> Verdict {
    let root = input(case, "schema");
    let schema = schema(root)?;
    // The only option forbids array notation (`['field']`).
    let notation = match input(case, "options").as_u64() {
        None | Some(0) => ArrayNotation::Allowed,
        Some(_) => ArrayNotation::Refused,
    };
    let result = rules::valid_field_path(text(&case.input, "fieldPath"), &schema, notation);
    match (result, want(case, "err").as_str()) {
        (Err(error), Some(wanted)) if error.contains(wanted) => Ok(()),
        (Ok((path, found)), None) => {
            same("path", path.as_str(), text(&case.want, "path"))?;
            let wanted = self::schema(want(case, "schema"))?;
            same("type", found.schema_type, wanted.schema_type)?;
            same(
                "properties",
                found.properties.keys().collect::<Vec<_>>(),
                wanted.properties.keys().collect::<Vec<_>>(),
            )
        }
        (got, wanted) => Err(format!("got {:?}, want error {wanted:?}", got.map(|(path, _)| path))),
    }
}

fn correlation(case: &Case) -> Verdict {
    let schema = schema(&input(case, "schema")["schema"])?;
    let mut at = Some(Correlated::new(input(case, "rootObject"), input(case, "rootOldObject"), &schema));
    for step in input(case, "keyPath").as_array().into_iter().flatten() {
        at = at.and_then(|at| match step {
            Value::String(key) => at.key(key),
            step => at.index(usize::try_from(step.as_u64()?).ok()?),
        });
    }
    let old = case.input.get("oldValue");
    match at {
        None => same("old value", None, old),
        Some(found) => {
            same("old value", Some(found.values().1), old)?;
            same("new value", Some(found.values().0), case.input.get("newValue"))?;
            // Upstream's cases record equality, but not inequality.
            let wanted = flag(&case.want, "expectEqual");
            same("equal", found.is_unchanged() || !wanted, true)
        }
    }
}

fn map_list(case: &Case) -> Verdict {
    // One case has the type "map", which no schema has. It stands for a type that is not a list.
    let mut declared = input(case, "sts").clone();
    if text(&declared, "type") == "map" {
        declared["type"] = Value::from("object");
    }
    let schema = schema(&declared)?;
    let items = input(case, "items").as_array().cloned().unwrap_or_default();
    let query = input(case, "query");
    let list = MapList::new(&schema, &items);
    let found = list.as_ref().and_then(|list| list.get(query));
    same("item", found, case.want.get("expected"))
}

fn max_length(case: &Case) -> Verdict {
    let schema = schema(input(case, "inputSchema"))?;
    let decl = Decl::of_schema(&schema, false, "selfType").ok_or("no declaration")?;
    same("elements", decl.max_elements(), want(case, "expectedMaxElements").as_u64())
}

fn escaping(case: &Case) -> Verdict {
    let name = text(&case.input, "unescaped");
    let escaped = berth_cel::escape(name);
    let wanted = text(&case.want, "escaped");
    if flag(&case.want, "unescapable") {
        return same("escaped", escaped, None);
    }
    if name.is_empty() {
        // The case records unescaping only.
        return same("unescaped", berth_cel::unescape(wanted), None);
    }
    same("escaped", escaped.as_deref(), Some(wanted))?;
    same("unescaped", berth_cel::unescape(wanted).as_deref(), Some(name))
}
