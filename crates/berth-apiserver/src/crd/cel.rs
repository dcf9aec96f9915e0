//! `x-kubernetes-validations`: CEL rules of custom resources, compiled once per schema, run on every write.
//!
//! Expressions and function libraries are kube-cel's; walking the object, typing values by the schema, transition rules
//! and messages are done here. Only branches of the schema that hold rules are walked. Costs are not counted: rules come
//! from whoever may define kinds. A rule that does not compile fails every object that has the field, as upstream.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use berth_apimachinery::field::{self, Path};
use berth_apimachinery::schema::{AdditionalProperties, ListType, Rule, Schema, Type};
use kube_cel::KubeCelExt;
use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::{Context, Program, Value as Cel};
use serde_json::Value;

/// Longest message an expression may produce, as upstream.
const MESSAGE_BYTES_MAX: usize = 5 * 1024;

/// The rules of one version of a custom resource.
pub(crate) struct Rules {
    root: Node,
}

/// A node of the schema with rules at it or below.
struct Node {
    schema: Arc<Schema>,
    rules: Vec<Compiled>,
    properties: BTreeMap<String, Node>,
    items: Option<Box<Node>>,
    additional: Option<Box<Node>>,
    all_of: Vec<Node>,
}

/// A rule, compiled when it is first needed: most rules of most kinds never are.
struct Compiled {
    rule: Rule,
    expressions: OnceLock<Expressions>,
}

struct Expressions {
    program: Result<Program, String>,
    message: Option<Program>,
    is_transition: bool,
}

thread_local! {
    /// Function tables are not shared between threads.
    static FUNCTIONS: Context<'static> = Context::default().with_all();
}

impl Rules {
    /// Compiles the rules of a schema; `None` when it has none.
    pub(crate) fn compile(schema: &Arc<Schema>) -> Option<Rules> {
        schema.has_rules.then(|| Rules { root: Node::compile(schema) })
    }

    /// Runs the rules on an object; `old` is what it replaces.
    pub(crate) fn check(&self, object: &Value, old: Option<&Value>) -> Vec<field::Error> {
        let mut errors = Vec::new();
        self.root.check(object, old, &Path::root(), true, &mut errors);
        errors
    }
}

impl Node {
    fn compile(schema: &Arc<Schema>) -> Node {
        let below = |schema: &Arc<Schema>| schema.has_rules.then(|| Node::compile(schema));
        Node {
            rules: schema.rules.iter().filter(|rule| !rule.rule.trim().is_empty()).map(Compiled::new).collect(),
            properties: schema
                .properties
                .iter()
                .filter_map(|(name, property)| Some((name.clone(), below(property)?)))
                .collect(),
            items: schema.items.as_ref().and_then(below).map(Box::new),
            additional: match &schema.additional_properties {
                Some(AdditionalProperties::Schema(schema)) => below(schema).map(Box::new),
                _ => None,
            },
            all_of: schema.all_of.iter().filter_map(below).collect(),
            schema: schema.clone(),
        }
    }

    fn check(&self, value: &Value, old: Option<&Value>, path: &Path<'_>, root: bool, errors: &mut Vec<field::Error>) {
        // Rules are about values; null and absence are checked from the parent.
        if value.is_null() {
            return;
        }
        let old = old.filter(|old| !old.is_null());
        if !self.rules.is_empty() {
            self.evaluate(value, old, path, root, errors);
        }
        if let Some(map) = value.as_object() {
            for (name, node) in &self.properties {
                if let Some(value) = map.get(name) {
                    node.check(value, old.and_then(|old| old.get(name)), &path.child(name), false, errors);
                }
            }
            if let Some(node) = &self.additional {
                for (key, value) in map.iter().filter(|(key, _)| !self.schema.properties.contains_key(*key)) {
                    node.check(value, old.and_then(|old| old.get(key)), &path.key(key), false, errors);
                }
            }
        }
        if let (Some(node), Some(items)) = (&self.items, value.as_array()) {
            for (index, item) in items.iter().enumerate() {
                let old_item = old.and_then(|old| self.correlated(item, old));
                node.check(item, old_item, &path.index(index), false, errors);
            }
        }
        for node in &self.all_of {
            node.check(value, old, path, false, errors);
        }
    }

    /// The old item with the same keys, in lists whose items have keys.
    fn correlated<'a>(&self, item: &Value, old: &'a Value) -> Option<&'a Value> {
        if self.schema.list_type != Some(ListType::Map) {
            return None;
        }
        let same = |other: &&Value| self.schema.list_map_keys.iter().all(|key| item.get(key) == other.get(key));
        old.as_array()?.iter().find(same)
    }

    fn evaluate(
        &self,
        value: &Value,
        old: Option<&Value>,
        path: &Path<'_>,
        root: bool,
        errors: &mut Vec<field::Error>,
    ) {
        FUNCTIONS.with(|functions| {
            let mut scope = functions.new_inner_scope();
            scope.add_variable_from_value("self", convert(value, &self.schema, root));
            // Converted only when a rule looks at it.
            let old_value = self
                .rules
                .iter()
                .any(|rule| rule.expressions().is_transition)
                .then(|| old.map(|old| convert(old, &self.schema, root)))
                .flatten();
            for rule in &self.rules {
                // Unchanged values keep what they were allowed before a rule was added or tightened.
                let unchanged = !rule.expressions().is_transition && old.is_some_and(|old| old == value);
                if !unchanged {
                    rule.evaluate(&scope, old_value.as_ref(), value, path, errors);
                }
            }
        });
    }
}

impl Compiled {
    fn new(rule: &Rule) -> Compiled {
        Compiled { rule: rule.clone(), expressions: OnceLock::new() }
    }

    fn expressions(&self) -> &Expressions {
        self.expressions.get_or_init(|| {
            let program = Program::compile(&self.rule.rule).map_err(|error| error.to_string());
            let is_transition =
                program.as_ref().is_ok_and(|program| program.references().variables().contains(&"oldSelf"));
            let message = self.rule.message_expression.as_ref().and_then(|text| Program::compile(text).ok());
            Expressions { program, message, is_transition }
        })
    }

    fn evaluate(
        &self,
        scope: &Context<'_>,
        old: Option<&Cel>,
        value: &Value,
        path: &Path<'_>,
        errors: &mut Vec<field::Error>,
    ) {
        let Expressions { program, is_transition, .. } = self.expressions();
        let program = match program {
            Ok(program) => program,
            Err(error) => {
                let detail = format!("rule compile error: {error}");
                errors.push(field::Error::invalid(path, shown(value), detail));
                return;
            }
        };
        let mut scope = scope.new_inner_scope();
        if *is_transition {
            match (old, self.rule.optional_old_self) {
                (Some(old), Some(true)) => bind_optional(&mut scope, Some(old)),
                (None, Some(true)) => bind_optional(&mut scope, None),
                (Some(old), _) => scope.add_variable_from_value("oldSelf", old.clone()),
                (None, _) => return,
            }
        }
        match program.execute(&scope) {
            Ok(Cel::Bool(true)) => {}
            Ok(Cel::Bool(false)) => errors.push(self.error(path, value, self.message(&scope))),
            Ok(_) => {
                errors.push(self.error(path, value, format!("rule {} does not answer true or false", self.rule.rule)))
            }
            Err(error) => {
                let detail = format!("rule evaluation error: {error}");
                errors.push(field::Error::invalid(path, shown(value), format!("{}: {detail}", self.rule.rule)));
            }
        }
    }

    fn message(&self, scope: &Context<'_>) -> String {
        if let Some(program) = &self.expressions().message
            && let Ok(Cel::String(text)) = program.execute(scope)
            && !text.trim().is_empty()
            && !text.contains('\n')
            && text.len() <= MESSAGE_BYTES_MAX
        {
            return text.as_ref().clone();
        }
        match &self.rule.message {
            Some(message) if !message.trim().is_empty() => message.trim().to_owned(),
            _ => format!("failed rule: {}", self.rule.rule.trim()),
        }
    }

    fn error(&self, path: &Path<'_>, value: &Value, detail: String) -> field::Error {
        let steps = self.rule.field_path.as_deref().map(field_steps).unwrap_or_default();
        self.error_at(path, &steps, value, detail)
    }

    /// Appends the rule's `fieldPath`, step by step (paths live on the stack).
    fn error_at(&self, path: &Path<'_>, steps: &[String], value: &Value, detail: String) -> field::Error {
        match steps.split_first() {
            Some((step, rest)) => self.error_at(&path.child(step), rest, value, detail),
            None => match self.rule.reason.as_deref() {
                Some("FieldValueForbidden") => field::Error::forbidden(path, detail),
                Some("FieldValueRequired") => field::Error::required(path, detail),
                Some("FieldValueDuplicate") => field::Error::duplicate(path, shown(value)),
                _ => field::Error::invalid(path, shown(value), detail),
            },
        }
    }
}

/// `.spec.foo` or `.spec['a.b']` as names.
fn field_steps(path: &str) -> Vec<String> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("['") {
            let (step, tail) = after.split_once("']").unwrap_or((after, ""));
            steps.push(step.to_owned());
            rest = tail;
        } else {
            let name = rest.strip_prefix('.').unwrap_or(rest);
            let end = name.find(['.', '[']).unwrap_or(name.len());
            steps.push(name[..end].to_owned());
            rest = &name[end..];
            if end == 0 && rest.starts_with('[') && !rest.starts_with("['") {
                break;
            }
        }
    }
    steps.retain(|step| !step.is_empty());
    steps
}

/// Errors name the type of compound values instead of showing them.
fn shown(value: &Value) -> Value {
    match value {
        Value::Object(_) => Value::from("object"),
        Value::Array(_) => Value::from("array"),
        scalar => scalar.clone(),
    }
}

fn bind_optional(scope: &mut Context<'_>, old: Option<&Cel>) {
    thread_local! {
        static OF: Program = Program::compile("optional.of(value)").expect("a constant expression");
        static NONE: Program = Program::compile("optional.none()").expect("a constant expression");
    }
    let optional = match old {
        Some(old) => {
            let mut inner = scope.new_inner_scope();
            inner.add_variable_from_value("value", old.clone());
            OF.with(|program| program.execute(&inner))
        }
        None => NONE.with(|program| program.execute(scope)),
    };
    scope.add_variable_from_value("oldSelf", optional.unwrap_or(Cel::Null));
}

/// A JSON value as CEL sees it, typed by its schema.
fn convert(value: &Value, schema: &Schema, root: bool) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(bool) => Cel::Bool(*bool),
        Value::Number(number) => match (schema.schema_type, number.as_i64()) {
            (Some(Type::Number), _) => Cel::Float(number.as_f64().unwrap_or(f64::NAN)),
            (_, Some(integer)) => Cel::Int(integer),
            _ => Cel::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => convert_text(text, schema),
        Value::Array(items) => {
            let any = Schema::default();
            let item = schema.items.as_deref().unwrap_or(&any);
            Cel::List(Arc::new(items.iter().map(|value| convert(value, item, false)).collect()))
        }
        Value::Object(fields) => {
            let mut map: HashMap<Key, Cel> = HashMap::with_capacity(fields.len());
            let mut insert = |name: String, value: Cel| map.insert(Key::String(Arc::new(name)), value);
            let is_resource = root || schema.embedded_resource;
            let additional = match &schema.additional_properties {
                Some(AdditionalProperties::Schema(schema)) => Some(schema.as_ref()),
                _ => None,
            };
            let any = Schema::default();
            let undeclared = schema.properties.is_empty() && additional.is_none() && !is_resource;
            for (name, value) in fields {
                if is_resource && matches!(name.as_str(), "apiVersion" | "kind") {
                    insert(name.clone(), convert(value, &any, false));
                } else if is_resource && name == "metadata" {
                    let visible: serde_json::Map<String, Value> = value
                        .as_object()
                        .into_iter()
                        .flatten()
                        .filter(|(key, _)| matches!(key.as_str(), "name" | "generateName"))
                        .map(|(key, value)| (key.clone(), value.clone()))
                        .collect();
                    insert(name.clone(), convert(&Value::Object(visible), &any, false));
                } else if let Some(property) = schema.properties.get(name) {
                    insert(escape(name), convert(value, property, false));
                } else if let Some(additional) = additional {
                    insert(name.clone(), convert(value, additional, false));
                } else if undeclared {
                    insert(name.clone(), convert(value, &any, false));
                }
            }
            Cel::Map(Map { map: Arc::new(map) })
        }
    }
}

fn convert_text(text: &str, schema: &Schema) -> Cel {
    let plain = || Cel::String(Arc::new(text.to_owned()));
    if schema.int_or_string {
        return plain();
    }
    let through = |function: &'static str| -> Cel {
        let Ok(program) = Program::compile(function) else { return plain() };
        FUNCTIONS.with(|functions| {
            let mut scope = functions.new_inner_scope();
            scope.add_variable_from_value("text", plain());
            program.execute(&scope).unwrap_or_else(|_| plain())
        })
    };
    match schema.format.as_str() {
        "date-time" => through("timestamp(text)"),
        "date" => through("timestamp(text + 'T00:00:00Z')"),
        "duration" => through("duration(text)"),
        "byte" => through("base64.decode(text)"),
        _ => plain(),
    }
}

/// Words of CEL that cannot be field names.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// A field's name as expressions write it: `__dash__` for `-` and so on, `__int__` around reserved words.
fn escape(name: &str) -> String {
    if RESERVED.contains(&name) {
        return format!("__{name}__");
    }
    if !name.contains(['-', '.', '/']) && !name.contains("__") {
        return name.to_owned();
    }
    name.replace("__", "__underscores__").replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: Value, object: Value, old: Option<Value>) -> Vec<String> {
        let schema = Schema::parse_crd(&schema).unwrap();
        let rules = Rules::compile(&schema).unwrap();
        rules.check(&object, old.as_ref()).iter().map(|error| error.to_string()).collect()
    }

    fn with_rule(rule: Value) -> Value {
        json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": [rule],
            "properties": {"replicas": {"type": "integer"}, "name-of": {"type": "string"},
                "since": {"type": "string", "format": "date-time"}}}}})
    }

    #[test]
    fn a_false_rule_is_an_error_at_its_node_with_its_message() {
        let schema = with_rule(json!({"rule": "self.replicas >= 1", "message": "at least one"}));
        let errors = check(schema.clone(), json!({"spec": {"replicas": 0}}), None);
        assert_eq!(errors, ["spec: Invalid value: \"object\": at least one"]);
        assert!(check(schema, json!({"spec": {"replicas": 1}}), None).is_empty());
    }

    #[test]
    fn transition_rules_run_only_when_there_is_an_old_value() {
        let schema = with_rule(json!({"rule": "self.replicas == oldSelf.replicas", "message": "immutable"}));
        assert!(check(schema.clone(), json!({"spec": {"replicas": 1}}), None).is_empty());
        let errors = check(schema, json!({"spec": {"replicas": 1}}), Some(json!({"spec": {"replicas": 2}})));
        assert_eq!(errors.len(), 1);
    }

    #[test]
    fn names_are_escaped_and_formats_typed() {
        let schema = with_rule(json!({
            "rule": "has(self.name__dash__of) && self.since > timestamp('2024-01-01T00:00:00Z')",
            "messageExpression": "'got ' + self.name__dash__of", "fieldPath": ".since", "reason": "FieldValueForbidden",
        }));
        let early = json!({"spec": {"name-of": "x", "since": "2020-01-01T00:00:00Z"}});
        assert_eq!(check(schema.clone(), early, None), ["spec.since: Forbidden: got x"]);
        assert!(check(schema, json!({"spec": {"name-of": "x", "since": "2025-01-01T00:00:00Z"}}), None).is_empty());
    }
}
