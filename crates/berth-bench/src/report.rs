//! The report of a load run, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use berth_load::Plan;
use berth_load::drive::{ClassFigures, Outcome};
use berth_load::ledger::Violations;
use berth_process::limit::Limit;
use serde_json::{Value, json};

use crate::measure::{Cost, mebibytes};
use crate::target::Writes;

/// Times with which the run is compared.
pub struct Clock {
    /// Lower bound of any schedule, from quota, the creation schedule and the client's limit, if
    /// any.
    pub lower_bound: Duration,
}

/// Results of one run.
pub struct Report {
    /// The generator file.
    pub configuration: String,
    /// Description of the API and the controllers.
    pub target: String,
    /// The controllers' client limit.
    pub limit: Option<Limit>,
    /// The planned workloads.
    pub plan: &'static Plan,
    /// The outcome of the run.
    pub outcome: Outcome,
    /// The outcome of the same policy if decisions and requests took no time.
    pub ideal: Outcome,
    /// Times with which the run is compared.
    pub times: Clock,
    /// Writes of the controllers.
    pub controller_writes: Writes,
    /// Writes of the generator and of the mimic.
    pub load_writes: Writes,
    /// Number of failed requests of the generator and of the mimic, by error.
    pub failures: BTreeMap<String, u64>,
    /// Cost of each process.
    pub costs: Vec<(String, Cost)>,
    /// Size of the store's files, in bytes.
    pub disk: Option<u64>,
    /// Bytes of memory per object, by kind, if measured.
    pub memory: Option<BTreeMap<&'static str, u64>>,
    /// Number of admissions since stopped queues were released, and the time they took.
    pub drain: Option<(u64, Duration)>,
    /// Violated rules.
    pub violations: Violations,
}

fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}

fn ratio(a: Duration, b: Duration) -> f64 {
    if b.is_zero() { 0.0 } else { (a.as_secs_f64() / b.as_secs_f64() * 1000.0).round() / 1000.0 }
}

fn rate(count: u64, took: Duration) -> f64 {
    (count as f64 / took.as_secs_f64().max(1e-9)).round()
}

impl Report {
    fn finished(&self) -> usize {
        self.plan.arrivals.len() - self.outcome.unfinished
    }

    fn per_finished(&self, count: u64) -> f64 {
        (count as f64 / self.finished().max(1) as f64 * 1000.0).round() / 1000.0
    }

    /// The report as JSON.
    pub fn json(&self) -> Value {
        let class = |figures: &ClassFigures| {
            json!({
                "workloads": figures.count,
                "secondsToAdmission": {
                    "mean": seconds(figures.admission.mean),
                    "median": seconds(figures.admission.median),
                    "p99": seconds(figures.admission.p99),
                },
                "evictions": figures.evictions,
                "lostSeconds": seconds(figures.lost),
            })
        };
        let classes = |outcome: &Outcome| -> BTreeMap<String, Value> {
            outcome.classes.iter().map(|(name, figures)| (name.clone(), class(figures))).collect()
        };
        let per = |writes: &Writes| -> BTreeMap<String, f64> {
            writes.iter().map(|(kind, count)| (kind.clone(), self.per_finished(*count))).collect()
        };
        let costs: BTreeMap<&str, Value> = self
            .costs
            .iter()
            .map(|(name, cost)| {
                let value = json!({
                    "cpuSeconds": seconds(cost.cpu),
                    "peakMiB": mebibytes(cost.peak).round(),
                    "residentMiB": mebibytes(cost.resident).round(),
                });
                (name.as_str(), value)
            })
            .collect();
        json!({
            "configuration": self.configuration,
            "target": self.target,
            "limit": self.limit.map(|limit| json!({"qps": limit.qps, "burst": limit.burst})),
            "workloads": self.plan.arrivals.len(),
            "finished": self.finished(),
            "wallSeconds": seconds(self.outcome.wall),
            "lowerBoundSeconds": seconds(self.times.lower_bound),
            "idealWithPolicySeconds": seconds(self.ideal.wall),
            "ratioToLowerBound": ratio(self.outcome.wall, self.times.lower_bound),
            "ratioToIdealWithPolicy": ratio(self.outcome.wall, self.ideal.wall),
            "quotaUse": (self.outcome.quota_use * 1000.0).round() / 1000.0,
            "admissions": self.outcome.admissions,
            "classes": classes(&self.outcome),
            "idealWithPolicy": {"classes": classes(&self.ideal), "admissions": self.ideal.admissions},
            "controllerWritesPerFinishedWorkload": per(&self.controller_writes),
            "loadWritesPerFinishedWorkload": per(&self.load_writes),
            "failedRequests": self.failures,
            "costs": costs,
            "diskMiB": self.disk.map(|bytes| mebibytes(bytes).round()),
            "bytesPerObject": self.memory,
            "drain": self.drain.map(|(count, took)| json!({
                "admissions": count, "seconds": seconds(took), "perSecond": rate(count, took),
            })),
            "violations": {"count": self.violations.count, "described": self.violations.described},
        })
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let outcome = &self.outcome;
        writeln!(out, "{} on {}", self.configuration, self.target)?;
        match self.limit {
            Some(limit) => {
                writeln!(out, "controllers limited to {} requests/s and kind, burst {}", limit.qps, limit.burst)?;
            }
            None => writeln!(out, "controllers not limited")?,
        }
        // The run as a whole, beside its lower bound and the ideal schedule.
        writeln!(
            out,
            "\nwall           {:.2} s for {} of {} workloads, {} admissions",
            outcome.wall.as_secs_f64(),
            self.finished(),
            self.plan.arrivals.len(),
            outcome.admissions
        )?;
        writeln!(
            out,
            "lower bound    {:.2} s: {:.3} times as long",
            self.times.lower_bound.as_secs_f64(),
            ratio(outcome.wall, self.times.lower_bound)
        )?;
        writeln!(
            out,
            "ideal, policy  {:.2} s: {:.3} times as long",
            self.ideal.wall.as_secs_f64(),
            ratio(outcome.wall, self.ideal.wall)
        )?;
        writeln!(out, "quota use      {:.1} %", outcome.quota_use * 100.0)?;
        // Times to admission per class of workloads.
        writeln!(
            out,
            "\n{:24} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>9}",
            "time to admission, s", "workloads", "mean", "median", "p99", "ideal mean", "evictions", "lost, s"
        )?;
        for (name, figures) in &outcome.classes {
            let ideal = self.ideal.classes.get(name).map_or(Duration::ZERO, |it| it.admission.mean);
            writeln!(
                out,
                "{name:24} {:9} {:9.3} {:9.3} {:9.3} {:10.3} {:9} {:9.1}",
                figures.count,
                figures.admission.mean.as_secs_f64(),
                figures.admission.median.as_secs_f64(),
                figures.admission.p99.as_secs_f64(),
                ideal.as_secs_f64(),
                figures.evictions,
                figures.lost.as_secs_f64()
            )?;
        }
        self.write_costs(out)?;
        // What went wrong.
        for (what, count) in &self.failures {
            writeln!(out, "{count} times {what}")?;
        }
        writeln!(out, "\n{} violations", self.violations.count)?;
        for text in &self.violations.described {
            writeln!(out, "  {text}")?;
        }
        Ok(())
    }

    /// Writes, processor time, memory and disk.
    fn write_costs(&self, out: &mut String) -> std::fmt::Result {
        for (title, writes) in [("controllers", &self.controller_writes), ("the load", &self.load_writes)] {
            if !writes.is_empty() {
                writeln!(out, "\nwrites of {title} per finished workload")?;
            }
            for (kind, count) in writes {
                writeln!(out, "{kind:48} {:9.3}", self.per_finished(*count))?;
            }
        }
        writeln!(out)?;
        for (name, cost) in &self.costs {
            writeln!(
                out,
                "{name:28} {:8.2} s cpu, peak {:.0} MiB, now {:.0} MiB",
                cost.cpu.as_secs_f64(),
                mebibytes(cost.peak),
                mebibytes(cost.resident)
            )?;
        }
        if let Some(bytes) = self.disk {
            writeln!(out, "{:28} {:.0} MiB", "disk", mebibytes(bytes))?;
        }
        for (kind, bytes) in self.memory.iter().flatten() {
            writeln!(out, "{:28} {bytes} bytes", format!("memory per {kind}"))?;
        }
        if let Some((count, took)) = self.drain {
            let each = rate(count, took);
            writeln!(out, "{:28} {count} admissions in {:.2} s: {each} a second", "drain", took.as_secs_f64())?;
        }
        Ok(())
    }
}
