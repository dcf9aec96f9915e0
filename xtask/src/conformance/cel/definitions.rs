//! Suites of the schemas of CustomResourceDefinitions and their rules.

use berth_apimachinery::field::Path;
use berth_apimachinery::schema::structural::{self, StructuralOptions};
use berth_apimachinery::schema::{Root, Schema};
use berth_cel::Env;
use berth_cel::rules::{self, NothingStored, Options};
use serde_json::Value;

use super::rules::version;
use super::{Case, Runner, Verdict, flag, input, same, text, want};
use crate::conformance::apimachinery::errors;

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "crd-schema" => crd_schema,
        "schema-validate-defaults" => validate_defaults,
        _ => return None,
    })
}

fn crd_schema(case: &Case) -> Verdict {
    let schema = input(case, "schema");
    let opts = input(case, "opts");
    let option = |key: &str| opts.get(key).and_then(Value::as_bool).unwrap_or_default();
    let options = StructuralOptions {
        structural: option("requireStructuralSchema"),
        valid_types: option("requireValidPropertyType"),
        valid_patterns: true,
        atomic_sets: option("requireAtomicSetType"),
        map_keys: option("requireMapListKeysMapSetValidation"),
        defaults: option("allowDefaults"),
        status_subresource: flag(&case.input, "statusSubresource"),
    };
    let path = Path::new("spec.validation.openAPIV3Schema");
    let mut got = structural::check(schema, options, &path);
    let rules = Options {
        env: Env::new(version(case)),
        env_stored: Env::new(berth_cel::NEWEST),
        stored: &NothingStored,
        suppress_expression_cost: option("suppressPerExpressionCost"),
    };
    got.extend(rules::check_definition(schema, Schema::parse_crd(schema).ok().as_ref(), &rules, &path));
    errors(case, &got)
}

fn validate_defaults(case: &Case) -> Verdict {
    let prefix = text(&case.input, "path");
    let path = if prefix.is_empty() { Path::root() } else { Path::new(prefix) };
    let root = if flag(&case.input, "isResourceRoot") { Root::Resource } else { Root::Value };
    let pruned = flag(&case.input, "requirePrunedDefaults");
    // The structural checks reject a schema that cannot be parsed. Its defaults are not validated.
    let Ok(schema) = Schema::parse_crd(input(case, "schema")) else { return errors(case, &[]) };
    let mut got = schema.validate_defaults(root, pruned, &path);
    let env = Env::new(berth_cel::NEWEST);
    let mut budget = input(case, "costBudget").as_u64();
    got.extend(rules::check_defaults(&schema, &path, &mut budget, &env));
    errors(case, &got)?;
    match want(case, "remainingCost") {
        Value::Null => Ok(()),
        wanted => same("remaining cost", budget, wanted.as_u64()),
    }
}
