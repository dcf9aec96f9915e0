//! Why a workload is where it is.

use berth_engine::model::{PreemptionPolicy, WorkloadKey};
use berth_engine::{
    Amount, AssignmentMode, NotQueued, Outlook, PendingReason, Preemptible, Standing, WorkloadExplanation,
};

use crate::platform::{Platform, job, queue};

fn explain(platform: &mut Platform, name: &str) -> WorkloadExplanation {
    let now = platform.now;
    platform.engine.explain(&WorkloadKey::new("default", name), now).expect("the test submitted it")
}

fn outlook(platform: &mut Platform, name: &str) -> Outlook {
    explain(platform, name).verdict.expect("it waits")
}

fn preemptible(outlook: &Outlook) -> Vec<(&str, Preemptible)> {
    outlook.shortages[0].holders.iter().map(|it| (&*it.workload.name, it.preemptible)).collect()
}

#[test]
fn a_waiting_workload_knows_its_place_and_who_is_ahead() {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").flavor("default", 4));
    platform.submit(job("running", "a", 4)).settle();
    platform.submit(job("old", "a", 1).created(1)).submit(job("young", "a", 2).created(3));
    platform.submit(job("urgent", "a", 3).created(2).priority(9));
    let Standing::Waiting { position, ahead, backing_off } = explain(&mut platform, "young").standing else {
        panic!("it waits")
    };
    assert_eq!((position.in_cluster_queue, backing_off), (2, false));
    assert_eq!(ahead.iter().map(|key| &*key.name).collect::<Vec<_>>(), ["urgent", "old"]);
    let running = explain(&mut platform, "running");
    assert_eq!(running.standing, Standing::Holding { admitted: true, assumed: false });
    platform.update("old", |workload| workload.active = false);
    assert_eq!(explain(&mut platform, "old").standing, Standing::NotQueued(NotQueued::Inactive));
}

#[test]
fn a_shortage_names_the_level_that_runs_out_and_who_holds_what() {
    let mut platform = Platform::new();
    platform.flavor("default").cohort("team", Some("company"));
    platform
        .queue(queue("a").cohort("team").flavor("default", 2))
        .queue(queue("b").cohort("team").flavor("default", 2));
    platform.queue(queue("pool").cohort("company").flavor("default", 3));
    platform.submit(job("b1", "b", 4)).submit(job("p1", "pool", 1)).settle();
    platform.submit(job("wants", "a", 3));
    let found = outlook(&mut platform, "wants");
    assert_eq!((found.mode, found.reason), (AssignmentMode::NoFit, Some(PendingReason::WaitingForQuota)));
    let shortage = &found.shortages[0];
    assert_eq!((shortage.asked, shortage.available, &*shortage.short_at), (3000, Amount::Bounded(2000), "company"));
    let levels: Vec<(&str, Amount, Amount)> =
        shortage.levels.iter().map(|level| (&*level.name, level.subtree, level.in_use)).collect();
    let cores = |cores: i64| Amount::Bounded(cores * 1000);
    assert_eq!(levels, [("a", cores(2), cores(0)), ("team", cores(4), cores(4)), ("company", cores(7), cores(5))]);
    let holders: Vec<(&str, i64)> = shortage.holders.iter().map(|it| (&*it.workload.name, it.amount)).collect();
    assert_eq!(holders, [("b1", 4000), ("p1", 1000)]);
}

#[test]
fn a_borrowing_limit_is_the_level_that_falls_short() {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").cohort("all").limited("default", 2, Some(2), None));
    platform.queue(queue("pool").cohort("all").flavor("default", 9));
    platform.submit(job("first", "a", 3)).settle();
    platform.submit(job("second", "a", 2));
    let found = outlook(&mut platform, "second");
    assert_eq!(&*found.shortages[0].short_at, "a");
    assert_eq!(found.shortages[0].available, Amount::Bounded(1000));
}

#[test]
fn holders_say_which_policy_protects_them() {
    let mut platform = Platform::new();
    platform.flavor("default");
    platform.queue(queue("a").cohort("all").flavor("default", 4).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
    }));
    platform.queue(queue("b").cohort("all").flavor("default", 2));
    platform.submit(job("low", "a", 1)).submit(job("peer", "a", 1).priority(5)).submit(job("other", "b", 4)).settle();
    platform.submit(job("wants", "a", 4).priority(5));
    let found = outlook(&mut platform, "wants");
    assert_eq!(
        preemptible(&found),
        [
            ("other", Preemptible::PolicyNever),
            ("low", Preemptible::Yes),
            ("peer", Preemptible::PolicyExcludes(PreemptionPolicy::LowerPriority)),
        ]
    );
    let mut platform = Platform::new();
    platform.flavor("default");
    platform.queue(queue("a").cohort("all").flavor("default", 2).with(|queue| {
        queue.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
    }));
    platform.queue(queue("b").cohort("all").flavor("default", 3)).queue(queue("c").cohort("all").flavor("default", 1));
    platform.submit(job("owner", "b", 3)).submit(job("guest", "c", 2)).settle();
    platform.submit(job("wants", "a", 2));
    let found = outlook(&mut platform, "wants");
    assert_eq!(preemptible(&found), [("owner", Preemptible::WithinNominal), ("guest", Preemptible::Yes)]);
    let victims: Vec<&str> = found.victims.iter().map(|(key, _)| &*key.name).collect();
    assert_eq!((victims, found.reason), (vec!["guest"], Some(PendingReason::WaitingForPreemptedWorkloads)));
}
