//! Which steps count.

use super::*;

#[test]
fn a_step_counts_when_all_its_shards_are_on_disk() {
    let mut job = job(&["a", "b"]);
    assert_eq!(job.persisted("b", 5, 2, 4), []);
    assert_eq!(job.persisted("a", 5, 1, 4), []);
    // Said twice.
    assert_eq!(job.persisted("a", 5, 1, 4), []);
    assert_eq!(job.persisted("b", 5, 3, 4), []);
    assert_eq!(job.under_way().collect::<Vec<_>>(), [(&dir(), 5, 3, 4)]);
    // The one with shard 0 writes the manifest.
    assert_eq!(job.persisted("a", 5, 0, 4), [send("a", commit(5, 4))]);
    assert_eq!(job.persisted("a", 5, 0, 4), []);
    assert_eq!(job.on_committed(now(6), &"b", &dir(), 5), []);
    let done = job.on_committed(now(6), &"a", &dir(), 5);
    assert_eq!(done, [vec![note_committed(5, 4)], to_all(&["a", "b"], &committed(5))].concat());
    assert_eq!(job.on_committed(now(6), &"a", &dir(), 5), []);
    assert_eq!(job.committed(&dir()), Some(5));
    assert_eq!(job.deadline(), None);
    // The acknowledgement was lost.
    assert_eq!(job.persisted("b", 5, 2, 4), [send("b", committed(5))]);
}

#[test]
fn a_step_with_the_number_of_one_of_an_earlier_run_is_written() {
    let found = || vec![ShardState { disk_step: Some(5), ..copy(0, &[], &[]) }];
    let mut job = job(&["a"]);
    job.says("a", found());
    assert_eq!(job.repeat(&"a"), []);
    job.complete("a", 5);
    assert_eq!(job.persisted("a", 5, 0, 1), [send("a", committed(5))]);
    assert_eq!(job.repeat(&"a"), [send("a", committed(5))]);
    // A job master without a journal that was restarted cannot tell it from what this run has committed.
    let mut job = Job::new(TIMEOUT, true);
    job.says("a", found());
    assert_eq!(job.persisted("a", 5, 0, 1), [send("a", committed(5))]);
}

#[test]
fn shards_of_two_rounds_are_not_one_step() {
    let mut job = job(&["a"]);
    let mut report =
        |shard, saved_in| job.on_persisted(now(1), &"a", &dir(), 5, (saved_in, 0), file(5, shard, 2));
    assert_eq!(report(0, 1), []);
    assert_eq!(report(1, 2), []);
    // The old one does not come back.
    assert_eq!(report(0, 1), []);
    assert_eq!(report(0, 2), [send("a", commit_of(2, 5, 2))]);
}

#[test]
fn several_shards_are_told_together_to_write_what_all_have() {
    let mut job = job(&["a", "b"]);
    assert_eq!(job.says("a", pair(0, 4, &[3, 4, 5], &[4, 5])), []);
    // Step 5 is not whole there yet.
    let ordered = job.says("b", pair(2, 4, &[3, 4], &[4]));
    assert_eq!(ordered, to_all(&["a", "b"], &persist(4)));
    // One at a time.
    assert_eq!(job.says("b", pair(2, 4, &[4, 5], &[4, 5])), []);
    for (node, shard) in [("a", 0), ("a", 1), ("b", 2)] {
        assert_eq!(job.persisted(node, 4, shard, 4), []);
    }
    assert_eq!(job.persisted("b", 4, 3, 4), [send("a", commit(4, 4))]);
    let next = job.on_committed(now(6), &"a", &dir(), 4);
    let expected =
        [vec![note_committed(4, 4)], to_all(&["a", "b"], &committed(4)), to_all(&["a", "b"], &persist(5))]
            .concat();
    assert_eq!(next, expected);
}

/// A rank was later than the others, or its saver is another one and has not heard it.
#[test]
fn a_node_that_wants_what_counts_by_now_is_told_so() {
    let mut job = job(&["a", "b"]);
    job.says("a", pair(0, 4, &[3, 4], &[4]));
    assert_eq!(job.says("b", pair(2, 4, &[3, 4], &[])), to_all(&["a", "b"], &persist(4)));
    for (node, shard) in [("a", 0), ("a", 1), ("b", 2), ("b", 3)] {
        // While it is on its way, there is nothing to say.
        assert_eq!(job.says("b", pair(2, 4, &[3, 4], &[4])), []);
        job.persisted(node, 4, shard, 4);
    }
    job.on_committed(now(6), &"a", &dir(), 4);
    let newer = Order::Fail {
        dir: dir(),
        step: 3,
        saved_in: 0,
        given_up: 0,
        reason: "a newer step is on disk".to_owned(),
    };
    assert_eq!(job.says("b", pair(2, 4, &[3, 4], &[3, 4])), [send("b", newer), send("b", committed(4))]);
    assert_eq!(job.says("b", pair(2, 4, &[3, 4], &[])), []);
}

#[test]
fn a_step_that_took_the_place_of_another_on_one_node_is_written_by_all() {
    let mut job = job(&["a", "b"]);
    assert_eq!(job.says("a", pair(0, 4, &[7, 8], &[8])), []);
    // 6 is gone at `a`, and 8 was for memory here.
    assert_eq!(job.says("b", pair(2, 4, &[6, 7, 8], &[6])), to_all(&["a", "b"], &persist(8)));
}

#[test]
fn a_failure_of_one_shard_fails_the_step_for_all() {
    let mut job = job(&["a", "b"]);
    job.says("a", pair(0, 4, &[4], &[4]));
    job.says("b", pair(2, 4, &[4], &[4]));
    job.persisted("a", 4, 0, 4);
    let failed = job.on_failed(now(6), &"b", &dir(), 4, Some(2), Some(0), "disk full");
    let expected = [vec![note_failed(4, "disk full")], to_all(&["a", "b"], &fail(4, "disk full"))].concat();
    assert_eq!(failed, expected);
    assert_eq!(job.on_failed(now(6), &"b", &dir(), 4, Some(3), Some(0), "disk full"), []);
    // What comes too late is told the same.
    assert_eq!(job.persisted("a", 4, 1, 4), [send("a", fail(4, "disk full"))]);
    assert_eq!(job.deadline(), None);
    // The states from before do not start it anew; a newer one does.
    assert_eq!(job.says("a", pair(0, 4, &[4, 5], &[4, 5])), []);
    assert_eq!(job.says("b", pair(2, 4, &[4, 5], &[4, 5])), to_all(&["a", "b"], &persist(5)));
}

#[test]
fn an_old_failure_is_not_one_of_the_new_save() {
    let mut job = job(&["a"]);
    job.on_persisted(now(1), &"a", &dir(), 5, (2, 0), file(5, 0, 2));
    assert_eq!(job.on_failed(now(1), &"a", &dir(), 5, Some(1), Some(1), "late"), []);
    assert_eq!(job.under_way().count(), 1);
}

#[test]
fn a_step_that_takes_too_long_fails() {
    let mut job = job(&["a"]);
    job.on_persisted(now(10), &"a", &dir(), 5, (0, 0), file(5, 0, 2));
    assert_eq!(job.deadline(), Some(now(610)));
    assert_eq!(job.on_deadline(now(609)), []);
    let reason = "shards on disk after 600 s: 1 of 2; check the disks of the nodes whose shards are missing";
    assert_eq!(job.on_deadline(now(610)), [note_failed(5, reason), send("a", fail(5, reason))]);
}

#[test]
fn a_manifest_that_cannot_be_written_fails_the_step() {
    let mut job = job(&["a", "b"]);
    job.persisted("a", 5, 0, 1);
    // Only the node that writes it knows.
    assert_eq!(job.on_failed(now(6), &"b", &dir(), 5, None, None, "EIO"), []);
    let failed = job.on_failed(now(6), &"a", &dir(), 5, None, None, "EIO");
    assert_eq!(failed, [vec![note_failed(5, "EIO")], to_all(&["a", "b"], &fail(5, "EIO"))].concat());
}

#[test]
fn the_manifest_is_written_by_another_node_when_the_first_is_gone() {
    let mut job = job(&["a", "b"]);
    for (node, shard) in [("b", 3), ("b", 2), ("a", 1)] {
        job.persisted(node, 5, shard, 4);
    }
    assert_eq!(job.persisted("a", 5, 0, 4), [send("a", commit(5, 4))]);
    assert_eq!(job.on_gone(now(6), &"a"), [send("b", commit(5, 4))]);
    // The next round may have nodes that see the files; without one, the step is given up in time.
    assert_eq!(job.on_gone(now(6), &"b"), []);
    let reason = "its manifest was not written, because the nodes that wrote its shards left or were lost, or \
                  their savers exited";
    let failed = vec![note_failed(5, reason), send("a", fail(5, reason)), send("b", fail(5, reason))];
    assert_eq!(job.clone().on_deadline(now(606)), failed);
    let (points, effects) = job.begin_round(now(9), 1, 2, members(&["c"]));
    assert_eq!((points, effects), (vec![disk(0, Some(5))], vec![send("c", commit(5, 4))]));
    let done = job.on_committed(now(10), &"c", &dir(), 5);
    assert_eq!(done, [vec![note_committed(5, 4)], to_all(&["a", "b", "c"], &committed(5))].concat());
}

#[test]
fn the_manifest_is_written_by_a_node_that_has_no_shard_of_it() {
    let mut job = job(&["a", "b", "c"]);
    job.persisted("a", 5, 0, 1);
    assert_eq!(job.on_gone(now(6), &"a"), [send("b", commit(5, 1))]);
    // All wait for what becomes of it: the first node may have written the tracker.
    job.end_round();
    job.says("b", vec![]);
    job.says("c", vec![]);
    let (points, effects) = job.begin_round(now(9), 1, 6, members(&["d", "b", "c"]));
    assert_eq!((points, effects), (vec![disk(0, Some(5))], vec![]));
    assert_eq!(job.on_failed(now(10), &"b", &dir(), 5, None, None, "no file"), [send("d", commit(5, 1))]);
    // Said twice.
    assert_eq!(job.on_failed(now(10), &"b", &dir(), 5, None, None, "no file"), []);
    assert_eq!(job.on_failed(now(10), &"d", &dir(), 5, None, None, "no file"), [send("c", commit(5, 1))]);
    let failed = job.on_failed(now(10), &"c", &dir(), 5, None, None, "no file here");
    assert_eq!(failed[0], note_failed(5, "no file here"));
    assert_eq!(failed[1..], to_all(&["a", "b", "c", "d"], &fail(5, "no file here")));
    assert_eq!(job.deadline(), None);
}

#[test]
fn not_all_nodes_of_a_large_job_are_asked_for_a_manifest() {
    let mut job = job(&["a", "b", "c", "d", "e", "f", "g"]);
    job.persisted("a", 5, 0, 1);
    assert_eq!(job.on_gone(now(6), &"a"), [send("b", commit(5, 1))]);
    for (node, next) in [("b", "c"), ("c", "d"), ("d", "e")] {
        let refused = job.on_failed(now(7), &node, &dir(), 5, None, None, "no file");
        assert_eq!(refused, [send(next, commit(5, 1))]);
    }
    assert_eq!(job.on_failed(now(7), &"e", &dir(), 5, None, None, "no file")[0], note_failed(5, "no file"));
    assert_eq!(job.under_way().count(), 0);
}

#[test]
fn a_shard_that_comes_late_does_not_have_a_gone_node_write_the_manifest() {
    let mut job = job(&["a", "b"]);
    job.persisted("a", 5, 0, 2);
    assert_eq!(job.on_gone(now(6), &"a"), []);
    assert_eq!(job.persisted("b", 5, 1, 2), [send("b", commit(5, 2))]);
}

#[test]
fn a_step_whose_shard_is_lost_with_its_node_fails_at_once() {
    let mut job = job(&["a", "b"]);
    job.says("a", pair(0, 4, &[4], &[4]));
    job.says("b", pair(2, 4, &[4], &[4]));
    job.persisted("b", 4, 2, 4);
    let reason =
        "the saver that had shard 3 in memory exited, or its node was lost, before the shard was on disk";
    let failed = job.on_gone(now(6), &"b");
    assert_eq!(failed, [note_failed(4, reason), send("a", fail(4, reason)), send("b", fail(4, reason))]);
}

#[test]
fn older_steps_are_given_up_for_a_newer_one_that_counts() {
    let mut job = job(&["a"]);
    job.persisted("a", 4, 0, 2);
    job.persisted("a", 5, 0, 2);
    job.persisted("a", 5, 1, 2);
    let done = job.on_committed(now(6), &"a", &dir(), 5);
    let reason = "a newer step is on disk";
    let expected =
        [note_committed(5, 2), send("a", committed(5)), note_failed(4, reason), send("a", fail(4, reason))];
    assert_eq!(done, expected);
    let told = Order::Fail { dir: dir(), step: 3, saved_in: 0, given_up: 0, reason: reason.to_owned() };
    assert_eq!(job.persisted("a", 3, 0, 2), [send("a", told)]);
}

#[test]
fn what_a_node_missed_is_said_again() {
    let mut job = job(&["a", "b"]);
    job.complete("a", 3);
    job.says("a", pair(0, 4, &[4], &[4]));
    job.says("b", pair(2, 4, &[4], &[4]));
    job.persisted("a", 4, 0, 4);
    job.persisted("a", 4, 1, 4);
    assert_eq!(job.repeat(&"a"), [send("a", committed(3))]);
    assert_eq!(job.repeat(&"b"), [send("b", committed(3)), send("b", persist(4))]);
    job.persisted("b", 4, 2, 4);
    job.persisted("b", 4, 3, 4);
    assert_eq!(job.repeat(&"a"), [send("a", committed(3)), send("a", commit(4, 4))]);
}

#[test]
fn a_master_without_memory_takes_the_reports_again() {
    let mut job = job(&["a"]);
    job.complete("a", 5);
    let mut other = super::job(&["a"]);
    assert_eq!(other.on_committed(now(1), &"a", &dir(), 5)[0], note_committed(5, 0));
    assert_eq!(other.committed(&dir()), Some(5));
    // An older one that comes late does not turn it back.
    assert_eq!(other.on_committed(now(1), &"a", &dir(), 4), []);
}

#[test]
fn the_journal_keeps_all_of_it() {
    let mut job = JobCheckpoints::<String>::new(TIMEOUT, true);
    let members = vec![Member {
        node: "a".to_owned(),
        first_rank: 0,
        local_world_size: 2,
        address: String::new(),
        is_void: false,
    }];
    let _nothing = job.begin_round(now(0), 0, 2, members);
    job.on_state(now(1), &"a".to_owned(), pair(0, 2, &[4], &[4]));
    job.on_persisted(now(1), &"a".to_owned(), &dir(), 4, (0, 0), file(4, 0, 2));
    let json = serde_json::to_string(&job).unwrap();
    assert_eq!(serde_json::from_str::<JobCheckpoints<String>>(&json).unwrap(), job);
}

#[test]
fn a_report_of_a_failed_step_that_comes_late_is_refused_and_a_new_save_is_not() {
    let mut job = job(&["a"]);
    job.persisted("a", 5, 0, 2);
    job.on_failed(now(6), &"a", &dir(), 5, Some(1), Some(0), "disk full");
    job.end_round();
    let _nothing = job.begin_round(now(9), 1, 2, members(&["a"]));
    assert_eq!(job.persisted("a", 5, 1, 2), [send("a", fail(5, "disk full"))]);
    assert_eq!(job.on_persisted(now(10), &"a", &dir(), 5, (1, 0), file(5, 0, 2)), []);
    assert_eq!(job.under_way().count(), 1);
}

#[test]
fn a_manifest_is_waited_for_as_long_as_its_node_lives() {
    let mut job = job(&["a"]);
    assert_eq!(job.persisted("a", 5, 0, 1), [send("a", commit(5, 1))]);
    assert_eq!(job.on_deadline(now(605)), [send("a", commit(5, 1))]);
    assert_eq!(job.deadline(), Some(now(1205)));
}

#[test]
fn the_tracker_does_not_go_back() {
    let mut job = job(&["a"]);
    assert_eq!(job.persisted("a", 5, 0, 1), [send("a", commit(5, 1))]);
    assert_eq!(job.persisted("a", 4, 0, 1), []);
    assert_eq!(job.persisted("a", 7, 0, 1), []);
    assert_eq!(job.persisted("a", 6, 0, 1), []);
    let next = job.on_committed(now(6), &"a", &dir(), 5);
    let reason = "a newer step is on disk";
    let expected = [
        note_committed(5, 1),
        send("a", committed(5)),
        note_failed(4, reason),
        send("a", fail(4, reason)),
        send("a", commit(7, 1)),
    ];
    assert_eq!(next, expected);
}

/// A worker without memory, or whose saver is gone, writes by itself: the job has not ordered it.
#[test]
fn a_step_that_a_worker_has_written_by_itself_counts() {
    let mut job = job(&["a", "b"]);
    job.complete("a", 5);
    let effects = job.on_written_alone(now(6), &dir(), 7, 0);
    assert_eq!(effects, [vec![note_committed(7, 0)], to_all(&["a", "b"], &committed(7))].concat());
    assert_eq!(job.on_written_alone(now(6), &dir(), 7, 0), [], "said again");
    assert_eq!(job.on_written_alone(now(6), &dir(), 6, 0), [], "said late");
    assert_eq!(job.committed(&dir()), Some(7));
}

#[test]
fn a_commit_that_was_on_its_way_meanwhile_does_not_set_the_job_back() {
    let mut job = job(&["a", "b"]);
    assert_eq!(job.persisted("a", 5, 0, 1), [send("a", commit(5, 1))]);
    job.on_written_alone(now(6), &dir(), 7, 0);
    assert_eq!(job.on_committed(now(7), &"a", &dir(), 5)[0], note_committed(5, 1));
    assert_eq!(job.committed(&dir()), Some(7));
}

#[test]
fn a_commit_whose_node_is_lost_is_not_made_behind_it() {
    let mut job = job(&["a", "b"]);
    assert_eq!(job.persisted("a", 5, 0, 1), [send("a", commit(5, 1))]);
    job.on_written_alone(now(6), &dir(), 7, 0);
    let reason = "a newer step is on disk";
    let expected = [vec![note_failed(5, reason)], to_all(&["a", "b"], &fail(5, reason))].concat();
    assert_eq!(job.on_saver_gone(now(7), &"a"), expected);
}

/// The order was passed on to another node, and both have carried it out.
#[test]
fn an_old_commit_that_is_said_late_does_not_count_again() {
    let mut job = job(&["a", "b"]);
    job.complete("a", 5);
    job.complete("a", 7);
    job.end_round();
    assert_eq!(job.begin_round(now(9), 1, 4, members(&["a", "b"])).0, [disk(7, None)]);
    assert_eq!(job.on_committed(now(10), &"b", &dir(), 5), []);
    assert_eq!(job.committed(&dir()), Some(7));
}

#[test]
fn a_step_that_fails_is_not_ordered_again_after_failures_of_steps_with_higher_numbers() {
    let mut job = job(&["a"]);
    job.says("a", pair(0, 2, &[99], &[]));
    for step in 100..200 {
        job.on_failed(now(5), &"a", &dir(), step, Some(0), Some(0), "disk full");
    }
    // The script has loaded an older step by itself.
    assert_eq!(job.says("a", pair(0, 2, &[4], &[4])), [send("a", persist(4))]);
    let failed = job.on_failed(now(6), &"a", &dir(), 4, Some(0), Some(0), "disk full");
    assert_eq!(failed, [vec![note_failed(4, "disk full")], to_all(&["a"], &fail(4, "disk full"))].concat());
}
