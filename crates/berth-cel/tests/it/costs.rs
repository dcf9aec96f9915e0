//! Estimated and actual costs of expressions. The expected costs follow from the published model;
//! `cargo xtask conformance` compares recorded ones.

use berth_cel::estimate::Unknown;
use berth_cel::{Env, EvalError, Run};

/// The maximum estimated cost of an expression, and its actual cost.
fn costs(text: &str) -> (u64, u64) {
    costs_in(&Env::default(), text)
}

fn costs_in(env: &Env, text: &str) -> (u64, u64) {
    let program = env.compile(text).unwrap_or_else(|issues| panic!("{text}: {issues}"));
    (program.estimate(&Unknown).max, program.run(&[], Run::default()).cost)
}

#[test]
fn constants_are_folded_before_evaluation() {
    assert_eq!(costs("[1, 2] == [1, 2]"), (21, 1));
    assert_eq!(costs("1 in [1, 2]"), (12, 0));
    assert_eq!(costs("{'a': 1} in [{'a': 1}]"), (71, 1), "only the lookup of simple values is free");
    // A list of one constant is not created again for every element.
    assert_eq!(costs("[1, 2, 3].map(x, 1).size()").1, 8);
    assert_eq!(costs("[1, 2, 3].map(x, x).size()").1, 41);
    let plain = Env::default().fold_constants(false);
    assert_eq!(costs_in(&plain, "[1, 2] == [1, 2]"), (21, 21));
    assert_eq!(costs_in(&plain, "[] == []"), (20, 20));
    assert_eq!(costs_in(&plain, "1 in [1, 2]"), (12, 12));
}

#[test]
fn absent_optional_values_are_free() {
    assert_eq!(costs("{'a': {'b': 1}}.?x.?y == optional.none()").1, 3);
    assert_eq!(costs("{'a': {'b': 1}}.?a.?b == optional.none()").1, 5);
    // A bound name that is not used is free as well.
    assert_eq!(costs("optional.of([1]).optMap(v, 1).hasValue()").1, 4);
    assert_eq!(costs("optional.of([1]).optMap(v, v).hasValue()").1, 7);
}

#[test]
fn failed_operations_are_charged() {
    assert_eq!(costs("1 / 0 > 0 || true").1, 2);
    assert_eq!(costs("[1 / 0] == [1] || true").1, 12);
    // A call with three operands stops at the first failed operand. The call is charged only if
    // that operand is the last one.
    assert_eq!(costs("'a'.replace('a', ['b'][1]) == 'b' || true").1, 4);
    assert_eq!(costs("'a'.replace(['a'][1], ['b'][0]) == 'b' || true").1, 3);
}

#[test]
fn function_costs_depend_on_argument_sizes() {
    let text = format!("'{}'", "a".repeat(70));
    assert_eq!(costs(&format!("{text}.startsWith('a')")).1, 7);
    assert_eq!(costs(&format!("{text}.indexOf('b')")).1, 7);
    assert_eq!(costs(&format!("matches({text}, 'a{{3}}')")).1, 1);
    assert_eq!(costs(&format!("{text}.matches('a{{3}}')")).1, 8);
    assert_eq!(costs("[1, 2, 3].slice(1, 2)"), (22, 12));
    assert_eq!(costs("[1, 2, 3].slice(1, 2).size()"), (23, 13));
    assert_eq!(costs("lists.range(3).reverse()"), (28, 28));
    assert_eq!(costs("[[1, 2], [3]].flatten()"), (43, 13));
    assert_eq!(costs("[3, 1, 2].sort()"), (39, 29));
    assert_eq!(costs("['c', 'a', 'b'].sort()"), (40, 29));
    assert_eq!(costs("['c', 'a', 'c'].distinct()"), (39, 29));
}

#[test]
fn the_estimate_covers_every_possible_overload() {
    let numbers = costs("dyn([3, 1]).sort()");
    assert_eq!(numbers.0, 11 + 11 + 9, "compared as strings, which cost more");
    assert_eq!(numbers.1, 1, "but none of them is charged");
}

#[test]
fn an_expression_over_its_cost_limit_is_stopped() {
    let program = Env::default().compile("lists.range(100).distinct().size() > 0").expect("compiles");
    let ran = program.run(&[], Run { limit: Some(1_000), ..Run::default() });
    assert_eq!(ran.result.err(), Some(EvalError::CostLimit));
    let ran = program.run(&[], Run { limit: Some(21_000), ..Run::default() });
    assert!(ran.result.is_ok());
}
