//! Results of expressions.

use berth_cel::types::Type;
use berth_cel::value::untyped;
use berth_cel::{Env, Run};
use serde_json::{Value, json};

/// Evaluates an expression with a dynamic variable `x`.
fn eval(text: &str, x: &Value) -> Result<Value, String> {
    let env = Env::default().variable("x", Type::Dyn);
    let program = env.compile(text).map_err(|issues| issues.to_string())?;
    let ran = program.run(&[untyped(x)], Run::default());
    ran.result.map_err(|error| error.to_string())?.to_json().ok_or_else(|| "not JSON".to_owned())
}

#[test]
fn expressions_have_the_values_of_the_language() {
    let x = json!({"n": 3, "list": [1, 2, 3], "map": {"a": 1, "b": 2}, "text": "Grüße", "none": null});
    for (text, wanted) in [
        ("1 + 2 * 3 - 4 / 2", json!(5)),
        ("-x.n + 10 % 4", json!(-1)),
        ("x.n == 3.0 && 3u == x.n", json!(true)),
        ("x.n > 2 ? 'more' : 'less'", json!("more")),
        ("x.list.filter(e, e % 2 == 1).map(e, e * 10)", json!([10, 30])),
        ("x.list.exists_one(e, e == 2) && !x.list.exists(e, e > 3)", json!(true)),
        ("x.list.all(i, e, e == i + 1)", json!(true)),
        ("x.map.transformMap(k, v, v > 1, v * v)", json!({"b": 4})),
        ("x.map.transformList(k, v, k + string(v))", json!(["a1", "b2"])),
        ("has(x.map.c) || 'a' in x.map", json!(true)),
        ("size(x.text) + x.text.size()", json!(10)),
        ("x.text.substring(1, 3) + x.text.charAt(4)", json!("rüe")),
        ("x.?map.?c.orValue(7)", json!(7)),
        ("x.list[?9].hasValue()", json!(false)),
        ("[1, ?optional.none(), ?optional.of(2)]", json!([1, 2])),
        ("x.?text.optMap(t, t.size()).value()", json!(5)),
        ("x.none == null", json!(true)),
        ("x.list + [4] == [1, 2, 3, 4]", json!(true)),
        ("duration('90s') + duration('1h') == duration('1h1m30s')", json!(true)),
        ("timestamp('2026-03-01T00:00:00Z') - timestamp('2026-02-28T00:00:00Z') == duration('24h')", json!(true)),
        ("timestamp('2024-02-29T12:30:00Z').getDayOfYear()", json!(59)),
        ("['b', 'a'].sort() == ['a', 'b'] && [[1], [2]].flatten() == [1, 2]", json!(true)),
        ("[{'n': 2}, {'n': 1}].sortBy(e, e.n)[0].n", json!(1)),
        ("'%s has %d, %.1f'.format(['x', 3, 1.25])", json!("x has 3, 1.2")),
        ("'%s'.format([{'a b': 1, 'a': 2}])", json!("{a: 2, a b: 1}")),
        ("type(x.n) == int && type([]) == list", json!(true)),
        ("quantity('1Gi').isGreaterThan(quantity('1G'))", json!(true)),
        ("'a,b,c'.split(',', 2)", json!(["a", "b,c"])),
        ("'AbC'.lowerAscii().replace('b', '-')", json!("a-c")),
        ("string(1.5e300).size() > 300", json!(true)),
    ] {
        assert_eq!(eval(text, &x), Ok(wanted), "{text}");
    }
}

#[test]
fn a_deciding_operand_overrides_an_error_of_the_other() {
    let x = json!({});
    for (text, wanted) in [
        ("x.missing || true", Ok(json!(true))),
        ("true || x.missing", Ok(json!(true))),
        ("x.missing && false", Ok(json!(false))),
        ("[0, 1].exists(e, 1 / e == 1)", Ok(json!(true))),
        ("[0, 2].all(e, 2 / e > 5)", Ok(json!(false))),
        ("x.missing || false", Err("no such key: missing".to_owned())),
        ("[0].map(e, 1 / e)", Err("division by zero".to_owned())),
        ("9223372036854775807 + 1", Err("integer overflow".to_owned())),
        ("[1][5]", Err("index out of bounds: 5".to_owned())),
        ("dyn('a') + 1", Err("no such overload".to_owned())),
    ] {
        assert_eq!(eval(text, &x), wanted, "{text}");
    }
}

#[test]
fn ill_typed_expressions_are_rejected_before_evaluation() {
    let messages = |text: &str| -> Vec<String> {
        match Env::default().compile(text) {
            Ok(_) => Vec::new(),
            Err(issues) => issues.messages().map(str::to_owned).collect(),
        }
    };
    assert_eq!(messages("1 + 'a'"), ["found no matching overload for '_+_' applied to '(int, string)'"]);
    assert_eq!(messages("missing"), ["undeclared reference to 'missing' (in container '')"]);
    assert_eq!(messages("[1, 'a']"), ["expected type 'int' but found 'string'"]);
    assert_eq!(messages("1.map(e, e)").len(), 1);
    assert_eq!(messages("'a'.matches('(')"), ["invalid matches argument"]);
    assert_eq!(messages("[1].all(e, e)"), ["found no matching overload for '_&&_' applied to '(bool, int)'"]);
    assert_eq!(messages("[].map(x, {x: [x]}).size() == 0"), Vec::<String>::new());
}

#[test]
fn functions_are_available_since_their_version() {
    for (text, since) in [("isQuantity('1')", 28), ("isIP('::1')", 30), ("isSemver('1.0.0')", 33), ("[1].sort()", 34)] {
        assert!(Env::new(since - 1).compile(text).is_err(), "{text}");
        assert!(Env::new(since).compile(text).is_ok(), "{text}");
    }
}

#[test]
fn an_item_is_in_a_list_of_constants_if_it_equals_one_of_them() {
    let values = [
        "0",
        "-0.0",
        "1",
        "1u",
        "1.0",
        "1.5",
        "9007199254740993",
        "9007199254740992.0",
        "9223372036854775807",
        "9223372036854775807u",
        "9223372036854775808u",
        "9223372036854775808.0",
        "18446744073709551615u",
        "18446744073709551616.0",
        "-9223372036854775808",
        "-9223372036854775808.0",
        "-1e300",
        "double('NaN')",
        "double('Infinity')",
        "true",
        "false",
        "'1'",
        "'true'",
        "''",
        "b'1'",
        "null",
        "[1]",
        "duration('1s')",
    ];
    for item in values {
        for constant in values {
            let text = format!("[dyn({item}) == {constant}, dyn({item}) in [{constant}, {constant}]]");
            let Value::Array(both) = eval(&text, &Value::Null).unwrap_or_else(|error| panic!("{text}: {error}")) else {
                panic!("{text}: no list");
            };
            assert_eq!(both[0], both[1], "{text}");
        }
    }
    // An item from an object is equal to the same item of a literal.
    for (item, found) in [(json!(2.0), true), (json!(2.5), false), (json!("b"), true), (json!(null), false)] {
        assert_eq!(eval("x in [dyn(1), dyn('b'), dyn(2u)]", &item), Ok(json!(found)), "{item}");
    }
}
