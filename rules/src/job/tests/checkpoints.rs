//! Checkpoints in memory: what rounds restore, what nodes are told, and what the end waits for. What becomes of a step is
//! tested in [`checkpoint::job`].

use checkpoint::{
    job::{Note, Order},
    message::{Dir, Endpoint, Format, RestorePoint, RestoreSource, ShardFile, ShardState},
};

use super::*;
use crate::checkpoints::CheckpointReport;

fn dir() -> Dir {
    Dir::try_from("/ckpt").unwrap()
}

/// The shards of the two ranks of a node, of two nodes.
fn pair(first: u32, steps: &[u64], wishes: &[u64]) -> Vec<ShardState> {
    let shard = |rank| ShardState {
        dir: dir(),
        shard: rank,
        n_shards: 4,
        replicated: false,
        world: 4,
        rank,
        steps: steps.to_vec(),
        wishes: wishes.to_vec(),
        disk_step: None,
        replicas: 0,
        is_replica: false,
        layout_id: 0,
        bytes: 0,
        endpoint: None,
        round: Some(0),
        awaits_fetches: false,
    };
    vec![shard(first), shard(first + 1)]
}

fn file(step: u64, shard: u32) -> Box<ShardFile> {
    Box::new(ShardFile {
        shard,
        rank: shard,
        n_shards: 4,
        world: 4,
        replicated: false,
        format: Format::Dcp,
        file: format!("{step}/__{shard}_0.distcp"),
        bytes: 10,
        chunk_bytes: 64 << 20,
        crc32: vec![0],
        also: Vec::new(),
    })
}

fn tell(names: &[&str], order: &Order) -> Vec<Effect> {
    let push = |name: &&str| Effect::Push { node: id(name), push: Push::Checkpoint(order.clone()) };
    names.iter().map(push).collect()
}

fn persist(step: u64) -> Order {
    Order::Persist { dir: dir(), step, replicas: Vec::new() }
}

/// What a node is told that has left the job, and wants a step on disk.
fn left_behind(name: &str, step: u64) -> Effect {
    let reason = "this node left the job before the step was written to disk".to_owned();
    let order = Order::Fail { dir: dir(), step, saved_in: 0, given_up: 0, reason };
    Effect::Push { node: id(name), push: Push::Checkpoint(order) }
}

fn note(note: Note) -> Effect {
    Effect::Log(Log::Checkpoint(note))
}

impl Test {
    fn says(&mut self, name: &str, report: CheckpointReport) -> Vec<Effect> {
        self.send(Event::CheckpointReported { node: id(name), report: Box::new(report) })
    }

    fn in_memory(&mut self, name: &str, shards: Vec<ShardState>, last: bool) -> Vec<Effect> {
        self.says(name, CheckpointReport::InMemory { shards, last })
    }

    fn persisted(&mut self, name: &str, step: u64, shard: u32) -> Vec<Effect> {
        let (dir, shard) = (dir(), file(step, shard));
        self.says(name, CheckpointReport::Persisted { dir, step, saved_in: 0, given_up: 0, shard })
    }

    fn rejoin_with(&mut self, name: &str, after: u32, shards: Vec<ShardState>) -> Vec<Effect> {
        let request = JoinRequest { after: Some(Round(after)), shards, ..request(name, &self.terms) };
        self.send(Event::Joined(request))
    }
}

/// Two nodes whose savers run.
fn saving() -> Test {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    for name in ["a", "b"] {
        assert_eq!(test.says(name, CheckpointReport::Kept), []);
    }
    test
}

fn restores(round: u32, step: u64, source: RestoreSource, pending: Option<u64>) -> Vec<Effect> {
    let restore = vec![RestorePoint { dir: dir(), step, source, pending, given_up: 0, fetched: None }];
    let world = World { restore, ..world(round, &["a", "b"]) };
    let assignments = world.assignments();
    assignments
        .map(|(member, assignment)| Effect::Push {
            node: member.node_id.clone(),
            push: Push::Assigned(assignment),
        })
        .collect()
}

#[test]
fn the_next_round_restores_the_newest_step_that_all_nodes_have_in_memory() {
    let mut test = saving();
    assert_eq!(test.in_memory("a", pair(0, &[7, 8], &[]), false), []);
    let _regroup = test.workers_fail("a", 0, false);
    assert_eq!(test.in_memory("b", pair(2, &[9], &[]), false), [], "its workers still stop");
    assert_eq!(test.rejoin_with("a", 0, pair(0, &[7, 8], &[])), []);
    assert_eq!(test.rejoin_with("b", 0, pair(2, &[6, 7], &[])), placed(1, &["a", "b"]));
    assert_eq!(test.hosted("a", 1), restores(1, 7, RestoreSource::Memory, None));
}

/// A state that is the same on all ranks, of a node that others reach.
fn copy(rank: u32, steps: &[u64]) -> Vec<ShardState> {
    let [shard, _] = pair(0, steps, &[]).try_into().unwrap();
    let endpoint = Some(Endpoint { port: 7000, ticket: "ticket".into() });
    vec![ShardState { n_shards: 1, replicated: true, rank, bytes: 1000, layout_id: 7, endpoint, ..shard }]
}

/// It fetches a step that only one node has in memory.
#[test]
fn a_new_node_that_is_lost_while_it_fetches_takes_no_memory_of_the_others_with_it() {
    let mut test = saving();
    let _left = test.leave("b");
    let _closed = test.says("b", CheckpointReport::Closed);
    let _joined = test.join("c");
    let _placed = test.rejoin_with("a", 0, copy(0, &[7]));
    let assigned = test.hosted("a", 1);
    let fetches = |effect: &Effect| {
        matches!(effect, Effect::Push { push: Push::Assigned(assignment), .. }
            if assignment.restore.iter().any(|point| point.fetched.is_some()))
    };
    assert_eq!(assigned.iter().filter(|effect| fetches(effect)).count(), 2, "{assigned:?}");
    let lost = test.lose("c");
    let gives_up = |effect: &Effect| matches!(effect, Effect::Push { push: Push::Checkpoint(_), .. });
    assert!(!lost.iter().any(gives_up), "{lost:?}");
    let _joined = test.join("d");
    let _placed = test.rejoin_with("a", 1, copy(0, &[7]));
    let assigned = test.hosted("a", 2);
    assert_eq!(assigned.iter().filter(|effect| fetches(effect)).count(), 2, "{assigned:?}");
}

/// The report of its failure was lost: the round ends by its join.
#[test]
fn a_member_that_joins_again_while_the_round_runs_keeps_its_memory() {
    let mut test = saving();
    let regrouped = test.rejoin_with("b", 0, pair(2, &[6, 7], &[]));
    assert!(regrouped.iter().any(|effect| matches!(effect, Effect::Log(Log::Regrouped { .. }))));
    assert_eq!(test.rejoin_with("a", 0, pair(0, &[7, 8], &[])), placed(1, &["a", "b"]));
    assert_eq!(test.hosted("a", 1), restores(1, 7, RestoreSource::Memory, None));
}

#[test]
fn the_next_round_restores_what_workers_have_written_by_themselves_if_it_is_newer() {
    let mut test = saving();
    assert_eq!(test.in_memory("a", pair(0, &[7], &[]), false), []);
    let _told = test.says("a", CheckpointReport::WrittenAlone { dir: dir(), step: 9, round: 0 });
    let _regroup = test.workers_fail("a", 0, false);
    assert_eq!(test.rejoin_with("a", 0, pair(0, &[7], &[])), []);
    assert_eq!(test.rejoin_with("b", 0, pair(2, &[7], &[])), placed(1, &["a", "b"]));
    assert_eq!(test.hosted("a", 1), restores(1, 9, RestoreSource::Disk, None));
}

/// A node that the job has given up comes back, and says first what is on disk: the round begins as it joins.
#[test]
fn what_a_node_that_comes_back_has_written_counts_before_it_joins() {
    let mut test = saving();
    let _regroup = test.lose("b");
    let _told = test.says("b", CheckpointReport::WrittenAlone { dir: dir(), step: 9, round: 0 });
    assert_eq!(test.job.step_on_disk(&dir()), Some(9));
}

#[test]
fn a_node_that_is_replaced_takes_the_memory_of_the_others_with_it() {
    let mut test = saving();
    for (name, first) in [("a", 0), ("b", 2)] {
        let _ordered = test.in_memory(name, pair(first, &[5], &[5]), false);
    }
    for (name, shard) in [("a", 0), ("a", 1), ("b", 2)] {
        assert_eq!(test.persisted(name, 5, shard), []);
    }
    let commit = test.persisted("b", 5, 3);
    let [Effect::Push { node, push: Push::Checkpoint(Order::Commit { step: 5, manifest, .. }) }] =
        &commit[..]
    else {
        panic!("{commit:?}")
    };
    assert_eq!((node, manifest.shards.len()), (&id("a"), 4));
    let effects = test.says("a", CheckpointReport::Committed { dir: dir(), step: 5 });
    let committed = note(Note::Committed { dir: dir(), step: 5, shards: 4 });
    assert_eq!(effects, all([vec![committed], tell(&["a", "b"], &Order::Committed { dir: dir(), step: 5 })]));
    assert_eq!(test.job.step_on_disk(&dir()), Some(5));

    let _lost = test.lose("b");
    let _growing = test.join("b");
    assert_eq!(test.rejoin_with("a", 0, pair(0, &[6], &[])), placed_afresh(1, &["a", "b"]));
    assert_eq!(test.hosted("a", 1), restores(1, 5, RestoreSource::Disk, None));
}

#[test]
fn the_end_waits_for_what_is_written_and_not_for_what_others_do_not_have() {
    let mut test = saving();
    let verdict = JobVerdict::Succeeded;
    let _one = test.succeed("a", 0);
    assert_eq!(test.succeed("b", 0), ended(&["a", "b"], &verdict));
    for name in ["a", "b"] {
        assert_eq!(test.send(Event::EndAcknowledged { node: id(name) }), [], "{name} has a saver");
    }
    assert_eq!(test.in_memory("a", pair(0, &[7, 8], &[7, 8]), true), []);
    let ordered = tell(&["a", "b"], &persist(7));
    assert_eq!(test.in_memory("b", pair(2, &[7], &[7]), true), ordered);
    for (name, shard) in [("a", 0), ("a", 1), ("b", 2), ("b", 3)] {
        let _commit = test.persisted(name, 7, shard);
    }
    let reason = "not all nodes have it in memory at the end of the job".to_owned();
    let given_up = Order::Fail { dir: dir(), step: 8, saved_in: 0, given_up: 1, reason: reason.clone() };
    let expected = all([
        vec![note(Note::Committed { dir: dir(), step: 7, shards: 4 })],
        tell(&["a", "b"], &Order::Committed { dir: dir(), step: 7 }),
        vec![note(Note::Failed { dir: dir(), step: 8, reason })],
        tell(&["a", "b"], &given_up),
    ]);
    assert_eq!(test.says("a", CheckpointReport::Committed { dir: dir(), step: 7 }), expected);
    assert_eq!(test.says("b", CheckpointReport::Closed), []);
    assert_eq!(test.says("a", CheckpointReport::Closed), [finish(&verdict)]);
    assert_eq!(test.job.deadline(), None);
}

#[test]
fn the_end_waits_for_a_saver_whose_stream_is_broken_no_longer_than_for_a_node() {
    let mut test = saving();
    let _one = test.succeed("a", 0);
    let _ended = test.at(60).succeed("b", 0);
    assert_eq!(test.says("a", CheckpointReport::Closed), []);
    let _broken = test.send(Event::LinkBroken { node: id("b") });
    assert_eq!(test.due(), [finish(&JobVerdict::Succeeded)]);
    assert_eq!(test.now, Moment::at_secs(60) + FAREWELL);
}

#[test]
fn a_node_that_has_left_is_told_what_it_waits_for_in_vain() {
    let mut test = saving();
    let _left = test.leave("b");
    assert_eq!(test.in_memory("b", pair(2, &[7], &[7]), true), []);
    let _joined = test.join("c");
    let _placed = test.rejoin_with("a", 0, Vec::new());
    let effects = test.hosted("a", 1);
    assert_eq!(effects.last(), Some(&left_behind("b", 7)), "{effects:?}");
    assert_eq!(test.says("b", CheckpointReport::Closed), []);
}

/// As of a node whose workers could not be killed: the master stops those of the round, and awaits it.
#[test]
fn what_a_node_says_for_the_last_time_counts_after_the_end_of_the_round_too() {
    let mut test = saving();
    let _regroup = test.workers_fail("a", 0, false);
    assert_eq!(test.in_memory("b", pair(2, &[7], &[7]), true), []);
    let _left = test.leave("b");
    let _joined = test.join("c");
    let _placed = test.rejoin_with("a", 0, Vec::new());
    let effects = test.hosted("a", 1);
    assert_eq!(effects.last(), Some(&left_behind("b", 7)), "{effects:?}");
}

#[test]
fn a_node_that_has_left_and_was_away_is_told_so_too() {
    let mut test = saving();
    let _left = test.leave("b");
    let _broken = test.send(Event::LinkBroken { node: id("b") });
    assert_eq!(test.says("b", CheckpointReport::Kept), []);
    assert_eq!(test.in_memory("b", pair(2, &[7], &[7]), true), [left_behind("b", 7)]);
}

#[test]
fn a_master_without_state_takes_over_what_nodes_report() {
    let mut test = Test::new(policy(), terms(2, 2));
    assert_eq!(test.says("a", CheckpointReport::Kept), [], "it has not come back yet");
    let of = &["a", "b"];
    let _restoring = test.resume("a", 7, of, WorkersState::Running);
    for step in [5, 6] {
        assert_eq!(test.persisted("a", step, 0), []);
    }
    let _restored = test.resume("b", 7, of, WorkersState::Running);
    for (name, shard) in [("a", 1), ("b", 2)] {
        assert_eq!(test.persisted(name, 6, shard), []);
    }
    assert!(matches!(
        &test.persisted("b", 6, 3)[..],
        [Effect::Push { push: Push::Checkpoint(Order::Commit { step: 6, .. }), .. }]
    ));
}
