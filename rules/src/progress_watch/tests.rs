//! Reports in, findings out.

use super::*;
use crate::{ids::LocalRank, world::Member};
use RankState::{Advancing, Busy, Ended, Overdue, Stalled, Starting};

fn id(name: &str) -> NodeId {
    NodeId(name.into())
}

/// Two ranks on each node.
fn world(round: u32, names: &[&str]) -> World {
    let member = |name: &&str| Member {
        node_id: id(name),
        local_world_size: 2,
        role: "default".into(),
        address: (*name).into(),
        addresses: Vec::new(),
        host_name: String::new(),
        question_port: 0,
        restore_from_disk: false,
    };
    World {
        round: Round(round),
        members: names.iter().map(member).collect(),
        master_addr: "a".into(),
        master_port: 1,
        fence: None,
        restore: Vec::new(),
    }
}

fn rank(local_rank: u32, state: RankState, idle: u64, rate: Option<u64>) -> RankProgress {
    let step = (!matches!(state, Starting | Overdue)).then_some(7);
    let idle = Duration::from_secs(idle);
    RankProgress { local_rank: LocalRank(local_rank), state, step, steps_per_1000_s: rate, idle }
}

fn report(round: u32, states: [RankState; 2]) -> ProgressReport {
    let ranks = vec![rank(0, states[0], 10, None), rank(1, states[1], 12, None)];
    ProgressReport { round: Round(round), ranks }
}

fn stalled(idle: u64) -> Vec<ProgressFinding> {
    vec![ProgressFinding::Stalled { idle: Duration::from_secs(idle) }]
}

struct Test {
    watch: ProgressWatch,
    world: World,
}

impl Test {
    fn new(names: &[&str]) -> Self {
        Self { watch: ProgressWatch::default(), world: world(0, names) }
    }

    fn at(&mut self, secs: u64, node: &str, states: [RankState; 2]) -> Vec<ProgressFinding> {
        let report = report(self.world.round.0, states);
        self.watch.reported(Moment::at_secs(secs), &id(node), report, &self.world)
    }
}

#[test]
fn a_job_hangs_when_no_rank_advances_and_once() {
    let mut test = Test::new(&["a", "b"]);
    assert_eq!(test.at(1, "a", [Advancing, Advancing]), []);
    assert_eq!(test.at(1, "b", [Advancing, Advancing]), []);
    assert_eq!(test.at(20, "a", [Stalled, Stalled]), [], "those of b advance");
    assert_eq!(test.at(21, "b", [Stalled, Advancing]), []);
    assert_eq!(test.at(22, "b", [Stalled, Stalled]), stalled(10));
    assert_eq!(test.at(23, "a", [Stalled, Stalled]), []);
    assert_eq!(test.at(30, "b", [Advancing, Stalled]), [ProgressFinding::Advanced]);
    assert_eq!(test.at(50, "b", [Stalled, Stalled]), stalled(10), "another episode");
}

#[test]
fn one_rank_that_declares_is_enough() {
    let mut test = Test::new(&["a", "b"]);
    assert_eq!(test.at(20, "a", [Stalled, Starting]), stalled(10));
    let mut test = Test::new(&["a", "b"]);
    assert_eq!(test.at(20, "a", [Stalled, Busy]), [], "a checkpoint is written");
    assert_eq!(test.at(21, "a", [Ended, Ended]), []);
}

#[test]
fn a_program_that_never_declares_progress_does_not_hang() {
    let mut test = Test::new(&["a"]);
    assert_eq!(test.at(2000, "a", [Overdue, Overdue]), []);
}

#[test]
fn a_job_that_has_declared_before_hangs_before_its_first_step_too() {
    let mut test = Test::new(&["a"]);
    assert_eq!(test.at(1, "a", [Advancing, Advancing]), []);
    test.world = world(1, &["a"]);
    assert_eq!(test.at(2000, "a", [Overdue, Overdue]), stalled(10));
}

/// As `touch "$DLROVER_PROGRESS_FILE"` declares it.
#[test]
fn progress_without_a_number_is_remembered_too() {
    let without_number = |round, state| {
        let ranks = vec![RankProgress { step: None, ..rank(0, state, 10, None) }];
        ProgressReport { round: Round(round), ranks }
    };
    for before in [Advancing, Stalled] {
        let mut test = Test::new(&["a"]);
        let _found =
            test.watch.reported(Moment::at_secs(1), &id("a"), without_number(0, before), &test.world);
        test.world = world(1, &["a"]);
        let report = without_number(1, Overdue);
        let found = test.watch.reported(Moment::at_secs(2000), &id("a"), report, &test.world);
        assert_eq!(found, stalled(10), "{before:?}");
    }
}

#[test]
fn reports_of_other_rounds_and_nodes_are_ignored() {
    let mut test = Test::new(&["a"]);
    let old = report(7, [Stalled, Stalled]);
    assert_eq!(test.watch.reported(Moment::START, &id("a"), old, &test.world), []);
    assert_eq!(test.at(1, "z", [Stalled, Stalled]), []);
    let mut forged = report(0, [Stalled, Stalled]);
    forged.ranks.push(rank(2, Advancing, 0, None));
    assert_eq!(
        test.watch.reported(Moment::START, &id("a"), forged, &test.world).len(),
        1,
        "it has two ranks"
    );
}

#[test]
fn a_restarted_master_waits_for_all_reports() {
    let mut test = Test::new(&["a", "b"]);
    test.watch = ProgressWatch::restored(None);
    assert_eq!(test.at(1, "a", [Stalled, Stalled]), [], "those of b may advance");
    assert_eq!(test.at(2, "b", [Stalled, Stalled]), stalled(10));
}

#[test]
fn a_restarted_master_learns_that_an_episode_is_over() {
    let mut test = Test::new(&["a", "b"]);
    test.watch = ProgressWatch::restored(Some(Round(0)));
    assert_eq!(test.at(1, "a", [Stalled, Stalled]), [], "it is open still");
    assert_eq!(test.at(2, "b", [Stalled, Advancing]), [ProgressFinding::Advanced]);
    let mut test = Test::new(&["a", "b"]);
    test.watch = ProgressWatch::restored(Some(Round(0)));
    assert_eq!(test.at(1, "a", [Advancing, Advancing]), [ProgressFinding::Advanced], "one is enough");
    let mut test = Test::new(&["a"]);
    test.watch = ProgressWatch::restored(Some(Round(7)));
    assert_eq!(test.at(1, "a", [Stalled, Stalled]), stalled(10), "that of an earlier round is over");
}

#[test]
fn a_slow_rank_is_named_after_a_minute_with_the_ratio() {
    let mut test = Test::new(&["a", "b"]);
    let mut findings = Vec::new();
    for secs in (0..100).step_by(10) {
        for (node, rates) in [("a", [1000, 1000]), ("b", [1000, 400])] {
            let ranks = rates.iter().zip(0..).map(|(rate, local)| rank(local, Advancing, 0, Some(*rate)));
            let report = ProgressReport { round: Round(0), ranks: ranks.collect() };
            let found = test.watch.reported(Moment::at_secs(secs), &id(node), report, &test.world);
            findings.extend(found.into_iter().map(|finding| (secs, finding)));
        }
    }
    // Compared with the second report of the minute.
    assert_eq!(findings, [(70, ProgressFinding::Slow { rank: Rank(3), permille: 2500 })]);
    let status = test.watch.status_of(Moment::at_secs(100), Round(0), &id("b"), 2);
    assert_eq!(status.iter().map(|rank| (rank.rank, rank.slow)).collect::<Vec<_>>(), [(2, false), (3, true)]);
}

#[test]
fn ranks_at_one_pace_are_not_slow() {
    let rates = |rates: &[u64]| (0..).zip(rates.iter().copied()).collect::<BTreeMap<u32, u64>>();
    assert!(slow_ranks(&rates(&[1000, 990, 1010, 900])).is_empty());
    assert!(slow_ranks(&rates(&[1000, 1])).is_empty(), "of two, none is the usual one");
    assert!(slow_ranks(&rates(&[1000, 1000, 10, 10])).is_empty(), "nor of two groups of one size");
    assert_eq!(slow_ranks(&rates(&[1000, 1000, 1000, 0])), [(3, 1_000_000)].into());
    assert!(slow_ranks(&BTreeMap::new()).is_empty());
}
