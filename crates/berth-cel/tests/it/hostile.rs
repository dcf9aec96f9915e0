//! No expression that a user can write crashes, hangs or grows without bound.

use berth_cel::types::Type;
use berth_cel::value::untyped;
use berth_cel::{Env, EvalError, Run};
use serde_json::json;

fn env() -> Env {
    Env::default().variable("x", Type::Dyn)
}

#[test]
fn the_deepest_expressions_that_parse_also_run() {
    // The expressions run on a thread with the stack size of a worker.
    let deepest = || {
        let x = json!({});
        let texts = [
            format!("{}1{}", "[".repeat(240), "]".repeat(240)),
            format!("{}true{}", "!(".repeat(240), ")".repeat(240)),
            format!("x{}", ".a".repeat(380)),
            vec!["1"; 240].join(" + "),
            format!("{}x{}", "size([".repeat(120), "])".repeat(120)),
            vec!["[1].all(a, "; 120].concat() + "true" + &")".repeat(120),
        ];
        for text in texts {
            let program = env().compile(&text).unwrap_or_else(|issues| panic!("{text}: {issues}"));
            let _ = program.run(&[untyped(&x)], Run::default());
            let _ = program.estimate(&berth_cel::estimate::Unknown);
        }
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(deepest).expect("a thread");
    thread.join().expect("no overflow");
}

/// A lookup among constants is free, so more constants must not make it slower. A linear search
/// would make about 6 * 10^9 comparisons here and take minutes.
#[test]
fn an_item_is_looked_up_among_constants() {
    let x = json!(vec![2; 100_000]);
    let repeated = |item: &str, last: &str| format!("[{}{last}]", format!("{item},").repeat(20_000));
    for (list, found) in [(repeated("1", "3"), false), (repeated("1", "2"), true), (repeated("1.5", "2.0"), true)] {
        let program = env().compile(&format!("x.all(i, i in {list})")).unwrap_or_else(|issues| panic!("{issues}"));
        let ran = program.run(&[untyped(&x)], Run { limit: Some(10_000_000), ..Run::default() });
        assert_eq!(ran.result.map(|value| value.to_json()), Ok(Some(json!(found))), "{}", &list[list.len() - 9..]);
    }
    let list = repeated("1", "3");
    let program = env().compile(&format!("!x.exists(i, i in {list})")).unwrap_or_else(|issues| panic!("{issues}"));
    let ran = program.run(&[untyped(&x)], Run { limit: Some(10_000_000), ..Run::default() });
    assert_eq!(ran.result.map(|value| value.to_json()), Ok(Some(json!(true))));
}

#[test]
fn evaluation_stops_at_the_cost_limit() {
    for text in [
        "[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, \
         [1,2,3,4,5,6,7,8,9].all(e, [1,2,3,4,5,6,7,8,9].all(f, a + b + c + d + e + f > 0))))))",
        "lists.range(2000000).size() > 0",
        "lists.range(900000).map(i, i * i).size() > 0",
        "lists.range(3000).distinct().size() > 0",
    ] {
        let program = env().compile(text).unwrap_or_else(|issues| panic!("{issues}"));
        let x = json!(null);
        let ran = program.run(&[untyped(&x)], Run { limit: Some(1_000_000), ..Run::default() });
        assert!(
            matches!(ran.result, Err(EvalError::CostLimit | EvalError::Message(_))),
            "{text}: {:?} for {}",
            ran.result,
            ran.cost
        );
    }
}

#[test]
fn random_expressions_do_not_crash_the_compiler() {
    // Random sequences of pieces of real expressions. The generator is deterministic, so that every
    // run is the same.
    let pieces = [
        "x",
        ".",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "?",
        ":",
        ",",
        "'a'",
        "\"",
        "1",
        "-",
        "!",
        "&&",
        "||",
        "==",
        "in",
        "all",
        "map",
        "has",
        "e",
        " ",
        "size",
        "\\",
        "0x",
        "1e9",
        "r'",
        "b\"",
        "`",
        "👑",
        "\n",
        "optMap",
        "sortBy",
        ".?",
        "[?",
        "transformMap",
        "type",
        "null",
        "true",
    ];
    let mut state = 0x9e37_79b9_u64;
    let mut next = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let x = json!({"a": [1, {"b": "c"}], "e": "f"});
    let mut compiled = 0;
    for _ in 0..20_000 {
        let text: String = (0..1 + next(12)).map(|_| pieces[next(pieces.len())]).collect();
        if let Ok(program) = env().compile(&text) {
            compiled += 1;
            let _ = program.run(&[untyped(&x)], Run { limit: Some(10_000), ..Run::default() });
        }
    }
    assert!(compiled > 100, "only {compiled} of them compiled");
}
