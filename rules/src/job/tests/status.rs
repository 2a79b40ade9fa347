//! What people see of the job: states, counts, and times that add up.

use super::*;
use crate::job_status::{JobPhase, JobStatus, NodeRestarts, NodeState};

fn states(status: &JobStatus) -> Vec<(Option<u32>, &str, NodeState)> {
    status.nodes.iter().map(|node| (node.node_rank, node.host.as_str(), node.state)).collect()
}

#[test]
fn a_job_without_nodes_has_a_status() {
    let status = Job::new(policy()).status(Moment::at_secs(9));
    assert_eq!((status.job, status.phase, status.round), (None, JobPhase::Pending, None));
    assert_eq!(status.totals.effective_training_ratio, None);
    assert!(status.nodes.is_empty() && status.events.is_empty() && status.end.is_none());
}

#[test]
fn a_job_is_followed_from_its_first_node_to_its_end() {
    let mut test = Test::new(policy(), terms(2, 2));
    let _ = test.at(10).join("a");
    let status = test.job.status(Moment::at_secs(13));
    assert_eq!((status.phase, status.age_seconds, status.phase_seconds), (JobPhase::Pending, 3.0, 3.0));
    assert_eq!(status.pending.as_deref(), Some("1 of 2 nodes joined (3 s of 600 s)"));
    assert_eq!(states(&status), [(None, "host-a", NodeState::Waiting)]);

    let _ = test.at(20).join("b");
    let status = test.job.status(test.now);
    assert_eq!((status.phase, status.round), (JobPhase::Rendezvous, Some(0)));
    assert_eq!(states(&status)[0].2, NodeState::Starting);

    let _ = test.at(22).hosted("a", 0);
    let status = test.job.status(Moment::at_secs(32));
    assert_eq!((status.phase, status.phase_seconds, status.world_size), (JobPhase::Running, 10.0, Some(4)));
    assert_eq!(
        states(&status),
        [(Some(0), "host-a", NodeState::Running), (Some(1), "host-b", NodeState::Running)]
    );
    assert_eq!(status.nodes[1].first_rank, Some(2));
    assert_eq!(status.pending, None);

    let _ = test.at(62).workers_fail("b", 0, false);
    let _ = test.at(64).rejoin("a", 0);
    let status = test.job.status(test.now);
    assert_eq!(status.phase, JobPhase::Restart);
    assert_eq!(
        states(&status),
        [(Some(0), "host-a", NodeState::Waiting), (Some(1), "host-b", NodeState::Stopping)]
    );
    let failure = status.last_failure.unwrap();
    assert_eq!((failure.round, failure.reason.as_str(), failure.seconds_ago), (Some(0), REASON, 2.0));
    assert_eq!(failure.node, "node rank 1 (host-b, 10.0.0.2)");

    let _ = test.at(65).rejoin("b", 0);
    let _ = test.at(66).hosted("a", 1);
    let _ = test.at(106).succeed("a", 1);
    let status = test.job.status(test.now);
    assert_eq!(states(&status)[0].2, NodeState::Succeeded);
    assert_eq!((status.nodes[0].restarts, status.nodes[1].restarts), (0, 1), "of the node that failed");
    let _ = test.succeed("b", 1);

    let status = test.job.status(Moment::at_secs(1000));
    assert_eq!(status.phase, JobPhase::Over);
    assert!(status.end.unwrap().succeeded);
    let totals = status.totals;
    // 10 s pending, 2 s rendezvous, 40 s training, 3 s stopping, 1 s rendezvous, 40 s training.
    assert_eq!(totals.training_seconds, 80.0);
    let lost = totals.lost_seconds;
    assert_eq!((lost.pending, lost.rendezvous, lost.check, lost.restart), (10.0, 3.0, 0.0, 3.0));
    assert_eq!(totals.effective_training_ratio, Some(80.0 / 96.0), "time after the end counts for nothing");
    assert_eq!((totals.rounds, totals.worker_restarts, totals.node_losses), (2, 1, 0));
    assert_eq!((totals.failure_to_running.count, totals.failure_to_running.sum), (1, 4.0));
    assert_eq!((totals.rendezvous.count, totals.rendezvous.sum), (2, 12.0 + 4.0));
    let rounds: Vec<_> =
        status.rounds.iter().map(|it| (it.round, it.nodes, it.rendezvous_seconds, it.ran_seconds)).collect();
    assert_eq!(rounds, [(0, 2, 12.0, 40.0), (1, 2, 4.0, 40.0)]);
    assert!(status.rounds[0].ended.as_ref().unwrap().starts_with("workers of node rank 1"));
    assert_eq!(status.rounds[1].ended.as_deref(), Some("the job succeeded"));
}

#[test]
fn a_lost_node_is_counted_and_named() {
    let mut test = Test::running(policy(), terms(1, 2), &["a", "b"]);
    let _ = test.at(30).lose("b");
    let status = test.job.status(test.now);
    assert_eq!(status.totals.node_losses, 1);
    assert_eq!(status.last_failure.unwrap().node, "node rank 1 (host-b, 10.0.0.2)");
    let messages: Vec<&str> = status.events.iter().map(|event| event.message.as_str()).collect();
    assert!(
        messages.iter().any(|it| it.starts_with("node rank 1 (host-b, 10.0.0.2) was lost: ")),
        "{messages:#?}"
    );
    assert!(messages.iter().any(|it| it.starts_with("round 0 is over: ")), "{messages:#?}");
    let numbers: Vec<u64> = status.events.iter().map(|event| event.number).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "without gaps");
}

#[test]
fn a_node_rank_that_is_lost_keeps_its_restarts() {
    let mut test = Test::running(policy(), terms(1, 2), &["a", "b"]);
    let _ = test.workers_fail("b", 0, false);
    let _ = test.rejoin("a", 0);
    let _ = test.rejoin("b", 0);
    let _ = test.hosted("a", 1);
    let _ = test.lose("b");
    let totals = test.job.status(test.now).totals;
    let by_node = [NodeRestarts { node_rank: Some(1), restarts: 1 }];
    assert_eq!((totals.worker_restarts, &totals.restarts_by_node[..]), (1, &by_node[..]));
}

#[test]
fn the_silence_of_a_lost_node_is_no_training() {
    let silent = LossCause::Silent { timeout: Duration::from_secs(15) };
    for min in [1, 2] {
        let mut test = Test::running(policy(), terms(min, 2), &["a", "b"]);
        let start = test.now;
        test.now = start + Duration::from_secs(55);
        let _ = test.send(Event::NodeLost { node: id("b"), cause: silent });
        let status = test.job.status(test.now);
        assert_eq!((status.phase, status.phase_seconds), (JobPhase::Restart, 15.0));
        assert_eq!(status.totals.training_seconds, 40.0);
        assert_eq!(status.totals.lost_seconds.restart, 15.0);
        assert_eq!((status.rounds[0].ran_seconds, status.last_failure.unwrap().seconds_ago), (40.0, 15.0));
    }
    // Not longer than the workers have run, and not at all where the round continues.
    let mut test = Test::running(policy(), terms(1, 2), &["a", "b"]);
    test.now = test.now + Duration::from_secs(5);
    let _ = test.send(Event::NodeLost { node: id("b"), cause: silent });
    assert_eq!(test.job.status(test.now).totals.training_seconds, 0.0);
    let mut test = Test::running(policy(), terms(1, 1), &["a"]);
    let _ = test.join("b");
    let ran = test.job.status(test.now).totals.training_seconds;
    test.now = test.now + Duration::from_secs(55);
    let _ = test.send(Event::NodeLost { node: id("b"), cause: silent });
    assert_eq!(test.job.status(test.now).totals.training_seconds, ran + 55.0);
}

#[test]
fn a_node_that_the_job_has_no_room_for_is_a_spare() {
    let mut test = Test::running(policy(), terms(1, 1), &["a"]);
    let _ = test.join("b");
    let status = test.job.status(test.now);
    assert_eq!(
        states(&status),
        [(Some(0), "host-a", NodeState::Running), (None, "host-b", NodeState::Spare)]
    );
    assert_eq!(status.pending, None, "the job waits for no node");
    let _ = test.send(Event::LinkBroken { node: id("a") });
    assert_eq!(states(&test.job.status(test.now))[0].2, NodeState::Disconnected);
    let _ = test.lose("b");
    let status = test.job.status(test.now);
    let last = &status.events.last().unwrap().message;
    assert!(last.contains("(host-b, 10.0.0.2) was lost: "), "{last}");
    assert_eq!(status.totals.node_losses, 0, "it had no part in the round");
}

#[test]
fn events_and_rounds_are_bounded() {
    let mut test = Test::running(policy(), terms(1, 1), &["a"]);
    for round in 0..300 {
        let _ = test.workers_fail("a", round, false);
        let _ = test.rejoin("a", round);
        let _ = test.hosted("a", round + 1);
    }
    let status = test.job.status(test.now);
    assert_eq!((status.events.len(), status.rounds.len()), (256, 64));
    assert_eq!((status.totals.rounds, status.totals.worker_restarts), (301, 300));
    assert!(status.events[0].number > 256);
}
