//! Suites of validating admission policies and match conditions.

use std::cell::RefCell;
use std::collections::BTreeMap;

use berth_apimachinery::schema::Schema;
use berth_apimachinery::selector::{FieldSelector, LabelSelector};
use berth_cel::admission::conditions::{self, Matched};
use berth_cel::admission::policy::{self, Annotation, Expression, FailurePolicy, OutOfBudget, Validation};
use berth_cel::admission::{CachingAuthorizer, Declared, Inputs, environment, typecheck};
use berth_cel::authorization::{Attributes, Authorizer, User, Verdict as Decision};
use berth_cel::types::Type;
use berth_cel::value::{Value as Cel, untyped};
use berth_cel::{Decl, Env, Variables};
use serde_json::{Value, json};

use super::{Case, Runner, Verdict, flag, input, same, text, want};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "vap-compile" => compile,
        "vap-expressions" => expressions,
        "vap-variables" => variables,
        "vap-cost-budget" => cost_budget,
        "vap-decisions" => decisions,
        "vap-typecheck" => type_check,
        "webhook-match-conditions" => match_conditions,
        "authorizer-caching" => caching,
        _ => return None,
    })
}

/// The environment of a case: its version, and the function `test` for stored expressions.
fn base(case: &Case) -> Env {
    let version = input(case, "compatibilityVersion").as_str().and_then(|version| version.split_once('.'));
    let version = version.and_then(|(_, minor)| minor.parse().ok()).unwrap_or(berth_cel::NEWEST);
    let env = Env::new(version);
    let env = match input(case, "enableSelectors").as_bool() {
        Some(enabled) => env.selectors(enabled),
        None => env,
    };
    if text(&case.input, "envType") == "StoredExpressions" {
        env.constant_function("test", Vec::new(), Type::Bool)
    } else {
        env
    }
}

fn compile(case: &Case) -> Verdict {
    let declared = Declared {
        params: flag(&case.input, "hasParams"),
        authorizer: flag(&case.input, "hasAuthorizer"),
        ..Declared::default()
    };
    let env = environment(base(case), &declared);
    for expression in input(case, "expressions").as_array().into_iter().flatten().filter_map(Value::as_str) {
        if let Some(error) = Expression::compile(&env, expression, &[Type::Bool]).error() {
            return Err(format!("{expression}: {error}"));
        }
    }
    for (expression, wanted) in want(case, "errorExpressions").as_object().into_iter().flatten() {
        let compiled = Expression::compile(&env, expression, &[Type::Bool]);
        let wanted = wanted.as_str().unwrap_or_default();
        if !compiled.error().is_some_and(|error| error.contains(wanted)) {
            return Err(format!("{expression}: got error {:?}, want {wanted}", compiled.error()));
        }
    }
    Ok(())
}

/// The request of a case, in the form of an AdmissionReview.
fn request(attributes: &Value) -> Value {
    let mut request = json!({
        "kind": attributes["kind"], "resource": attributes["resource"], "requestKind": attributes["kind"],
        "requestResource": attributes["resource"], "operation": attributes["operation"],
        "dryRun": attributes["dryRun"], "options": attributes["options"],
        "userInfo": attributes.get("userInfo").cloned().unwrap_or_else(|| json!({})),
    });
    for (field, from) in [("name", "name"), ("namespace", "namespace"), ("subResource", "subresource")] {
        if !text(attributes, from).is_empty() {
            request[field] = attributes[from].clone();
        }
    }
    request
}

/// An authorizer with the decisions that the case records.
struct Fake<'a>(&'a Value);

impl Authorizer for Fake<'_> {
    fn authorize(&self, attributes: &Attributes) -> Decision {
        let decision = |value: &Value| Decision {
            allowed: value["decision"] == 1,
            reason: text(value, "reason").to_owned(),
            error: value.get("err").and_then(Value::as_str).map(str::to_owned),
        };
        match self.0.get("match") {
            Some(rule) if matches(&rule["match"], attributes) => decision(&rule["authorizerResult"]),
            _ => decision(&self.0["defaultResult"]),
        }
    }
}

/// True if the attributes equal the recorded ones.
fn matches(wanted: &Value, got: &Attributes) -> bool {
    let same = |field: &str, value: &str| text(wanted, field) == value;
    let version = if got.path.is_some() { "" } else { "*" };
    let fields = match got.field_selector.as_deref().map(FieldSelector::parse) {
        None => (Value::Null, Value::Null),
        Some(Err(error)) => (Value::Null, json!(error.to_string())),
        Some(Ok(selector)) => {
            let show = |r: &berth_apimachinery::selector::FieldRequirement| json!({"field": r.field, "operator": if r.negated { "!=" } else { "=" }, "value": r.value});
            (selector.requirements().iter().map(show).collect(), Value::Null)
        }
    };
    let labels = match got.label_selector.as_deref().map(LabelSelector::parse) {
        None => (Value::Null, Value::Null),
        Some(Err(error)) => (Value::Null, json!(error.to_string())),
        Some(Ok(selector)) => {
            let show = |r: &berth_apimachinery::selector::Requirement| json!({"key": r.key(), "operator": r.operator().name(), "strValues": r.values()});
            (selector.requirements().iter().map(show).collect(), Value::Null)
        }
    };
    let user = match &got.user {
        None => Value::Null,
        Some(user) => json!({"name": user.name, "uid": user.uid, "groups": user.groups}),
    };
    let field = |name: &str| wanted.get(name).cloned().unwrap_or_default();
    same("verb", &got.verb)
        && same("path", got.path.as_deref().unwrap_or_default())
        && same("apiGroup", &got.group)
        && same("apiVersion", version)
        && same("resource", &got.resource)
        && same("subresource", &got.subresource)
        && same("namespace", &got.namespace)
        && same("name", &got.name)
        && flag(wanted, "resourceRequest") == got.path.is_none()
        && (field("fieldSelectorRequirements"), field("fieldSelectorParsingErr")) == fields
        && (field("labelSelectorRequirements"), field("labelSelectorParsingErr")) == labels
        && field("user") == user
}

/// Calls `check` with the inputs of a case's expressions.
fn with_inputs<T>(case: &Case, check: impl FnOnce(&Inputs<'_>) -> T) -> T {
    let attributes = input(case, "attributes");
    let request = request(attributes);
    let none = Value::Null;
    let fake = Fake(input(case, "authorizer"));
    let inputs = Inputs {
        object: attributes.get("object").unwrap_or(&none),
        old_object: attributes.get("oldObject").unwrap_or(&none),
        request: &request,
        params: input(case, "params"),
        namespace: input(case, "namespaceObject"),
        authorizer: Some(&fake),
    };
    check(&inputs)
}

fn validations(case: &Case) -> Vec<Expression> {
    let declared = Declared { params: flag(&case.input, "hasParamKind"), authorizer: true, ..Declared::default() };
    let env = environment(base(case), &declared);
    let all = input(case, "validations").as_array().into_iter().flatten();
    all.map(|validation| Expression::compile(&env, text(validation, "expression"), &[Type::Bool])).collect()
}

fn expressions(case: &Case) -> Verdict {
    let compiled = validations(case);
    let wanted = want(case, "results").as_array().cloned().unwrap_or_default();
    same("results", compiled.len(), wanted.len())?;
    let limit = input(case, "testPerCallLimit").as_u64().filter(|limit| *limit > 0);
    with_inputs(case, |inputs| {
        for (expression, wanted) in compiled.iter().zip(&wanted) {
            let mut budget = policy::POLICY_COST_MAX;
            let result = expression.evaluate_on(inputs, limit, &mut budget).map_err(|error| error.to_string())?;
            match (result, wanted.get("error").and_then(Value::as_str)) {
                (Err(error), Some(wanted)) if error.contains(wanted) => {}
                (Ok(value), None) => same("value", value.to_json().as_ref(), wanted.get("evalResult"))?,
                (got, wanted) => return Err(format!("got {:?}, want error {wanted:?}", got.map(|v| v.to_json()))),
            }
        }
        Ok(())
    })
}

fn cost_budget(case: &Case) -> Verdict {
    let compiled = validations(case);
    let mut budget = match input(case, "testRuntimeCELCostBudget").as_i64() {
        None | Some(0) => policy::POLICY_COST_MAX,
        Some(budget) => u64::try_from(budget).unwrap_or(i64::MAX as u64),
    };
    let (mut over_call, mut over_budget) = (false, false);
    with_inputs(case, |inputs| {
        for expression in &compiled {
            match expression.evaluate_on(inputs, None, &mut budget) {
                Err(OutOfBudget) => {
                    over_budget = true;
                    return;
                }
                Ok(Err(error)) => over_call |= error.contains("operation cancelled: actual cost limit exceeded"),
                Ok(Ok(_)) => {}
            }
        }
    });
    same("budget exceeded", over_budget, flag(&case.want, "exceedBudget"))?;
    same("call limit exceeded", over_call, flag(&case.want, "exceedPerCallLimit"))?;
    match want(case, "expectRemainingBudget").as_u64() {
        Some(wanted) => same("remaining budget", budget, wanted),
        None => Ok(()),
    }
}

fn variables(case: &Case) -> Verdict {
    let wanted = text(&case.want, "expectedErrorMessage");
    let finish = |error: String| match wanted {
        "" => Err(error),
        wanted if error.contains(wanted) => Ok(()),
        wanted => Err(format!("got error  {error}\nwant error {wanted}")),
    };
    let mut declared = Declared { variables: Some(Type::Dyn), ..Declared::default() };
    let mut programs = BTreeMap::new();
    for variable in input(case, "variables").as_array().into_iter().flatten() {
        declared.variables = Some(Variables::type_of(&programs));
        match environment(base(case), &declared).compile(text(variable, "expression")) {
            Ok(program) => programs.insert(text(variable, "name").to_owned(), program),
            Err(issues) => return finish(issues.to_string()),
        };
    }
    declared.variables = Some(Variables::type_of(&programs));
    let env = environment(base(case), &declared);
    let expression = Expression::compile(&env, text(&case.input, "expression"), &[]);
    if let Some(error) = expression.error() {
        return finish(error.to_owned());
    }
    let mut budget = match input(case, "runtimeCostBudget").as_u64() {
        None | Some(0) => policy::POLICY_COST_MAX,
        Some(budget) => budget,
    };
    let result = with_inputs(case, |inputs| {
        policy::evaluate_composed(&expression, &programs, inputs, &mut budget)
            .map_err(|error| error.to_string())
            .and_then(|result| result.map(|value| value.unwrap_or_default()))
    });
    match result {
        Err(error) => finish(error),
        Ok(_) if !wanted.is_empty() => Err(format!("want error {wanted}, got none")),
        Ok(value) => same("value", &value, want(case, "expectedResult")),
    }
}

fn failure_policy(case: &Case) -> FailurePolicy {
    FailurePolicy::parse(input(case, "failPolicy").as_str())
}

/// A recorded result of an expression.
fn result(evaluation: &Value) -> Result<Cel<'_>, String> {
    match evaluation.get("error").and_then(Value::as_str) {
        Some(error) => Err(error.to_owned()),
        None => Ok(evaluation.get("evalResult").map_or(Cel::Null, untyped)),
    }
}

fn decisions(case: &Case) -> Verdict {
    // Collect the decisions of the policy.
    let failure_policy = failure_policy(case);
    let list = |field: &str| input(case, field).as_array().cloned().unwrap_or_default();
    let action = |admitted: bool| if admitted { "admit" } else { "deny" };
    let mut got = Vec::new();
    let mut annotations = Vec::new();
    let failure = match input(case, "matcher").get("error").and_then(Value::as_str) {
        Some(error) => Some(error.to_owned()),
        None => flag(&case.input, "throwError").then(|| "test error".to_owned()),
    };
    let is_skipped = input(case, "matcher").get("matches") == Some(&Value::Bool(false)) && failure.is_none();
    if let Some(error) = failure {
        let decision = policy::decide(Err(error), None, &Validation::default(), failure_policy);
        got.push((action(decision.admitted), decision.message, decision.reason));
    } else if !is_skipped {
        let messages = list("messageEvaluations");
        for (index, evaluation) in list("evaluations").iter().enumerate() {
            let accessor = &evaluation["expressionAccessor"];
            let validation = Validation {
                expression: text(accessor, "expression").to_owned(),
                message: text(accessor, "message").to_owned(),
                reason: accessor.get("reason").and_then(Value::as_str).map(str::to_owned),
            };
            let message = messages.get(index).map(result);
            let decision = policy::decide(result(evaluation), message, &validation, failure_policy);
            got.push((action(decision.admitted), decision.message, decision.reason));
        }
        for evaluation in &list("auditEvaluations") {
            // A null result is recorded as 0, the value of its enumeration.
            let result = match result(evaluation) {
                Ok(Cel::Int(0)) => Ok(Cel::Null),
                other => other,
            };
            annotations.push(policy::annotate(result, text(&evaluation["expressionAccessor"], "valueExpression")));
        }
    }
    // Compare the decisions and the audit annotations.
    let decisions = want(case, "policyDecision").as_array().cloned().unwrap_or_default();
    same("decisions", got.len(), decisions.len())?;
    for ((action, message, reason), wanted) in got.iter().zip(&decisions) {
        same("action", *action, text(wanted, "action"))?;
        // Only denials have a recorded message.
        if !text(wanted, "message").is_empty() {
            same("message", message.as_str(), text(wanted, "message"))?;
        }
        same("reason", reason.as_str(), text(wanted, "reason"))?;
    }
    let wanted = want(case, "auditAnnotations").as_array().cloned().unwrap_or_default();
    same("annotations", annotations.len(), wanted.len())?;
    for (got, wanted) in annotations.iter().zip(&wanted) {
        let (action, value, error) = match got {
            Annotation::Publish(value) => ("publish", value.as_str(), ""),
            Annotation::Exclude => ("exclude", "", ""),
            Annotation::Error(error) => ("error", "", error.as_str()),
        };
        same(
            "annotation",
            (action, value, error),
            (text(wanted, "action"), text(wanted, "value"), text(wanted, "error")),
        )?;
    }
    Ok(())
}

fn match_conditions(case: &Case) -> Verdict {
    let results: Vec<(String, Result<bool, String>)> = input(case, "evaluations")
        .as_array()
        .into_iter()
        .flatten()
        .map(|evaluation| {
            let name = text(&evaluation["expressionAccessor"], "name").to_owned();
            (name, result(evaluation).map(|value| matches!(value, Cel::Bool(true))))
        })
        .collect();
    let failure = flag(&case.input, "throwError").then(|| "test error".to_owned());
    let wanted = text(&case.want, "expectError");
    match conditions::decide(&results, failure, failure_policy(case)) {
        Matched::Failed(error) if !wanted.is_empty() && error.contains(wanted) => Ok(()),
        Matched::Failed(error) => Err(format!("got error {error}, want {wanted:?}")),
        _ if !wanted.is_empty() => Err(format!("want error {wanted}, got none")),
        Matched::Yes => same("match", true, flag(&case.want, "shouldMatch")),
        Matched::No(name) => {
            same("match", false, flag(&case.want, "shouldMatch"))?;
            same("name", name.unwrap_or_default().as_str(), text(&case.want, "returnedName"))
        }
    }
}

fn type_check(case: &Case) -> Verdict {
    let spec = &input(case, "policy")["spec"];
    let decl = match case.input.get("schema") {
        None => None,
        Some(schema) => {
            let schema = Schema::parse_crd(schema).map_err(|error| error.to_string())?;
            Decl::of_schema(&schema, false, "Object")
        }
    };
    let mut kinds = Vec::new();
    for rule in spec["matchConstraints"]["resourceRules"].as_array().into_iter().flatten() {
        let names = |field: &str| -> Vec<String> {
            rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        for group in names("apiGroups") {
            for version in names("apiVersions") {
                for resource in names("resources") {
                    let kind = match resource.as_str() {
                        "deployments" => "Deployment".to_owned(),
                        other => other.trim_end_matches('s').to_owned(),
                    };
                    let name = format!("{group}/{version}, Kind={kind}");
                    kinds.push(typecheck::Kind { name, decl: decl.clone() });
                }
            }
        }
    }
    let got: Vec<Value> = typecheck::check(spec, &kinds, &Env::default())
        .into_iter()
        .map(|warning| json!({"fieldRef": warning.field_ref, "warning": warning.warning}))
        .collect();
    same("warnings", Value::from(got), want(case, "warnings").clone())
}

/// An authorizer that returns the recorded decisions in order, one per call.
struct Backend<'a>(RefCell<std::slice::Iter<'a, Value>>);

impl Authorizer for Backend<'_> {
    fn authorize(&self, _: &Attributes) -> Decision {
        self.0.borrow_mut().next().map_or_else(Decision::default, decision)
    }
}

fn decision(value: &Value) -> Decision {
    Decision {
        allowed: value["decision"] == 1,
        reason: text(value, "reason").to_owned(),
        error: value.get("error").and_then(Value::as_str).map(str::to_owned),
    }
}

fn caching(case: &Case) -> Verdict {
    let backend = input(case, "backend").as_array().cloned().unwrap_or_default();
    let backend = Backend(RefCell::new(backend.iter()));
    let cache = CachingAuthorizer::new(&backend);
    for call in input(case, "calls").as_array().into_iter().flatten() {
        let got = cache.authorize(&attributes(&call["attributes"]));
        same("decision", got, decision(&call["expected"]))?;
    }
    Ok(())
}

fn attributes(value: &Value) -> Attributes {
    let field = |name: &str| text(value, name).to_owned();
    let requirements = |list: &str, show: fn(&Value) -> String| {
        let list = value.get(list).and_then(Value::as_array)?;
        Some(list.iter().map(show).collect::<Vec<_>>().join(","))
    };
    let malformed = |name: &str| value.get(name).map(|_| "not a selector".to_owned());
    let groups = |user: &Value| -> Vec<String> {
        user["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    Attributes {
        user: value.get("user").map(|user| User {
            name: text(user, "name").to_owned(),
            uid: text(user, "uid").to_owned(),
            groups: groups(user),
        }),
        verb: field("verb"),
        path: (!flag(value, "resourceRequest")).then(|| field("path")),
        group: field("apiGroup"),
        resource: field("resource"),
        subresource: field("subresource"),
        namespace: field("namespace"),
        name: field("name"),
        field_selector: requirements("fieldSelectorRequirements", |r| {
            format!("{}{}{}", text(r, "field"), text(r, "operator"), text(r, "value"))
        })
        .or_else(|| malformed("fieldSelectorParsingErr")),
        label_selector: requirements("labelSelectorRequirements", |r| {
            let value = r["strValues"][0].as_str().unwrap_or_default();
            format!("{}{}{value}", text(r, "key"), text(r, "operator"))
        })
        .or_else(|| malformed("labelSelectorParsingErr")),
    }
}
