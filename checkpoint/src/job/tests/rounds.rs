//! What a round restores, and what goes to disk before.

use super::*;

type Begun = (Vec<RestorePoint>, Vec<Effect<&'static str>>);

/// The round ends, the nodes say what they have, and the next round begins with them.
fn next_round(job: &mut Job, states: Vec<(&'static str, Vec<ShardState>)>) -> Begun {
    let nodes: Vec<&'static str> = states.iter().map(|(node, _)| *node).collect();
    let world = u32::try_from(nodes.len()).unwrap() * 2;
    job.end_round();
    let mut effects = Vec::new();
    for (node, state) in states {
        effects.extend(job.says(node, state));
    }
    let (points, more) = job.begin_round(now(9), 1, world, members(&nodes));
    effects.extend(more);
    (points, effects)
}

#[test]
fn all_ranks_restore_the_newest_step_that_all_shards_have() {
    let mut job = job(&["a", "b"]);
    let states = vec![("a", pair(0, 4, &[2, 3], &[])), ("b", pair(2, 4, &[1, 2], &[]))];
    let (points, effects) = next_round(&mut job, states);
    assert_eq!(points, [memory(2)]);
    // It goes to disk too.
    assert_eq!(effects, [vec![note_saved(2)], to_all(&["a", "b"], &persist(2))].concat());
}

#[test]
fn without_a_common_step_nothing_is_restored_from_memory() {
    let mut job = job(&["a", "b"]);
    let states = vec![("a", pair(0, 4, &[3], &[])), ("b", pair(2, 4, &[2], &[]))];
    assert_eq!(next_round(&mut job, states), (vec![], vec![]));
}

#[test]
fn a_newer_step_on_disk_is_restored_from_there() {
    let mut job = job(&["a", "b"]);
    job.complete("a", 5);
    let states = || vec![("a", vec![copy(0, &[4], &[])]), ("b", vec![copy(2, &[4], &[])])];
    assert_eq!(next_round(&mut job, states()), (vec![disk(5, None)], vec![]));
    let states = vec![("a", vec![copy(0, &[5], &[])]), ("b", vec![copy(2, &[5], &[])])];
    assert_eq!(next_round(&mut job, states), (vec![memory(5)], vec![]));
}

#[test]
fn a_new_node_has_no_copy_so_all_wait_for_the_one_that_is_written() {
    let mut job = job(&["a", "b"]);
    job.complete("a", 5);
    let states = vec![("a", vec![copy(0, &[6, 7], &[])]), ("c", vec![])];
    let (points, effects) = next_round(&mut job, states);
    assert_eq!(points, [disk(5, Some(7))]);
    assert_eq!(effects, [note_saved(7), send("a", persist(7))]);
    assert_eq!(job.persisted("a", 7, 0, 1), [send("a", commit(7, 1))]);
    let done = job.on_committed(now(10), &"a", &dir(), 7);
    assert_eq!(done, [vec![note_committed(7, 1)], to_all(&["a", "c"], &committed(7))].concat());
}

#[test]
fn a_pending_step_that_fails_is_told_to_all_also_later() {
    let mut job = job(&["a", "b"]);
    next_round(&mut job, vec![("a", vec![copy(0, &[7], &[])]), ("c", vec![])]);
    let failed = job.on_failed(now(10), &"a", &dir(), 7, Some(0), Some(0), "disk full");
    assert_eq!(failed[1..], to_all(&["a", "c"], &fail(7, "disk full")));
    assert_eq!(job.repeat(&"c"), [send("c", fail(7, "disk full"))]);
}

#[test]
fn a_pending_step_fails_after_an_older_one_counts() {
    let mut job = job(&["a", "b"]);
    job.persisted("b", 5, 0, 1);
    let (points, _) = next_round(&mut job, vec![("b", vec![copy(2, &[7], &[])]), ("c", vec![])]);
    assert_eq!(points, [disk(0, Some(7))]);
    // All ranks restore step 5 instead, so they must know of it.
    assert_eq!(job.on_failed(now(10), &"b", &dir(), 7, Some(0), Some(0), "disk full"), []);
    let done = job.on_committed(now(11), &"b", &dir(), 5);
    let expected = [
        vec![note_committed(5, 1)],
        to_all(&["b", "c"], &committed(5)),
        vec![note_failed(7, "disk full")],
        to_all(&["b", "c"], &fail(7, "disk full")),
    ];
    assert_eq!(done, expected.concat());
    assert_eq!(job.under_way().count(), 0);
}

#[test]
fn a_save_that_is_on_its_way_is_waited_for() {
    let mut job = job(&["a", "b"]);
    // Without a breakpoint: the script has asked for it.
    job.saves_at_breakpoint = false;
    let states = vec![("a", vec![copy(0, &[6, 7], &[7])]), ("c", vec![])];
    assert_eq!(next_round(&mut job, states), (vec![disk(0, Some(7))], vec![]));
    assert_eq!(job.deadline(), Some(now(609)));
}

#[test]
fn a_save_that_was_given_up_is_not_waited_for_when_its_node_does_not_know_yet() {
    let mut job = job(&["a", "b"]);
    job.persisted("a", 7, 0, 2);
    let failed = job.on_failed(now(3), &"a", &dir(), 7, Some(0), Some(0), "disk full");
    assert_eq!(failed[1..], to_all(&["a", "b"], &fail(7, "disk full")));
    // It is being written once more.
    let (points, effects) = next_round(&mut job, vec![("a", vec![copy(0, &[6, 7], &[7])]), ("c", vec![])]);
    assert_eq!((points, effects), (vec![], vec![]));
    assert_eq!(job.under_way().count(), 0);
}

#[test]
fn shards_of_another_world_are_written_and_read_from_disk() {
    let mut job = job(&["a", "b"]);
    job.end_round();
    job.says("a", pair(0, 4, &[6], &[]));
    let ordered = job.says("b", pair(2, 4, &[6], &[]));
    assert_eq!(ordered, [vec![note_saved(6)], to_all(&["a", "b"], &persist(6))].concat());
    let (points, effects) = job.begin_round(now(9), 1, 6, members(&["a", "b", "c"]));
    assert_eq!((points, effects), (vec![disk(0, Some(6))], vec![]));
}

#[test]
fn shards_must_be_where_their_ranks_will_be() {
    let mut job = job(&["a", "b"]);
    job.saves_at_breakpoint = false;
    // The nodes have changed places.
    let states = vec![("b", pair(2, 4, &[6], &[])), ("a", pair(0, 4, &[6], &[]))];
    assert_eq!(next_round(&mut job, states).0, []);
}

#[test]
fn a_lost_node_takes_its_shards_with_it() {
    let mut job = job(&["a", "b"]);
    job.persisted("a", 5, 0, 4);
    job.end_round();
    assert_eq!(job.on_gone(now(8), &"b"), []);
    job.says("a", pair(0, 4, &[6], &[]));
    let (points, effects) = job.begin_round(now(9), 1, 2, members(&["a"]));
    assert_eq!(points, []);
    let reason = "shard 1 is not on disk, and no node of the new round will write it";
    assert_eq!(effects, [note_failed(5, reason), send("a", fail(5, reason))]);
}

#[test]
fn the_node_of_rank_0_writes_a_copy_while_there_is_hope_for_it() {
    let mut job = job(&["a", "b"]);
    job.end_round();
    assert_eq!(job.says("b", vec![copy(2, &[7], &[])]), []);
    assert_eq!(job.says("a", vec![copy(0, &[7], &[])]), [note_saved(7), send("a", persist(7))]);
    let mut job = super::job(&["a", "b"]);
    job.end_round();
    assert_eq!(job.says("b", vec![copy(2, &[7], &[])]), []);
    assert_eq!(job.on_gone(now(8), &"a"), [note_saved(7), send("b", persist(7))]);
}

#[test]
fn a_breakpoint_writes_nothing_twice() {
    let mut job = job(&["a", "b"]);
    job.complete("a", 7);
    let states = || vec![("a", vec![copy(0, &[7], &[])]), ("b", vec![copy(2, &[7], &[])])];
    assert_eq!(next_round(&mut job, states()), (vec![memory(7)], vec![]));
    job.on_persisted(now(5), &"a", &dir(), 8, (1, 0), file(8, 0, 1));
    let states = vec![("a", vec![copy(0, &[8], &[])]), ("b", vec![copy(2, &[8], &[])])];
    assert_eq!(next_round(&mut job, states), (vec![memory(8)], vec![]));
}

/// A worker has written it by itself, and was killed before it could say so.
#[test]
fn what_was_written_during_the_run_is_not_older_than_memory() {
    let found = |step| vec![ShardState { disk_step: step, ..copy(0, &[5], &[]) }];
    for first in [None, Some(3), Some(20)] {
        let mut job = job(&["a"]);
        assert_eq!(job.says("a", found(first)), []);
        assert_eq!(next_round(&mut job, vec![("a", found(Some(9)))]).0, [disk(9, None)], "{first:?}");
    }
    let mut job = super::job(&["a"]);
    job.saves_at_breakpoint = false;
    assert_eq!(job.says("a", found(None)), []);
    assert_eq!(next_round(&mut job, vec![("a", found(Some(5)))]).0, [memory(5)]);
    // After a restart of a job master without a journal it may be from this run.
    let mut job = Job::new(TIMEOUT, false);
    assert_eq!(job.says("a", found(Some(9))), []);
    assert_eq!(job.begin_round(now(9), 1, 2, members(&["a"])).0, [disk(9, None)]);
}

/// It is damaged, or the script loads another one: training continues from an older step.
#[test]
fn memory_of_this_run_is_restored_before_what_an_earlier_run_has_left_on_disk() {
    let found = |steps: &[u64]| vec![ShardState { disk_step: Some(100), ..copy(0, steps, &[]) }];
    let mut job = job(&["a", "b"]);
    assert_eq!(job.says("a", found(&[])), []);
    let states = vec![("a", found(&[95])), ("b", vec![copy(2, &[95], &[])])];
    let (points, effects) = next_round(&mut job, states);
    assert_eq!(points, [memory(95)]);
    assert_eq!(effects, [note_saved(95), send("a", persist(95))]);
    // Without memory of it everywhere, what goes to disk is waited for.
    let mut job = super::job(&["a", "b"]);
    job.says("a", found(&[]));
    let (points, _) = next_round(&mut job, vec![("a", found(&[95])), ("c", vec![])]);
    assert_eq!(points, [disk(100, Some(95))]);
    // A file server has shown it to one of the nodes late.
    let mut job = super::job(&["a", "b"]);
    job.says("b", vec![ShardState { disk_step: None, ..copy(2, &[], &[]) }]);
    job.says("a", found(&[]));
    let states = vec![("a", found(&[95])), ("b", vec![copy(2, &[95], &[])])];
    assert_eq!(next_round(&mut job, states).0, [memory(95)]);
    // As before, without any.
    let mut job = super::job(&["a", "b"]);
    job.says("a", found(&[]));
    assert_eq!(next_round(&mut job, vec![("a", found(&[])), ("c", vec![])]), (vec![disk(100, None)], vec![]));
}

#[test]
fn ranks_without_a_shard_need_it_on_their_node() {
    let mut job = job(&["a", "b"]);
    job.saves_at_breakpoint = false;
    let one = |steps: &[u64]| vec![ShardState { replicated: false, ..copy(0, steps, &[]) }];
    assert_eq!(next_round(&mut job, vec![("a", one(&[5])), ("b", vec![])]).0, []);
    let alone = vec![("a", vec![ShardState { world: 2, ..one(&[5]).remove(0) }])];
    assert_eq!(next_round(&mut job, alone).0, [memory(5)]);
}

#[test]
fn a_step_that_failed_is_tried_again_at_the_next_breakpoint_and_old_reports_do_not_count() {
    let mut job = job(&["a"]);
    job.says("a", pair(0, 2, &[4], &[4]));
    job.on_failed(now(5), &"a", &dir(), 4, Some(0), Some(0), "disk full");
    let (points, effects) = next_round(&mut job, vec![("a", pair(0, 2, &[4], &[]))]);
    assert_eq!((points, effects), (vec![memory(4)], vec![]));
    job.end_round();
    assert_eq!(job.says("a", pair(0, 2, &[4], &[])), [note_saved(4), send("a", persist(4))]);
    // From before the node was told that the step was given up.
    assert_eq!(job.persisted("a", 4, 1, 2), []);
    let mut report = |shard| job.on_persisted(now(9), &"a", &dir(), 4, (0, 1), file(4, shard, 2));
    assert_eq!(report(1), []);
    assert_eq!(report(0), [send("a", commit(4, 2))]);
}

#[test]
fn a_step_that_failed_in_this_round_and_is_saved_again_in_it_is_ordered() {
    for step in [0, 4] {
        let mut job = job(&["a"]);
        assert_eq!(job.says("a", pair(0, 2, &[step], &[step])), [send("a", persist(step))]);
        let (points, _) = next_round(&mut job, vec![("a", pair(0, 2, &[], &[step]))]);
        assert_eq!(points, [disk(0, Some(step))]);
        // Its workers start from scratch then, and come to this step again.
        job.on_failed(now(5), &"a", &dir(), step, Some(0), Some(0), "disk full");
        assert_eq!(job.says("a", pair(0, 2, &[step], &[step])), [send("a", persist(step))]);
        let failed = job.on_failed(now(6), &"a", &dir(), step, Some(0), Some(1), "disk full");
        assert!(!failed.contains(&send("a", persist(step))), "{failed:?}");
    }
}

#[test]
fn a_step_that_fails_is_not_ordered_again_by_a_job_master_that_does_not_know_what_was_restored() {
    let mut job = Job::new(TIMEOUT, false);
    job.take_over(7, members(&["a"]));
    assert_eq!(job.says("a", pair(0, 2, &[3, 4], &[3])), [send("a", persist(3))]);
    let failed = job.on_failed(now(5), &"a", &dir(), 3, Some(0), Some(6), "disk full");
    assert!(!failed.contains(&send("a", persist(3))), "{failed:?}");
}

#[test]
fn what_nodes_were_to_write_in_a_round_that_is_over_is_not_forgotten() {
    let mut job = job(&["a"]);
    job.saves_at_breakpoint = false;
    let (points, effects) = next_round(&mut job, vec![("a", pair(0, 2, &[3, 4], &[3]))]);
    assert_eq!((points, effects), (vec![memory(4)], vec![send("a", persist(3))]));
}

#[test]
fn what_is_newer_than_what_is_restored_does_not_count_later() {
    let mut job = job(&["a", "b"]);
    let states = vec![("a", vec![copy(0, &[30, 40], &[40])]), ("b", vec![copy(2, &[30], &[])])];
    let (points, effects) = next_round(&mut job, states);
    assert_eq!(points, [memory(30)]);
    let reason = "training continues from another step";
    let expected = [
        vec![note_saved(40), send("a", persist(40)), note_failed(40, reason)],
        to_all(&["a", "b"], &fail(40, reason)),
        vec![note_saved(30), send("a", persist(30))],
    ];
    assert_eq!(effects, expected.concat());
}

#[test]
fn what_is_complete_but_for_its_manifest_is_waited_for() {
    let mut job = job(&["a", "b"]);
    assert_eq!(job.persisted("a", 40, 0, 1), [send("a", commit(40, 1))]);
    let states = vec![("a", vec![copy(0, &[30, 40], &[])]), ("b", vec![copy(2, &[30], &[])])];
    let (points, _) = next_round(&mut job, states);
    assert_eq!(points, [RestorePoint { pending: Some(40), ..memory(30) }]);
}

/// It was told so, but no round has run there since: the order is still on its way.
#[test]
fn a_step_that_its_node_drops_when_it_hears_of_its_failure_is_not_waited_for() {
    for (round, pending) in [(None, None), (Some(0), None), (Some(1), Some(40))] {
        let mut job = job(&["a", "b"]);
        job.says("a", vec![copy(0, &[40], &[])]);
        let failed = job.on_failed(now(5), &"a", &dir(), 40, Some(0), Some(0), "disk full");
        assert_eq!(failed[0], note_failed(40, "disk full"));
        let mut begin = |next: u32| {
            job.end_round();
            job.on_state(now(6), &"a", vec![ShardState { round, ..copy(0, &[], &[40]) }]);
            job.says("b", vec![]);
            job.begin_round(now(10), next, 4, members(&["a", "b"])).0
        };
        begin(1);
        let points = begin(2);
        assert_eq!(points.first().and_then(|point| point.pending), pending, "{round:?} {points:?}");
    }
}

#[test]
fn a_step_that_is_reported_when_the_next_round_runs_from_an_older_one_does_not_count() {
    let mut job = job(&["a", "b"]);
    job.complete("a", 30);
    let states = vec![("a", vec![copy(0, &[30], &[])]), ("b", vec![copy(2, &[30], &[])])];
    let (points, _) = next_round(&mut job, states);
    assert_eq!(points, [memory(30)]);
    let order = Order::Fail {
        dir: dir(),
        step: 50,
        saved_in: 0,
        given_up: 0,
        reason: "training continues from an older step".to_owned(),
    };
    assert_eq!(job.persisted("a", 50, 0, 1), [send("a", order)]);
    // The same number of the round that runs.
    let again = job.on_persisted(now(10), &"a", &dir(), 50, (1, 0), file(50, 0, 1));
    assert_eq!(again, [send("a", commit_of(1, 50, 1))]);
}

#[test]
fn a_step_that_is_saved_again_gets_a_new_manifest() {
    let mut job = job(&["a"]);
    job.complete("a", 5);
    assert_eq!(job.persisted("a", 5, 0, 1), [send("a", committed(5))]);
    job.end_round();
    let _nothing = job.begin_round(now(9), 1, 2, members(&["a"]));
    let again = job.on_persisted(now(10), &"a", &dir(), 5, (1, 0), file(5, 0, 1));
    assert_eq!(again, [send("a", commit_of(1, 5, 1))]);
}

#[test]
fn what_workers_have_written_by_themselves_is_newer_than_what_is_in_memory() {
    let mut job = job(&["a", "b"]);
    job.complete("a", 5);
    job.on_written_alone(now(6), &dir(), 7, 0);
    let states = || vec![("a", vec![copy(0, &[6], &[])]), ("b", vec![copy(2, &[6], &[])])];
    assert_eq!(next_round(&mut job, states()), (vec![disk(7, None)], vec![]));
    // Of the round before it is of no use: the training has gone on from another step.
    assert_eq!(job.on_written_alone(now(10), &dir(), 9, 0), []);
    assert_eq!(job.committed(&dir()), Some(7));
}

#[test]
fn the_last_word_to_all_is_the_step_that_counts() {
    let mut job = job(&["a", "b"]);
    assert_eq!(job.persisted("a", 5, 0, 1), [send("a", commit(5, 1))]);
    job.on_written_alone(now(6), &dir(), 7, 0);
    let told = job.on_committed(now(7), &"a", &dir(), 5);
    let both = [to_all(&["a", "b"], &committed(5)), to_all(&["a", "b"], &committed(7))];
    assert_eq!(told, [vec![note_committed(5, 1)], both.concat()].concat());
}

#[test]
fn a_later_round_may_write_older_steps_by_itself() {
    let mut job = job(&["a", "b"]);
    job.on_written_alone(now(6), &dir(), 7, 0);
    assert_eq!(next_round(&mut job, vec![("a", vec![]), ("b", vec![])]), (vec![disk(7, None)], vec![]));
    // Step 7 was damaged.
    job.on_written_alone(now(10), &dir(), 3, 1);
    assert_eq!(job.committed(&dir()), Some(3));
}

/// Its worker may start another one.
#[test]
fn a_node_whose_saver_is_lost_stays_a_member() {
    let mut job = job(&["a", "b"]);
    assert_eq!(job.on_saver_gone(now(5), &"a"), []);
    let effects = job.on_written_alone(now(6), &dir(), 7, 0);
    assert_eq!(effects, [vec![note_committed(7, 0)], to_all(&["a", "b"], &committed(7))].concat());
}

/// With fixed `--nnodes` nothing of the job is left but what its nodes have in memory.
#[test]
fn what_a_node_that_leaves_wants_on_disk_is_written_between_rounds() {
    let mut job = Job::new(TIMEOUT, false);
    let _first = job.begin_round(now(0), 0, 4, members(&["a", "b"]));
    job.end_round();
    assert_eq!(job.says("a", pair(0, 4, &[2], &[2])), []);
    let orders = to_all(&["a", "b"], &persist(2));
    assert_eq!(job.says("b", pair(2, 4, &[2], &[])), orders);
    assert_eq!(job.says("a", pair(0, 4, &[2], &[2])), [], "it is on its way");
}
