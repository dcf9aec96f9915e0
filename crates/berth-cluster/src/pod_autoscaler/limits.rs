//! Bounds a recommended number of replicas: by earlier recommendations, by the rate of change that
//! the scaling rules allow, and by the minimum and maximum. Pure.
//!
//! Source: Kubernetes documentation, "Horizontal Pod Autoscaling: Configurable scaling behavior".

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscalerBehavior};

/// Default stabilization window of a decrease, in seconds.
const DOWN_WINDOW_DEFAULT: i32 = 300;
/// Longest window or period of scaling rules: older history does not matter.
const HISTORY: SignedDuration = SignedDuration::from_hours(1);

/// Recommendations and changes of an autoscaler. They are lost with the process, as in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Recommendations, oldest first.
    recommended: Vec<(Timestamp, i32)>,
    /// Changes of the number of replicas, oldest first; decreases are negative.
    changes: Vec<(Timestamp, i32)>,
}

impl History {
    /// Adds a recommendation and drops old history.
    pub fn recommend(&mut self, now: Timestamp, replicas: i32) {
        let is_recent = |at: &Timestamp| now.duration_since(*at) <= HISTORY;
        self.recommended.retain(|(at, _)| is_recent(at));
        self.changes.retain(|(at, _)| is_recent(at));
        self.recommended.push((now, replicas));
    }

    /// Records the number of replicas when the scale target is first seen.
    pub fn begin(&mut self, now: Timestamp, replicas: i32) {
        if self.recommended.is_empty() {
            self.recommended.push((now, replicas));
        }
    }

    /// Records a change.
    pub fn changed(&mut self, now: Timestamp, by: i32) {
        self.changes.push((now, by));
    }

    /// Recommendations of the last `window` seconds.
    fn recent(&self, now: Timestamp, window: i32) -> impl Iterator<Item = i32> + '_ {
        let window = SignedDuration::from_secs(i64::from(window));
        self.recommended.iter().filter(move |(at, _)| now.duration_since(*at) < window).map(|(_, replicas)| *replicas)
    }

    /// Replicas at the start of a period of this many seconds that ends now.
    fn replicas_before(&self, current: i32, now: Timestamp, period: i32) -> i32 {
        let period = SignedDuration::from_secs(i64::from(period));
        let recent = self.changes.iter().filter(|(at, _)| now.duration_since(*at) < period);
        recent.fold(current, |replicas, (_, by)| replicas.saturating_sub(*by))
    }
}

/// The bounds of an autoscaler.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    /// Minimum.
    pub min: i32,
    /// Maximum.
    pub max: i32,
    /// Scaling rules.
    pub behavior: Option<HorizontalPodAutoscalerBehavior>,
}

/// A number of replicas within its bounds, with the reasons and messages of the conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounded {
    /// Number of replicas.
    pub replicas: i32,
    /// Reason and message of the condition AbleToScale, which is True.
    pub able: (&'static str, &'static str),
    /// True if a limit changed the recommendation.
    pub is_limited: bool,
    /// Reason and message of the condition ScalingLimited.
    pub limited: (&'static str, &'static str),
}

const READY: (&str, &str) = ("ReadyForNewScale", "recommended size matches current size");
const UP_STABILIZED: (&str, &str) = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const DOWN_STABILIZED: (&str, &str) = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const WITHIN_RANGE: (&str, &str) = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_FEW: (&str, &str) = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const TOO_MANY: (&str, &str) = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const UP_LIMIT: (&str, &str) =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: (&str, &str) =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");

/// Bounds a recommendation. `history` has the recommendations before this one.
pub fn bound(bounds: &Bounds, history: &History, current: i32, recommended: i32, now: Timestamp) -> Bounded {
    let up = bounds.behavior.as_ref().and_then(|behavior| behavior.scale_up.as_ref());
    let down = bounds.behavior.as_ref().and_then(|behavior| behavior.scale_down.as_ref());
    let window = |rules: Option<&HPAScalingRules>, default: i32| {
        rules.and_then(|rules| rules.stabilization_window_seconds).unwrap_or(default)
    };
    // An increase goes to the lowest recent recommendation, a decrease to the highest.
    let lowest = history.recent(now, window(up, 0)).fold(recommended, i32::min);
    let highest = history.recent(now, window(down, DOWN_WINDOW_DEFAULT)).fold(recommended, i32::max);
    let stable = current.max(lowest).min(highest);
    let able = match stable == recommended {
        true => READY,
        false if recommended >= current => UP_STABILIZED,
        false => DOWN_STABILIZED,
    };
    let (replicas, limited) = limit(bounds, history, current, stable, now);
    Bounded { replicas, able, is_limited: replicas != stable, limited }
}

fn limit(
    bounds: &Bounds,
    history: &History,
    current: i32,
    wanted: i32,
    now: Timestamp,
) -> (i32, (&'static str, &'static str)) {
    let rules =
        |of: fn(&HorizontalPodAutoscalerBehavior) -> Option<&HPAScalingRules>| bounds.behavior.as_ref().and_then(of);
    if wanted > current {
        let rate = match rules(|behavior| behavior.scale_up.as_ref()) {
            Some(rules) => rate(rules, history, current, now, true).max(current),
            // Without rules, the number may be doubled, or increased to four if that is more.
            None => current.saturating_mul(2).max(4),
        };
        let (most, reason) = if bounds.max > rate { (rate, UP_LIMIT) } else { (bounds.max, TOO_MANY) };
        if wanted > most {
            return (most, reason);
        }
    }
    if wanted < current {
        let rate = match rules(|behavior| behavior.scale_down.as_ref()) {
            Some(rules) => rate(rules, history, current, now, false).min(current),
            None => 0,
        };
        let (least, reason) = if bounds.min < rate { (rate, DOWN_LIMIT) } else { (bounds.min, TOO_FEW) };
        if wanted < least {
            return (least, reason);
        }
    }
    (wanted, WITHIN_RANGE)
}

/// The number of replicas to which rules allow a change now.
fn rate(rules: &HPAScalingRules, history: &History, current: i32, now: Timestamp, is_up: bool) -> i32 {
    let select = rules.select_policy.as_deref().unwrap_or("Max");
    if select == "Disabled" {
        return current;
    }
    let limits = rules.policies.iter().flatten().map(|policy| {
        let before = history.replicas_before(current, now, policy.period_seconds);
        match (policy.type_.as_str(), is_up) {
            ("Percent", true) => share(before, 100_i64.saturating_add(policy.value.into()), 99),
            ("Percent", false) => share(before, 100_i64.saturating_sub(policy.value.into()), 0),
            (_, true) => before.saturating_add(policy.value),
            (_, false) => before.saturating_sub(policy.value),
        }
    });
    // `Max` allows the largest change: the highest limit of an increase, the lowest of a decrease.
    let limit = if (select == "Min") == is_up { limits.min() } else { limits.max() };
    limit.unwrap_or(current)
}

/// `percent` of `replicas`; `round` is 99 to round up, and 0 to round down.
fn share(replicas: i32, percent: i64, round: i64) -> i32 {
    let product = i64::from(replicas).saturating_mul(percent).saturating_add(round);
    i32::try_from(product.div_euclid(100)).unwrap_or(i32::MAX)
}
