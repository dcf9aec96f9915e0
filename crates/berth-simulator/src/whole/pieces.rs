//! Pieces of a trace that are replayed at the same time, each in a cluster of its own.
//!
//! A cluster in which no job runs or waits decides about the next job as a new cluster does: quota,
//! priorities and the order of the queues depend on the jobs that are there. The engine predicts
//! such quiet times in a moment. A piece whose jobs ended later in its cluster than the engine
//! predicted is joined with the next one and replayed again, so a prediction costs time at worst.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use berth_engine::model::Time;
use berth_foresight::replay::Replay;
use berth_load::{History, Holdings, JobRun, Load, Untimed};

use super::{Division, WholeError};

/// What a job costs in addition to its pods, in pods.
const JOB_COST: u64 = 4;
/// Predicted time without jobs before a new piece. Every job of a chain of jobs that wait for each
/// other ends up to two seconds later than in the engine.
const QUIET: Duration = Duration::from_secs(600);
/// Time without jobs after which nothing is left of them in a cluster: ended Jobs are deleted.
const SETTLED: Duration = Duration::from_secs(120);

/// Consecutive jobs, and what happened to them.
struct Piece {
    jobs: Range<usize>,
    /// `None` until it is replayed.
    history: Option<History>,
}

/// Replays all jobs. `run` replays a piece.
pub fn replay(
    replay: &Replay<'_>,
    division: &Division,
    ended: &AtomicUsize,
    run: &(dyn Fn(Range<usize>) -> Result<History, WholeError> + Sync),
) -> Result<History, WholeError> {
    let jobs = divide(replay, division.cost_min).into_iter();
    let mut pieces: Vec<Piece> = jobs.map(|jobs| Piece { jobs, history: None }).collect();
    let submitted = |number: usize| replay.start().after(replay.trace().jobs[number].submitted);
    loop {
        run_open(&mut pieces, division.threads, run)?;
        let number = pieces.len();
        pieces = join_late(pieces, submitted, ended);
        if pieces.len() == number {
            return Ok(merge(replay.start(), pieces));
        }
    }
}

/// The jobs of each piece. A piece ends at the first predicted quiet time after it has this cost.
/// Under a policy whose decisions depend on past use, there is one piece.
fn divide(replay: &Replay<'_>, cost_min: u64) -> Vec<Range<usize>> {
    let jobs = &replay.trace().jobs;
    let remembers = replay.policy().config.admission_fair_sharing.is_some();
    if remembers || cost_min == u64::MAX {
        return std::iter::once(0..jobs.len()).collect();
    }
    let (mut pieces, mut first, mut cost) = (Vec::new(), 0, 0);
    // `None` once a job never ends.
    let mut busy_until = Some(replay.start());
    for (number, (job, record)) in jobs.iter().zip(replay.run(&mut Untimed).jobs).enumerate() {
        let is_quiet = busy_until.is_some_and(|until| until.after(QUIET) <= record.created);
        if is_quiet && cost >= cost_min {
            pieces.push(first..number);
            (first, cost) = (number, 0);
        }
        busy_until = busy_until.zip(record.ended).map(|(until, ended)| until.max(ended));
        cost += JOB_COST + u64::from(job.pods.unsigned_abs());
    }
    pieces.push(first..jobs.len());
    pieces
}

/// Replays the pieces that have no history.
fn run_open(
    pieces: &mut [Piece],
    threads: usize,
    run: &(dyn Fn(Range<usize>) -> Result<History, WholeError> + Sync),
) -> Result<(), WholeError> {
    let open: Vec<&mut Piece> = pieces.iter_mut().filter(|piece| piece.history.is_none()).collect();
    let threads = threads.clamp(1, open.len().max(1));
    let next = parking_lot::Mutex::new(open.into_iter());
    let work = || {
        loop {
            let Some(piece) = next.lock().next() else { return Ok(()) };
            piece.history = Some(run(piece.jobs.clone())?);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        // All are joined before the first error is returned.
        let done: Vec<Result<(), WholeError>> = workers.into_iter().map(join).collect();
        done.into_iter().collect()
    })
}

/// Joins pieces with the next one if their jobs had not all ended long enough before it. Joined
/// pieces have no history, and their jobs no longer count as ended.
fn join_late(pieces: Vec<Piece>, submitted: impl Fn(usize) -> Time, ended: &AtomicUsize) -> Vec<Piece> {
    let mut kept: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match kept.last_mut().filter(|last| !last.is_over(submitted(piece.jobs.start))) {
            Some(last) => {
                let histories = [last.history.take(), piece.history].into_iter().flatten();
                let again = histories.flat_map(|history| history.jobs).filter(|job| job.ended.is_some()).count();
                ended.fetch_sub(again, Ordering::Relaxed);
                last.jobs.end = piece.jobs.end;
            }
            None => kept.push(piece),
        }
    }
    kept
}

impl Piece {
    /// True if nothing was left of its jobs at this time, or if that is not known yet.
    fn is_over(&self, by: Time) -> bool {
        let jobs = self.history.iter().flat_map(|history| &history.jobs);
        jobs.into_iter().all(|job| job.ended.is_some_and(|ended| ended.after(SETTLED) <= by))
    }
}

/// The history of all pieces.
fn merge(start: Time, pieces: Vec<Piece>) -> History {
    let (mut whole, mut holdings) = (History { start: Some(start), ..History::default() }, Holdings::default());
    for Piece { jobs, history } in pieces {
        let Some(history) = history else { continue };
        let first = u32::try_from(jobs.start).unwrap_or(u32::MAX);
        let of_whole: Vec<u32> =
            history.holdings.into_iter().map(|holding| holdings.index(holding, &mut whole)).collect();
        let runs = history.runs.into_iter().map(|run| JobRun {
            job: first.saturating_add(run.job),
            holding: of_whole[run.holding as usize],
            ..run
        });
        whole.runs.extend(runs);
        whole.jobs.extend(history.jobs);
        whole.admissions += history.admissions;
        whole.wall = whole.wall.max(history.wall);
    }
    whole
}

#[cfg(test)]
mod tests {
    use berth_engine::AdmissionFairSharing;
    use berth_foresight::policy::Policy;
    use berth_foresight::policy::built_in::BuiltIn;
    use berth_foresight::trace::read;
    use berth_load::JobRecord;

    use super::*;

    fn at(seconds: u64) -> Time {
        Time(0).after(Duration::from_secs(seconds))
    }

    /// A piece of which each job was created at 0 and ended at a time in seconds.
    fn piece(jobs: Range<usize>, ends: &[Option<u64>]) -> Piece {
        let record = |end: &Option<u64>| JobRecord { ended: end.map(at), ..JobRecord::new(at(0)) };
        let history = History { jobs: ends.iter().map(record).collect(), ..History::default() };
        Piece { jobs, history: Some(history) }
    }

    #[test]
    fn a_trace_is_divided_at_quiet_times_unless_decisions_depend_on_past_use() {
        let submissions = [0, 60, 1_000, 1_060, 1_650, 3_000];
        let mut text = String::from("job,submit,run,tenant,pods,request:cpu\n");
        for (number, submit) in submissions.iter().enumerate() {
            text += &format!("j{number},{submit},300,team,2,1\n");
        }
        let mut trace = read("a.csv", text.as_bytes(), None).expect("a trace");
        trace.machine = Some([("cpu".into(), 8_000)].into());
        let mut policy = BuiltIn::BestEffort.policy(&trace);
        let pieces =
            |policy: &Policy, cost_min| divide(&Replay::new(&trace, policy).expect("every job has a queue"), cost_min);
        assert_eq!(pieces(&policy, 1), [0..2, 2..5, 5..6], "290 s without jobs are too few");
        assert_eq!(pieces(&policy, 13), [0..5, 5..6], "the first two jobs have a cost of 12");
        policy.config.admission_fair_sharing = Some(AdmissionFairSharing {
            usage_half_life: Duration::from_secs(3600),
            usage_sampling_interval: Duration::from_secs(60),
            resource_weights_milli: [].into(),
        });
        assert_eq!(pieces(&policy, 1).len(), 1, "past use decides");
    }

    #[test]
    fn a_piece_with_a_job_that_ends_late_or_never_is_joined_with_the_next_one() {
        let ended = AtomicUsize::new(6);
        let pieces = vec![
            piece(0..2, &[Some(100), Some(880)]),
            piece(2..4, &[Some(1_100), Some(1_881)]),
            piece(4..5, &[Some(2_100)]),
            piece(5..6, &[None]),
            piece(6..7, &[Some(4_100)]),
        ];
        let submitted = |number: usize| at([0, 0, 1_000, 1_000, 2_000, 3_000, 4_000][number]);
        let kept = join_late(pieces, submitted, &ended);
        let jobs: Vec<_> = kept.iter().map(|piece| (piece.jobs.clone(), piece.history.is_some())).collect();
        assert_eq!(jobs, [(0..2, true), (2..5, false), (5..7, false)]);
        assert_eq!(ended.into_inner(), 2, "the jobs of joined pieces run again");
    }
}
