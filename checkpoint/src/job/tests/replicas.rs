//! Steps that nodes fetch from the memory of others.

use super::*;
use crate::message::{Endpoint, Fetch, FetchSource, FetchedStep};

const BYTES: u64 = 1000;

/// Other nodes reach the node that says this.
fn reached(node: &str, states: Vec<ShardState>) -> Vec<ShardState> {
    let endpoint = Some(Endpoint { port: 7000, ticket: format!("ticket of {node}") });
    states.into_iter().map(|state| ShardState { endpoint: endpoint.clone(), ..state }).collect()
}

/// What node `node` has of a state that every node has.
fn copies(node: &str, rank: u32, steps: &[u64]) -> Vec<ShardState> {
    reached(node, vec![copy(rank, steps, &[])])
}

/// The shards of a node that other nodes keep replicas of.
fn kept(node: &str, first: u32, steps: &[u64]) -> Vec<ShardState> {
    let states = pair(first, 4, steps, &[]).into_iter().map(|state| ShardState { replicas: 1, ..state });
    reached(node, states.collect())
}

/// The replicas that a node has of the shards of another one.
fn replicas(node: &str, first: u32, steps: &[u64]) -> Vec<ShardState> {
    let states = pair(first, 4, steps, &[]).into_iter().map(|state| ShardState { is_replica: true, ..state });
    reached(node, states.collect())
}

fn fetch(from: &str, shard: u32, n_shards: u32, is_replica: bool) -> Fetch {
    Fetch {
        shard,
        n_shards,
        replicated: n_shards == 1,
        layout_id: 7,
        bytes: BYTES,
        is_replica,
        given_up: 0,
        from: FetchSource {
            address: format!("host-{from}"),
            port: 7000,
            ticket: format!("ticket of {from}"),
        },
    }
}

fn fetch_order(round: u32, step: u64, fetch: Fetch) -> Order {
    Order::Fetch { round, dir: dir(), step, fetch: Box::new(fetch) }
}

fn fetched(round: u32, step: u64) -> Order {
    Order::Fetched { round, dir: dir(), step }
}

fn not_fetched(round: u32, step: u64, reason: &str) -> Order {
    Order::NotFetched { round, dir: dir(), step, reason: reason.to_owned() }
}

/// Node `b` was lost, and `c` has its ranks. Returns what round 1 restores.
fn replaced(job: &mut Job, of_a: Vec<ShardState>) -> (Vec<RestorePoint>, Vec<Effect<&'static str>>) {
    job.end_round();
    job.says("a", of_a);
    job.on_gone(now(7), &"b");
    job.begin_round(now(8), 1, 4, members(&["a", "c"]))
}

/// The node of rank 2 is new.
fn point(step: u64, fallback: RestorePoint, fetches: Vec<(u32, Fetch)>) -> RestorePoint {
    RestorePoint { fetched: Some(FetchedStep { step, fetches, void: vec![2] }), ..fallback }
}

#[test]
fn a_replaced_node_fetches_what_every_node_has() {
    let mut job = Job::new(TIMEOUT, false);
    job.begin_round(now(0), 0, 4, members(&["a", "b"]));
    job.complete("a", 10);
    let (points, effects) = replaced(&mut job, copies("a", 0, &[20, 30]));
    assert_eq!(points, [point(30, disk(10, None), vec![(2, fetch("a", 0, 1, false))])]);
    assert_eq!(effects, []);
    // A node that has lost its link is told again.
    let told = job.repeat(&"c");
    let order = fetch_order(1, 30, fetch("a", 0, 1, false));
    assert_eq!(told, [send("c", committed(10)), send("c", order)]);
    let decided = job.says("c", copies("c", 0, &[30]));
    let note = Effect::Note(Note::Fetched { dir: dir(), step: 30, nodes: 1 });
    assert_eq!(decided, [vec![note], to_all(&["a", "c"], &fetched(1, 30))].concat());
    assert_eq!(job.repeat(&"c"), [send("c", committed(10)), send("c", fetched(1, 30))]);
}

#[test]
fn all_ranks_restore_an_older_step_when_a_node_cannot_fetch() {
    let mut job = Job::new(TIMEOUT, false);
    job.begin_round(now(0), 0, 4, members(&["a", "b"]));
    job.complete("a", 10);
    replaced(&mut job, copies("a", 0, &[20, 30]));
    let decided = job.on_fetch_failed(now(9), &"c", &dir(), 30, 0, "no route to host");
    let reason = "shard 0 cannot be fetched: no route to host";
    let note = Effect::Note(Note::NotFetched { dir: dir(), step: 30, reason: reason.to_owned() });
    assert_eq!(decided, [vec![note], to_all(&["a", "c"], &not_fetched(1, 30, reason))].concat());
    // It was too late.
    assert_eq!(job.says("c", copies("c", 0, &[30])), []);
}

/// Its order to give the step up is still on its way when the round ends.
#[test]
fn a_step_that_a_node_is_about_to_give_up_is_not_restored() {
    let mut job = Job::new(TIMEOUT, false);
    job.begin_round(now(0), 0, 4, members(&["a", "b"]));
    job.complete("a", 10);
    replaced(&mut job, copies("a", 0, &[20, 30]));
    let decided = job.on_fetch_failed(now(9), &"c", &dir(), 30, 0, "no route to host");
    assert!(matches!(&decided[0], Effect::Note(Note::NotFetched { .. })), "{decided:?}");
    job.end_round();
    job.says("c", vec![]);
    let late = copies("a", 0, &[20, 30]).into_iter();
    job.says("a", late.map(|it| ShardState { awaits_fetches: true, ..it }).collect());
    assert_eq!(job.begin_round(now(10), 2, 4, members(&["a", "c"])).0, [disk(10, None)]);
}

/// The node said so before it heard what the round restores.
#[test]
fn steps_of_the_round_before_are_not_taken_for_those_of_the_round_that_runs() {
    let mut job = job(&["a", "b"]);
    job.saves_at_breakpoint = false;
    job.end_round();
    job.says("a", pair(0, 4, &[3, 4], &[]));
    job.says("b", pair(2, 4, &[3], &[]));
    assert_eq!(job.begin_round(now(9), 1, 4, members(&["a", "b"])).0, [memory(3)]);
    let late = pair(0, 4, &[3, 4], &[4]).into_iter().map(|it| ShardState { round: Some(0), ..it });
    assert_eq!(job.on_state(now(9), &"a", late.collect()), []);
    // Else shards of step 4 of two courses of the training would form one.
    assert_eq!(job.says("b", pair(2, 4, &[3, 4], &[4])), []);
    let ordered = job.says("a", pair(0, 4, &[3, 4], &[4]));
    assert_eq!(ordered, to_all(&["a", "b"], &persist(4)));
}

#[test]
fn a_saver_of_a_node_that_has_left_ends_no_restore() {
    let mut job = Job::new(TIMEOUT, false);
    job.begin_round(now(0), 0, 4, members(&["a", "b"]));
    replaced(&mut job, copies("a", 0, &[30]));
    assert_eq!(job.on_saver_gone(now(9), &"b"), []);
    let decided = job.says("c", copies("c", 2, &[30]));
    assert!(matches!(&decided[0], Effect::Note(Note::Fetched { .. })), "{decided:?}");
}

/// Its network was away before it heard of the round, and it is back when the next one begins.
#[test]
fn a_node_that_was_lost_for_a_while_still_has_its_memory() {
    let mut job = Job::new(TIMEOUT, false);
    let both = || members(&["a", "b"]);
    job.begin_round(now(0), 0, 4, both());
    job.end_round();
    job.says("a", pair(0, 4, &[30], &[]));
    job.says("b", pair(2, 4, &[30], &[]));
    assert_eq!(job.begin_round(now(5), 1, 4, both()).0, [memory(30)]);
    job.on_gone(now(6), &"b");
    job.end_round();
    job.says("a", pair(0, 4, &[30], &[]));
    let late = pair(2, 4, &[30, 40], &[]).into_iter().map(|it| ShardState { round: Some(0), ..it });
    job.on_state(now(7), &"b", late.collect());
    assert_eq!(job.begin_round(now(8), 2, 4, both()).0, [memory(30)]);
}

/// A master without a journal knows nothing of the fetches that the nodes wait for.
#[test]
fn what_is_fetched_for_another_master_is_still_in_memory() {
    let awaits = |shards: Vec<ShardState>| -> Vec<ShardState> {
        shards.into_iter().map(|it| ShardState { round: Some(7), awaits_fetches: true, ..it }).collect()
    };
    for takes_over in [true, false] {
        let mut job = Job::new(TIMEOUT, false);
        if takes_over {
            job.take_over(7, members(&["a", "c"]));
            job.end_round();
        }
        job.on_state(now(1), &"a", awaits(copies("a", 0, &[30])));
        job.on_state(now(1), &"c", awaits(vec![]));
        let points = job.begin_round(now(2), 8, 4, members(&["a", "c"])).0;
        assert_eq!(
            points.first().and_then(|it| it.fetched.as_ref()).map(|it| it.step),
            Some(30),
            "{points:?}"
        );
    }
}

#[test]
fn what_one_node_cannot_give_another_one_may() {
    let mut job = Job::new(TIMEOUT, false);
    job.begin_round(now(0), 0, 6, members(&["a", "b", "c"]));
    job.end_round();
    job.says("a", copies("a", 0, &[30]));
    job.says("c", copies("c", 3, &[30]));
    job.on_gone(now(7), &"b");
    let (points, _) = job.begin_round(now(8), 1, 6, members(&["a", "d", "c"]));
    assert_eq!(points, [point(30, disk(0, None), vec![(2, fetch("a", 0, 1, false))])]);
    let other = job.on_fetch_failed(now(9), &"d", &dir(), 30, 0, "the connection ended");
    assert_eq!(other, [send("d", fetch_order(1, 30, fetch("c", 0, 1, false)))]);
    let last = job.on_fetch_failed(now(9), &"d", &dir(), 30, 0, "the connection ended");
    assert!(matches!(&last[0], Effect::Note(Note::NotFetched { .. })), "{last:?}");
}

#[test]
fn a_fetch_that_takes_too_long_is_given_up() {
    let mut job = Job::new(TIMEOUT, false);
    job.begin_round(now(0), 0, 4, members(&["a", "b"]));
    replaced(&mut job, copies("a", 0, &[30]));
    assert_eq!(job.deadline(), Some(Moment(8000 + TIMEOUT)));
    let late = job.on_deadline(Moment(8000 + TIMEOUT));
    let reason = "it was not fetched within 600 s";
    assert_eq!(late[1..], to_all(&["a", "c"], &not_fetched(1, 30, reason)));
    assert_eq!(job.deadline(), None);
}

#[test]
fn nothing_counts_before_it_is_decided_what_is_restored() {
    let mut job = Job::new(TIMEOUT, false);
    job.begin_round(now(0), 0, 4, members(&["a", "b"]));
    job.complete("a", 10);
    job.end_round();
    job.says("a", reached("a", vec![copy(0, &[20, 30], &[20])]));
    job.on_gone(now(7), &"b");
    let (points, _) = job.begin_round(now(8), 1, 4, members(&["a", "c"]));
    assert_eq!(points[0].fetched.as_ref().map(|it| it.step), Some(30));
    assert_eq!(job.persisted("a", 20, 0, 1), []);
    let decided = job.says("c", copies("c", 0, &[30]));
    assert_eq!(decided[3..], [send("a", commit(20, 1))]);
}

#[test]
fn a_common_step_is_copied_to_the_next_node_and_restored_from_there() {
    let mut job = Job::new(TIMEOUT, false);
    job.begin_round(now(0), 0, 4, members(&["a", "b"]));
    assert_eq!(job.says("a", kept("a", 0, &[30])), []);
    let copied = job.says("b", kept("b", 2, &[30]));
    let order = |from: &str, shard| fetch_order(0, 30, fetch(from, shard, 4, true));
    let expected = [
        send("b", order("a", 0)),
        send("b", order("a", 1)),
        send("a", order("b", 2)),
        send("a", order("b", 3)),
    ];
    assert_eq!(copied, expected);
    // Nothing is ordered twice.
    assert_eq!(job.says("b", kept("b", 2, &[30])), []);
    let both =
        |first: u32, of: u32, node: &str| [kept(node, first, &[30]), replicas(node, of, &[30])].concat();
    assert_eq!(job.says("b", both(2, 0, "b")), []);
    assert_eq!(job.says("a", both(0, 2, "a")), []);
    assert_eq!(job.deadline(), None);

    let (points, effects) = replaced(&mut job, both(0, 2, "a"));
    let wanted = vec![(2, fetch("a", 2, 4, false)), (2, fetch("a", 3, 4, false))];
    assert_eq!((points, effects), (vec![point(30, disk(0, None), wanted)], vec![]));
    assert_eq!(job.says("c", reached("c", vec![shard(2, 4, &[30], &[])])), []);
    let decided = job.says("c", reached("c", pair(2, 4, &[30], &[])));
    assert_eq!(decided[1..3], to_all(&["a", "c"], &fetched(1, 30)));
}

#[test]
fn at_a_breakpoint_a_replica_is_written_in_the_place_of_a_lost_shard() {
    let mut job = job(&["a", "b"]);
    job.end_round();
    // The lost node might have said that there is a newer one.
    assert_eq!(job.says("a", [kept("a", 0, &[30]), replicas("a", 2, &[30])].concat()), []);
    let written = job.on_gone(now(7), &"b");
    let order = Order::Persist { dir: dir(), step: 30, replicas: vec![2, 3] };
    assert_eq!(written, [note_saved(30), send("a", order)]);
}

#[test]
fn shards_of_another_world_or_of_ranks_that_moved_are_not_fetched() {
    for (world, nodes) in [(6, vec!["a", "c", "d"]), (4, vec!["c", "a"])] {
        let mut job = Job::new(TIMEOUT, false);
        job.begin_round(now(0), 0, 4, members(&["a", "b"]));
        job.end_round();
        job.says("a", [kept("a", 0, &[30]), replicas("a", 2, &[30])].concat());
        job.on_gone(now(7), &"b");
        let mut next = members(&nodes);
        for member in next.iter_mut().filter(|member| member.node == "a") {
            member.is_void = member.first_rank != 0;
        }
        assert_eq!(job.begin_round(now(8), 1, world, next), (vec![], vec![]));
    }
}

#[test]
fn nodes_that_cannot_be_reached_are_no_source() {
    let mut job = Job::new(TIMEOUT, false);
    job.begin_round(now(0), 0, 4, members(&["a", "b"]));
    let (points, _) = replaced(&mut job, vec![copy(0, &[30], &[])]);
    assert_eq!(points, []);
}

#[test]
fn many_new_nodes_take_the_step_from_disk() {
    let mut job = Job::new(TIMEOUT, false);
    job.begin_round(now(0), 0, 2, members(&["a"]));
    for (nodes, is_fetched) in
        [(vec!["a", "b", "c", "d", "e"], true), (vec!["a", "f", "g", "h", "i", "j"], false)]
    {
        job.end_round();
        job.says("a", copies("a", 0, &[30]));
        let world = u32::try_from(nodes.len()).unwrap() * 2;
        let (points, _) = job.begin_round(now(8), 1, world, members(&nodes));
        assert_eq!(points.first().is_some_and(|point| point.fetched.is_some()), is_fetched, "{nodes:?}");
    }
}

#[test]
fn a_node_that_has_missed_a_round_fetches_all_anew() {
    let mut job = Job::new(TIMEOUT, false);
    job.begin_round(now(0), 0, 4, members(&["a", "b"]));
    job.end_round();
    job.says("a", copies("a", 0, &[30]));
    job.on_gone(now(1), &"b");
    job.begin_round(now(2), 1, 4, members(&["a", "c"]));
    job.says("c", copies("c", 0, &[30]));
    job.end_round();
    // What it has of step 40 is of the round before: the others have made another one of it since.
    job.says("b", copies("b", 2, &[30, 40]));
    job.says("a", copies("a", 0, &[40]));
    job.on_gone(now(3), &"c");
    let (points, _) = job.begin_round(now(4), 2, 4, members(&["a", "b"]));
    let fetched = FetchedStep { step: 40, fetches: vec![(2, fetch("a", 0, 1, false))], void: vec![2] };
    assert_eq!(points, [RestorePoint { fetched: Some(fetched), ..disk(0, None) }]);
}

#[test]
fn a_node_with_other_ranks_than_before_gives_nothing() {
    let mut job = Job::new(TIMEOUT, false);
    job.begin_round(now(0), 0, 4, members(&["a", "b"]));
    job.end_round();
    // It has all shards, and its agent will have the saver give them up.
    job.says("b", [kept("b", 2, &[30]), replicas("b", 0, &[30])].concat());
    job.on_gone(now(1), &"a");
    assert_eq!(job.begin_round(now(2), 1, 4, members(&["b", "c"])).0, []);
}
