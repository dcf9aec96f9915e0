//! Cluster time on the command line: real time, or a number of times faster. A faster clock starts
//! in the past, so that it stays behind the clocks of clients: kubectl prints the age of an object
//! from the future as `<invalid>`. A data folder stores how far cluster time has come. After a
//! restart cluster time continues from there, or from the start of a new cluster's clock if that is
//! later, and never precedes a time that an object contains.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use berth_runtime::Clock;
use clap::Args;
use jiff::{SignedDuration, Timestamp};

/// Speed of an embedded cluster's clock.
#[derive(Args)]
#[command(next_help_heading = "Embedded cluster's clock")]
pub struct TimeOptions {
    /// Run the embedded cluster's clock this many times faster than real time. The clock starts in
    /// the past and stays behind real time for eight hours. It starts at most one year in the past,
    /// so with a value above 1,096 it catches up sooner.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = scale)]
    time_scale: f64,
    /// The time (RFC 3339) at which cluster time and real time are equal. All processes of a
    /// cluster with a scaled clock need the same value; `berth apiserver` prints it. Default: eight
    /// hours from now. With an existing data folder, the default is the value with which
    /// its cluster time continues.
    #[arg(long, value_name = "TIME", requires = "time_scale")]
    time_origin: Option<Timestamp>,
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale <= 100_000.0 => Ok(scale),
        _ => Err("expected a number above 0, at most 100000".into()),
    }
}

impl TimeOptions {
    /// True if cluster time runs at the speed of real time.
    pub fn is_real_speed(&self) -> bool {
        self.time_scale == 1.0
    }

    /// The clock of a cluster that stores its time in this folder; `None` if nothing is stored.
    ///
    /// # Errors
    /// The folder's time cannot be read, or the options would turn cluster time back.
    pub fn clock(&self, folder: Option<&Path>) -> anyhow::Result<ClusterTime> {
        let system = Clock::system();
        let now = system.now();
        let file = folder.map(|folder| folder.join(FILE));
        let kept = file.as_deref().map(read).transpose()?.flatten().map(|kept| kept.passed(now));
        // The stored time is rounded up, so that a rounding error does not turn cluster time back.
        let kept = kept.map(|kept| kept.checked_add(ROUNDING).unwrap_or(Timestamp::MAX));
        let ahead = kept.filter(|kept| *kept > now);
        if self.time_scale == 1.0 {
            return Ok(match ahead {
                Some(kept) => {
                    ClusterTime { clock: Clock::scaled(kept, 1.0), scale: 1.0, options: Shared::Never(kept), file }
                }
                None => ClusterTime { clock: system, scale: 1.0, options: Shared::System, file: None },
            });
        }
        let origin = match self.time_origin {
            Some(origin) => origin,
            None => {
                let fresh = now.checked_add(self.behind_for()).unwrap_or(Timestamp::MAX);
                match kept.filter(|kept| *kept > self.shown(fresh, now)) {
                    Some(kept) => {
                        let ahead = kept.duration_since(now).as_secs_f64() / (self.time_scale - 1.0);
                        let ahead =
                            SignedDuration::try_from_secs_f64(ahead).context("--time-scale is too close to 1")?;
                        now.checked_sub(ahead).context("--time-scale is too close to 1")?
                    }
                    None => fresh,
                }
            }
        };
        let shown = self.shown(origin, now);
        // The two clocks are read one after the other, and cluster time continues in between.
        let moment = SignedDuration::try_from(MOMENT.mul_f64(self.time_scale)).unwrap_or(SignedDuration::MAX);
        let latest = shown.checked_add(moment.max(ROUNDING)).unwrap_or(Timestamp::MAX);
        if let Some(kept) = kept.filter(|kept| latest < *kept) {
            bail!(
                "--time-origin {origin}: cluster time would be {shown}, but it has already reached {kept}; omit the option to continue"
            );
        }
        let options = format!("--time-scale {} --time-origin {origin}", self.time_scale);
        let clock = Clock::scaled(shown, self.time_scale);
        Ok(ClusterTime { clock, scale: self.time_scale, options: Shared::Options(options), file })
    }

    /// Real time for which a new cluster's clock stays behind real time. Zero for a clock that is
    /// not faster than real time, which can never overtake it.
    fn behind_for(&self) -> SignedDuration {
        let gain = self.time_scale - 1.0;
        if gain <= 0.0 {
            return SignedDuration::ZERO;
        }
        let most = SignedDuration::try_from_secs_f64(BEHIND_MAX.as_secs_f64() / gain).unwrap_or(SignedDuration::MAX);
        most.min(BEHIND_FOR)
    }

    /// Cluster time at the real time `now`.
    fn shown(&self, origin: Timestamp, now: Timestamp) -> Timestamp {
        let passed = now.duration_since(origin).as_secs_f64() * self.time_scale;
        let passed = SignedDuration::try_from_secs_f64(passed).unwrap_or(SignedDuration::MAX);
        origin.checked_add(passed).unwrap_or(Timestamp::MAX)
    }

    /// The clock of a process that joins a cluster. It needs the origin of the cluster's time.
    ///
    /// # Errors
    /// The clock is scaled and no origin is given.
    pub fn joining_clock(&self) -> anyhow::Result<Clock> {
        if self.time_scale != 1.0 && self.time_origin.is_none() {
            bail!("--time-scale needs --time-origin with the value that `berth apiserver` printed at its start");
        }
        Ok(self.clock(None)?.clock)
    }
}

/// Real time for which a faster clock stays behind real time: a working day.
const BEHIND_FOR: SignedDuration = SignedDuration::from_hours(8);
/// Maximum time in the past at which cluster time starts.
const BEHIND_MAX: SignedDuration = SignedDuration::from_hours(365 * 24);

/// File of a data folder with cluster time. It has a time that cluster time has not passed (RFC
/// 3339), so that it need not be written at each reading of the clock. After a kill it also has the
/// last known pair of cluster time and real time, and the clock's speed.
pub const FILE: &str = "cluster-time";
/// Interval of writes of the file, in real time.
const EVERY: Duration = Duration::from_secs(2);
/// Lead of the stored bound over cluster time, in real time. Longer than the interval, because a
/// busy machine may be late.
const AHEAD: Duration = Duration::from_secs(5);
/// Maximum real time between the readings of the two clocks.
const MOMENT: Duration = Duration::from_millis(20);
/// Generous limit of rounding errors in the sum of origin and elapsed time.
const ROUNDING: SignedDuration = SignedDuration::from_millis(1);

/// The stored cluster time.
#[derive(Clone, Copy)]
struct StoredTime {
    /// A time that cluster time has not passed.
    bound: Timestamp,
    /// The clock's progress; `None` if the cluster stopped at the bound.
    running: Option<Running>,
}

/// Progress of cluster time.
#[derive(Clone, Copy)]
struct Running {
    cluster: Timestamp,
    /// The real time of the reading.
    real: Timestamp,
    scale: f64,
}

impl StoredTime {
    /// The latest possible cluster time at the real time `now`: the clock ran no longer than until
    /// now, and not past its bound.
    fn passed(&self, now: Timestamp) -> Timestamp {
        // Real time may have been turned back. Then the elapsed time is unknown.
        let Some(running) = self.running.filter(|running| running.real <= now) else { return self.bound };
        let passed = now.duration_since(running.real).as_secs_f64() * running.scale;
        let passed = SignedDuration::try_from_secs_f64(passed).unwrap_or(SignedDuration::MAX);
        running.cluster.checked_add(passed).unwrap_or(Timestamp::MAX).min(self.bound)
    }
}

/// The clock of a cluster, and the options for the same clock later or in another process.
pub struct ClusterTime {
    /// The clock.
    pub clock: Clock,
    scale: f64,
    options: Shared,
    /// File of cluster time; `None` for the system's clock, or if nothing is stored.
    file: Option<PathBuf>,
}

/// Options that other processes need for the same clock.
enum Shared {
    /// No option: it is the system's clock.
    System,
    Options(String),
    /// No option can express it: the clock runs at real speed with a fixed lead, since this time.
    Never(Timestamp),
}

impl ClusterTime {
    /// The options that other processes need for the same clock; `None` for the system's clock.
    ///
    /// # Errors
    /// No option expresses this clock: cluster time is ahead of real time and runs no faster.
    pub fn options(&self) -> anyhow::Result<Option<String>> {
        match &self.options {
            Shared::System => Ok(None),
            Shared::Options(options) => Ok(Some(options.clone())),
            Shared::Never(kept) => Err(anyhow!(
                "the cluster time of this data folder is {kept}, which is ahead of real time because the cluster ran with \
                 --time-scale; set --time-scale again, or use another --data-dir"
            )),
        }
    }

    /// Stores the time in its folder until the returned value is dropped or closed; `None` if
    /// nothing is stored. A failed write, such as on a full disk, is logged and stops nothing.
    pub fn keep(&self) -> Option<Keeper> {
        let file = self.file.clone()?;
        let ahead = SignedDuration::try_from(AHEAD.mul_f64(self.scale)).unwrap_or(SignedDuration::MAX);
        let (clock, scale) = (self.clock.clone(), self.scale);
        let bound = move || {
            // Real time is read first, so that the computed cluster time is too late rather than
            // too early.
            let (real, cluster) = (Clock::system().now(), clock.now());
            let running = Some(Running { cluster, real, scale });
            StoredTime { bound: cluster.checked_add(ahead).unwrap_or(Timestamp::MAX), running }
        };
        keep(&file, bound());
        let (clock, path) = (self.clock.clone(), file.clone());
        let task = tokio::spawn(async move {
            let real = Clock::system();
            let mut is_kept = true;
            loop {
                real.sleep(EVERY).await;
                // The write is short and is made on this task, not on a thread for blocking calls:
                // after the task is aborted, such a thread could still overwrite the last write.
                let written = write(&path, bound());
                match &written {
                    // A full disk stays full for many intervals, so only the first failure is
                    // logged.
                    Err(error) if is_kept => tracing::warn!("cannot store cluster time: {error:#}"),
                    Ok(()) if !is_kept => tracing::info!("cluster time is stored again"),
                    _ => {}
                }
                is_kept = written.is_ok();
            }
        });
        Some(Keeper { clock, file, task })
    }
}

/// Stores cluster time in a file.
pub struct Keeper {
    clock: Clock,
    file: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Keeper {
    /// Stores the exact time at which the cluster has stopped.
    pub async fn close(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
        keep(&self.file, StoredTime { bound: self.clock.now(), running: None });
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn read(file: &Path) -> anyhow::Result<Option<StoredTime>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| file.display().to_string()),
    };
    parse(&text).map(Some).ok_or_else(|| {
        anyhow!(
            "{}: {:?} is neither an RFC 3339 time nor three such times and a --time-scale",
            file.display(),
            text.trim()
        )
    })
}

fn parse(text: &str) -> Option<StoredTime> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    match fields[..] {
        [bound] => Some(StoredTime { bound: bound.parse().ok()?, running: None }),
        [bound, cluster, real, factor] => {
            let (cluster, real, scale) = (cluster.parse().ok()?, real.parse().ok()?, scale(factor).ok()?);
            Some(StoredTime { bound: bound.parse().ok()?, running: Some(Running { cluster, real, scale }) })
        }
        _ => None,
    }
}

fn keep(file: &Path, time: StoredTime) {
    if let Err(error) = write(file, time) {
        tracing::warn!("cannot store cluster time: {error:#}");
    }
}

/// Replaces the whole file: after a crash it has the old or the new content.
fn write(file: &Path, time: StoredTime) -> anyhow::Result<()> {
    let new = file.with_extension("new");
    let written = || {
        let mut handle = File::create(&new)?;
        match time.running {
            Some(Running { cluster, real, scale }) => writeln!(handle, "{} {cluster} {real} {scale}", time.bound)?,
            None => writeln!(handle, "{}", time.bound)?,
        }
        handle.sync_all()?;
        std::fs::rename(&new, file)
    };
    written().with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn two_processes_given_the_same_origin_agree() {
        let origin = Clock::system().now().checked_sub(SignedDuration::from_secs(100)).unwrap();
        let options = TimeOptions { time_scale: 60.0, time_origin: Some(origin) };
        let time = options.clock(None).unwrap();
        let (clock, printed) = (&time.clock, time.options().unwrap());
        let shown = clock.now().duration_since(origin).as_secs_f64();
        assert!((6000.0..6100.0).contains(&shown), "{shown}");
        assert_eq!(printed, Some(format!("--time-scale 60 --time-origin {origin}")));
        assert!(TimeOptions { time_scale: 60.0, time_origin: None }.joining_clock().is_err());
    }

    fn options(time_scale: f64) -> TimeOptions {
        TimeOptions { time_scale, time_origin: None }
    }

    #[tokio::test]
    async fn a_restart_continues_the_time() {
        let folder = tempfile::tempdir().unwrap();
        let real = Clock::system();
        let start = |scale: f64| options(scale).clock(Some(folder.path())).unwrap();
        // The clock starts so close behind real time that it overtakes real time.
        let origin = real.now().checked_sub(SignedDuration::from_secs(100)).unwrap();
        let first = TimeOptions { time_scale: 100_000.0, time_origin: Some(origin) };
        let first = first.clock(Some(folder.path())).unwrap();
        let keeper = first.keep().unwrap();
        real.sleep(Duration::from_millis(50)).await;
        let killed = first.clock.now();
        // Dropped as by a kill, without the last write.
        drop((keeper, first));
        let second = start(100_000.0);
        assert!(second.clock.now() >= killed, "{} after {killed}", second.clock.now());
        // Another process with the printed options has the same time.
        let printed = second.options().unwrap().unwrap();
        let origin: Timestamp = printed.rsplit(' ').next().unwrap().parse().unwrap();
        let joined = TimeOptions { time_scale: 100_000.0, time_origin: Some(origin) }.joining_clock().unwrap();
        let apart = joined.now().duration_since(second.clock.now()).as_secs_f64().abs();
        assert!(apart < 300_000.0, "{apart} s apart after less than three real seconds");
        let keeper = second.keep().unwrap();
        let stopped = second.clock.now();
        keeper.close().await;
        // A clean stop stores the exact time, regardless of the next speed.
        for scale in [2.0, 0.5, 1.0] {
            let next = start(scale);
            let passed = next.clock.now().duration_since(stopped).as_secs_f64();
            assert!((0.0..400_000.0).contains(&passed), "{scale}: {passed}");
            assert_eq!(next.options().is_err(), scale == 1.0);
            next.keep().unwrap().close().await;
        }
        let back = TimeOptions { time_scale: 2.0, time_origin: Some(real.now()) }.clock(Some(folder.path()));
        let error = back.err().unwrap().to_string();
        assert!(error.contains("--time-origin") && error.contains("already"), "{error}");
    }

    #[tokio::test]
    async fn a_faster_clock_stays_behind_real_time_and_continues_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let real = Clock::system();
        let first = options(10.0).clock(Some(folder.path())).unwrap();
        let behind = real.now().duration_since(first.clock.now()).as_secs();
        assert!((72 * 3600 - 60..=72 * 3600).contains(&behind), "{behind}");
        let stopped = first.clock.now();
        first.keep().unwrap().close().await;
        let second = options(10.0).clock(Some(folder.path())).unwrap();
        let passed = second.clock.now().duration_since(stopped).as_secs();
        assert!((0..600).contains(&passed), "{passed}");
        // Another process has the same time, although the two times are equal only later.
        let printed = second.options().unwrap().unwrap();
        let origin: Timestamp = printed.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(origin > real.now(), "{origin}");
        let joined = TimeOptions { time_scale: 10.0, time_origin: Some(origin) }.joining_clock().unwrap();
        let apart = joined.now().duration_since(second.clock.now()).as_secs_f64().abs();
        assert!(apart < 60.0, "{apart}");
        // Without --time-scale, cluster time is the system's time, because that is later than the
        // stored time.
        let unscaled = options(1.0).clock(Some(folder.path())).unwrap();
        assert!(matches!(unscaled.options, Shared::System));
    }

    #[tokio::test]
    async fn a_server_that_was_killed_has_its_old_origin_back() {
        let folder = tempfile::tempdir().unwrap();
        let origin = Clock::system().now().checked_sub(SignedDuration::from_secs(1000)).unwrap();
        let given = TimeOptions { time_scale: 60.0, time_origin: Some(origin) };
        let first = given.clock(Some(folder.path())).unwrap();
        drop(first.keep().unwrap());
        // The same options again, and others without the origin, because other processes still use
        // the old one.
        for options in [given, options(60.0)] {
            let again = options.clock(Some(folder.path())).unwrap();
            let apart = again.clock.now().duration_since(first.clock.now()).as_secs_f64();
            assert!(apart.abs() < 60.0, "{apart}");
        }
    }

    #[test]
    fn stored_cluster_time_advances_with_real_time_up_to_its_bound() {
        let kept = parse("2030-01-01T00:05:00Z 2030-01-01T00:00:00Z 2026-01-01T00:00:00Z 60").unwrap();
        let passed = |now: &str| kept.passed(now.parse().unwrap()).to_string();
        assert_eq!(passed("2026-01-01T00:00:02Z"), "2030-01-01T00:02:00Z");
        assert_eq!(passed("2026-01-01T01:00:00Z"), "2030-01-01T00:05:00Z");
        assert_eq!(passed("2025-12-31T00:00:00Z"), "2030-01-01T00:05:00Z");
        assert!(parse("2030-01-01T00:05:00Z 2030-01-01T00:00:00Z").is_none());
    }

    #[tokio::test]
    async fn a_stored_time_in_the_past_is_ignored_and_an_unreadable_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        std::fs::write(&file, "2020-01-01T00:00:00Z\n").unwrap();
        let time = options(1.0).clock(Some(folder.path())).unwrap();
        assert!(matches!(time.options, Shared::System) && time.file.is_none());
        let hours_behind = |scale: f64| {
            let time = options(scale).clock(Some(folder.path())).unwrap();
            Clock::system().now().duration_since(time.clock.now()).as_secs_f64() / 3600.0
        };
        for (scale, hours) in [(60.0, 59.0 * 8.0), (1.001, 0.008), (0.5, 0.0), (100_000.0, 365.0 * 24.0)] {
            let behind = hours_behind(scale);
            assert!((behind - hours).abs() < 0.1 * scale.max(1.0) / 3.0, "{scale}: {behind} h behind, not {hours}");
        }
        std::fs::write(&file, "soon").unwrap();
        let error = options(1.0).clock(Some(folder.path())).err().unwrap().to_string();
        assert!(error.contains(FILE) && error.contains("\"soon\""), "{error}");
    }
}
