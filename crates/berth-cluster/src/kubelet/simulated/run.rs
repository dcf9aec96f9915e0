//! The duration and exit code of a simulated container.
//!
//! They come from the first of these sources that applies: the pod's annotations, a command that is
//! just `sleep 30`, `exit 3`, `true` or `false`, the first matching rule of the configuration, the
//! default. Scripts are not searched for such commands. The default duration is unlimited for pods
//! with restart policy Always.

use std::time::Duration;

use berth_api::berth::{
    CONTAINER_RUN_DURATION_PREFIX, EXIT_CODE_ANNOTATION, RUN_DURATION_ANNOTATION, RunDuration, SimulatedPods,
};
use berth_apimachinery::well_known;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;

use crate::placement::matches_label_selector;
use crate::random::draw;

/// Annotation that fault injection sets. It makes the running pod fail at once.
pub const FAIL_NOW_ANNOTATION: &str = "berth.dev/fail-now";

/// The plan of one run of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPlan {
    /// Duration; `None` to run until stopped.
    pub duration: Option<Duration>,
    /// Exit code.
    pub exit_code: i32,
}

/// The run of a pod's container.
pub fn plan(pod: &Pod, container: &Container, runtime: &SimulatedPods, seed: u64) -> RunPlan {
    let annotation = |key: &str| pod.annotations().get(key).map(String::as_str);
    let command = Command::of(container);
    let rule = runtime.rules.iter().find(|rule| {
        (rule.namespaces.is_empty() || pod.namespace().is_some_and(|namespace| rule.namespaces.contains(&namespace)))
            && rule.selector.as_ref().is_none_or(|selector| matches_label_selector(Some(selector), pod.labels()))
    });
    let restarts_always =
        pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always") == "Always";
    let own = format!("{CONTAINER_RUN_DURATION_PREFIX}{}", container.name);
    let duration = annotation(&own)
        .or_else(|| annotation(RUN_DURATION_ANNOTATION))
        .and_then(|text| text.trim().parse().ok())
        .or(command.duration)
        .or_else(|| rule.and_then(|rule| rule.duration))
        .unwrap_or(if restarts_always { RunDuration::Forever } else { runtime.default_duration });
    let exit_code = annotation(EXIT_CODE_ANNOTATION)
        .and_then(|text| text.trim().parse().ok())
        .or(command.exit_code)
        .or_else(|| rule.and_then(|rule| rule.exit_code).map(|code| i32::from(code.0)))
        .unwrap_or(0);
    RunPlan { duration: resolve(duration, pod, seed), exit_code }
}

/// The run of a container, from its command alone.
pub fn plan_of_command(container: &Container) -> RunPlan {
    let command = Command::of(container);
    let duration = match command.duration {
        Some(RunDuration::Fixed(duration)) => Some(duration.0),
        _ => None,
    };
    RunPlan { duration, exit_code: command.exit_code.unwrap_or(0) }
}

/// Resolves a duration. If it is a distribution, draws a value from it. Pods with the same owner
/// and completion index get the same value, so that the replacement of a preempted pod runs as long
/// as the preempted one.
fn resolve(duration: RunDuration, pod: &Pod, seed: u64) -> Option<Duration> {
    match duration {
        RunDuration::Fixed(duration) => Some(duration.0),
        RunDuration::Forever => None,
        RunDuration::Between { min, max } => {
            let namespace = pod.namespace().unwrap_or_default();
            let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
            let index = pod.annotations().get(well_known::COMPLETION_INDEX);
            let number = match (owner, index) {
                (Some(owner), Some(index)) => draw(seed, &["run", &namespace, &owner.kind, &owner.name, index]),
                _ => draw(seed, &["run", &namespace, &pod.name_any()]),
            };
            let span = (max.0 - min.0).as_millis() + 1;
            let millis = u64::try_from(u128::from(number) % span).unwrap_or(0);
            Some(min.0 + Duration::from_millis(millis))
        }
    }
}

/// The duration and exit code of a command that states them. Both are `None` for other commands and
/// scripts: only a shell knows what `test -f /x || exit 1` does.
#[derive(Debug, Default, PartialEq)]
struct Command {
    duration: Option<RunDuration>,
    exit_code: Option<i32>,
}

impl Command {
    /// The command of a container: `sleep N`, `true`, `false`, `exit N`, directly or in a shell
    /// (`sh -c "sleep 5"`). In a shell, `exit N` may follow `sleep N` (`sleep 5; exit 1`).
    fn of(container: &Container) -> Self {
        let words: Vec<&str> =
            container.command.iter().flatten().chain(container.args.iter().flatten()).map(String::as_str).collect();
        let script = match words.as_slice() {
            [shell, "-c", script] | [shell, "-c", "--", script] if is_shell(shell) => *script,
            words => return Self::simple(words).unwrap_or_default(),
        };
        let statements = script.trim().trim_end_matches(';').replace("&&", ";").replace('\n', ";");
        let statements: Vec<Vec<&str>> = statements.split(';').map(|it| it.split_whitespace().collect()).collect();
        match statements.as_slice() {
            [only] => Self::simple(only).unwrap_or_default(),
            [first, second] => match (Self::simple(first), Self::simple(second)) {
                (Some(Self { duration, exit_code: None }), Some(Self { exit_code: Some(code), .. })) => {
                    Self { duration, exit_code: Some(code) }
                }
                _ => Self::default(),
            },
            _ => Self::default(),
        }
    }

    /// The duration and exit code of one simple command; `None` for any other command.
    fn simple(words: &[&str]) -> Option<Self> {
        let (program, operands) = words.split_first()?;
        match (program.rsplit('/').next()?, operands) {
            ("true", []) => Some(Self { duration: Some(fixed(0.0)), exit_code: Some(0) }),
            ("false", []) => Some(Self { duration: Some(fixed(0.0)), exit_code: Some(1) }),
            ("exit", [code]) => {
                let code = code.parse::<u8>().ok()?;
                Some(Self { duration: Some(fixed(0.0)), exit_code: Some(i32::from(code)) })
            }
            ("sleep", [_, ..]) => {
                let seconds: f64 = operands.iter().map(|word| sleep_seconds(word)).sum::<Option<f64>>()?;
                let duration = if seconds.is_finite() { fixed(seconds) } else { RunDuration::Forever };
                Some(Self { duration: Some(duration), exit_code: None })
            }
            _ => None,
        }
    }
}

fn is_shell(program: &str) -> bool {
    matches!(program.rsplit('/').next(), Some("sh" | "bash" | "ash" | "dash" | "zsh"))
}

fn fixed(seconds: f64) -> RunDuration {
    RunDuration::Fixed(berth_api::berth::Duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 4)))
}

/// An operand of `sleep`: a number with an optional unit, or `infinity`.
fn sleep_seconds(word: &str) -> Option<f64> {
    if matches!(word, "infinity" | "inf") {
        return Some(f64::INFINITY);
    }
    let (number, factor) = match word.char_indices().last()? {
        (at, 's') => (&word[..at], 1.0),
        (at, 'm') => (&word[..at], 60.0),
        (at, 'h') => (&word[..at], 3600.0),
        (at, 'd') => (&word[..at], 86_400.0),
        _ => (word, 1.0),
    };
    let is_plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    is_plain.then(|| number.parse::<f64>().ok().map(|number| number * factor)).flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use berth_api::berth::{ExitCode, RunRule};
    use k8s_openapi::api::core::v1::PodSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

    use super::*;

    fn check(command: &[&str], expected: (Option<u64>, i32)) {
        let pod = pod(&[]);
        let container = container(command);
        let run = plan(&pod, &container, &SimulatedPods::default(), 1);
        assert_eq!((run.duration.map(|d| d.as_secs()), run.exit_code), expected, "{command:?}");
    }

    fn pod(annotations: &[(&str, &str)]) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".into());
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.labels = Some(BTreeMap::from([("app".into(), "x".into())]));
        pod.metadata.annotations = Some(annotations.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect());
        pod.spec = Some(PodSpec { restart_policy: Some("Never".into()), ..Default::default() });
        pod
    }

    fn container(command: &[&str]) -> Container {
        Container { command: Some(command.iter().map(|word| word.to_string()).collect()), ..Default::default() }
    }

    #[test]
    fn a_command_sets_the_duration_and_the_exit_code() {
        check(&["sleep", "30"], (Some(30), 0));
        check(&["/usr/bin/sleep", "1m", "30"], (Some(90), 0));
        check(&["sleep", "infinity"], (None, 0));
        check(&["/bin/false"], (Some(0), 1));
        check(&["/bin/sh", "-c", "sleep 5"], (Some(5), 0));
        check(&["/bin/bash", "-c", "--", "exit 3"], (Some(0), 3));
        check(&["sh", "-c", "sleep 2m && exit 1"], (Some(120), 1));
        check(&["sh", "-c", "sleep 15; exit 1\n"], (Some(15), 1));
        check(&["sh", "-c", "sleep 5; true"], (Some(5), 0));
    }

    #[test]
    fn a_script_says_nothing_about_its_run() {
        for script in [
            "test -f /x || exit 1",
            "echo hi",
            "echo hi; sleep 5; exit 3",
            "sleep $DURATION",
            "sleep 5 & wait",
            "sleep 5 || exit 1",
            "exit 1; sleep 5",
            "sleep 5; sleep 3",
            "python train.py && sleep 10",
            "torchrun --nnodes 2 main.py",
            "",
        ] {
            check(&["sh", "-c", script], (Some(60), 0));
        }
        check(&["python", "sleep", "5"], (Some(60), 0));
        check(&["sleep"], (Some(60), 0));
        check(&["true", "story"], (Some(60), 0));
    }

    #[test]
    fn annotations_override_commands_and_commands_override_rules() {
        let rule = RunRule {
            selector: Some(LabelSelector {
                match_labels: Some(BTreeMap::from([("app".into(), "x".into())])),
                ..Default::default()
            }),
            duration: Some(RunDuration::Fixed(berth_api::berth::Duration::from_secs(7))),
            exit_code: Some(ExitCode(9)),
            ..Default::default()
        };
        let runtime = SimulatedPods { rules: vec![rule], ..Default::default() };
        let run = |annotations: &[(&str, &str)], command: &[&str]| {
            let run = plan(&pod(annotations), &container(command), &runtime, 1);
            (run.duration.map(|d| d.as_secs()), run.exit_code)
        };
        assert_eq!(
            run(&[("berth.dev/run-duration", "180s"), ("berth.dev/exit-code", "2")], &["sleep", "5"]),
            (Some(180), 2)
        );
        assert_eq!(run(&[], &["sleep", "5"]), (Some(5), 9));
        let both = [("berth.dev/run-duration", "180s"), ("run-duration.berth.dev/main", "20s")];
        let named = Container { name: "main".into(), ..container(&["train"]) };
        assert_eq!(plan(&pod(&both), &named, &runtime, 1).duration.map(|d| d.as_secs()), Some(20));
        let other = Container { name: "log".into(), ..container(&["train"]) };
        assert_eq!(plan(&pod(&both), &other, &runtime, 1).duration.map(|d| d.as_secs()), Some(180));
        assert_eq!(run(&[], &["train"]), (Some(7), 9));
    }

    #[test]
    fn a_drawn_duration_is_reproducible_and_within_its_bounds() {
        let bounds = RunDuration::Between {
            min: berth_api::berth::Duration::from_secs(10),
            max: berth_api::berth::Duration::from_secs(20),
        };
        let one = resolve(bounds, &pod(&[]), 1).unwrap();
        assert_eq!(Some(one), resolve(bounds, &pod(&[]), 1));
        assert!((10..=20).contains(&one.as_secs()));
    }
}
