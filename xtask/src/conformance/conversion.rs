//! Recorded cases of the conversion of Kueue's objects between v1beta1 and v1beta2. The results of
//! `berth_api`'s conversion must equal the recorded objects.

use berth_api::kueue::conversion::convert;
use serde_json::Value;

use super::{Case, Runner, Verdict};

/// The runner of a suite, if it belongs to this module.
pub fn runner(suite: &str) -> Option<Runner> {
    let subject = suite.strip_prefix("conversion-")?;
    Some(match subject {
        _ if subject.ends_with("-round-trip-reverse") => |case| round_trip(case, "v1beta2Obj", "v1beta1", "v1beta2"),
        _ if subject.ends_with("-round-trip") => |case| round_trip(case, "v1beta1Obj", "v1beta2", "v1beta1"),
        _ if subject.ends_with("-convert-to") => |case| convert_once(case, "v1beta2"),
        _ if subject.ends_with("-convert-from") => |case| convert_once(case, "v1beta1"),
        _ => return None,
    })
}

fn convert_once(case: &Case, to: &str) -> Verdict {
    let got = convert(case.input["input"].clone(), to).map_err(|e| e.to_string())?;
    compare(&case.want["result"], &got)
}

fn round_trip(case: &Case, input: &str, there: &str, back: &str) -> Verdict {
    let original = &case.input[input];
    let there = convert(original.clone(), there).map_err(|e| e.to_string())?;
    let back = convert(there, back).map_err(|e| e.to_string())?;
    compare(original, &back)
}

fn compare(want: &Value, got: &Value) -> Verdict {
    if want == got { Ok(()) } else { Err(format!("want {want}\ngot  {got}")) }
}
