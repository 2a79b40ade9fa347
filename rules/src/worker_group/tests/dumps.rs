//! Orders to take stacks, of a master that is broken or hostile.

use super::*;
use crate::hang::{HangSources, HangTerms, OnHang};

const INTERVAL: Duration = Duration::from_secs(30);

/// A node whose job is watched, with workers of round 0.
fn watched(timeout: Duration) -> WorkerGroup {
    let grace = Duration::from_secs(1800);
    let terms = HangTerms { timeout, grace, sources: HangSources::default(), on_hang: OnHang::Dump };
    let mut group = WorkerGroup::new(Limits { hang: Some(terms), ..limits(3) });
    assert_eq!(group.handle(Moment::START, Event::MasterBack), [join(0, None)]);
    start(&mut group, 0, 2);
    group
}

fn order(group: &mut WorkerGroup, secs: u64, episode: u32) -> Vec<Effect> {
    let order = Push::DumpStacks { round: Round(0), episode };
    group.handle(Moment::at_secs(secs), Event::Pushed(order))
}

fn taken(group: &mut WorkerGroup, secs: u64) {
    assert_eq!(group.handle(Moment::at_secs(secs), Event::StacksTaken), []);
}

fn dump(episode: u32) -> [Effect; 1] {
    [Effect::DumpStacks { assignment: assignment(0, 2), episode }]
}

#[test]
fn one_dump_runs_at_a_time() {
    let mut group = watched(Duration::from_secs(300));
    assert_eq!(order(&mut group, 400, 0), dump(0));
    assert_eq!(order(&mut group, 400, 0), [Effect::Notify(Notice::DumpIsRunning)]);
    for episode in 0..100 {
        assert_eq!(order(&mut group, 405, episode), [], "one line is enough");
    }
    taken(&mut group, 408);
    assert_eq!(order(&mut group, 409, 0), dump(0), "of a master that was restarted");
    assert_eq!(order(&mut group, 410, 1), [Effect::Notify(Notice::DumpIsRunning)]);
}

#[test]
fn a_master_that_orders_dumps_all_the_time_gets_two_of_them_within_the_interval() {
    let mut group = watched(Duration::from_secs(300));
    let (mut dumps, mut lines) = (Vec::new(), 0);
    for secs in 1000..1100 {
        for effect in order(&mut group, secs, 0) {
            match effect {
                Effect::DumpStacks { .. } => dumps.push(secs),
                Effect::Notify(Notice::TooManyDumps { dumps: 2, interval: INTERVAL }) => lines += 1,
                other => panic!("{other:?}"),
            }
        }
        taken(&mut group, secs);
    }
    assert_eq!(dumps, [1000, 1001, 1030, 1031, 1060, 1061, 1090, 1091]);
    assert_eq!(lines, 4);
}

#[test]
fn each_episode_has_its_dump() {
    for timeout in [2, 300] {
        let mut group = watched(Duration::from_secs(timeout));
        for episode in 0..20 {
            let secs = 1000 + u64::from(episode) * timeout;
            assert_eq!(order(&mut group, secs, episode), dump(episode), "{secs}");
            taken(&mut group, secs + 1);
        }
    }
}

#[test]
fn a_job_that_is_not_watched_has_no_dumps() {
    let mut group = running(2, 3);
    assert_eq!(order(&mut group, 400, 0), []);
}
