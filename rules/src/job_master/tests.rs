//! An input, and the whole output.

use super::*;
use crate::push::Push;
use crate::{
    ids::{Round, RunId},
    job::{Gone, Log, NodeEnd, OnGiveUp, Regroup},
    liveness::LossCause,
    node::{JoinRequest, NodeAttributes, NodeName, Terms},
    verdict::JobVerdict,
};

const GRACE: Duration = Duration::from_secs(2);

/// What nodes have to come back to a master that was started again.
const RETURN: Duration = Duration::from_secs(9);
const SILENCE: Duration = Duration::from_secs(15);
const JOIN: Duration = Duration::from_secs(600);

fn timeout() -> Timeout {
    Timeout { reconnect_grace: GRACE, heartbeat_timeout: Some(SILENCE) }
}

fn id(name: &str) -> NodeId {
    NodeId(name.into())
}

fn joined(name: &str, min_nodes: u32, max_nodes: u32) -> Event {
    Event::Joined(JoinRequest {
        node_id: id(name),
        wish: None,
        local_world_size: 1,
        role: "default".into(),
        address: format!("10.0.0.{}", name.as_bytes()[0]),
        node_ip: None,
        terms: Terms {
            run_id: RunId("job".into()),
            min_nodes,
            max_nodes,
            node_unit: 1,
            last_call: Duration::ZERO,
            join_timeout: JOIN,
            require_uniform: false,
            check: None,
            hang: None,
            save_at_breakpoint: false,
        },
        attributes: NodeAttributes::default(),
        after: None,
        checked: None,
        question_port: 0,
        shards: Vec::new(),
    })
}

fn hosted(name: &str) -> Event {
    Event::Hosted { node: id(name), round: Round(0), master_addr: None, master_port: 1 }
}

fn subscribed(name: &str) -> Event {
    Event::Subscribed { node: id(name) }
}

/// A master, and the nodes that attend it.
struct Test {
    master: JobMaster,
    now: Moment,
}

impl Test {
    /// Without heartbeats: only progress messages happen.
    fn quiet() -> Self {
        Self::with(Timeout { heartbeat_timeout: None, ..timeout() })
    }

    fn new() -> Self {
        Self::with(timeout())
    }

    fn with(timeout: Timeout) -> Self {
        let policy = Policy {
            restart_count: 1,
            on_give_up: OnGiveUp::Replace,
            host: None,
            has_topology: false,
            host_timeout: Duration::from_secs(60),
            reconnect_grace: GRACE,
            terms: None,
            is_open: false,
            taint_guard_permille: 300,
            lease: None,
        };
        Self { master: JobMaster::new(policy, timeout), now: Moment::START }
    }

    fn at_millis(&mut self, millis: u64) -> &mut Self {
        self.now = Moment::at_millis(millis);
        self
    }

    fn at(&mut self, secs: u64) -> &mut Self {
        self.at_millis(secs * 1000)
    }

    fn send(&mut self, event: Event) -> Output {
        self.master.handle(self.now, Input::Event(event))
    }

    /// Attends and joins.
    fn join(&mut self, name: &str, min_nodes: u32, max_nodes: u32) -> Output {
        let _ = self.send(subscribed(name));
        self.send(joined(name, min_nodes, max_nodes))
    }

    /// Heartbeats have no effects and are not journalled.
    fn beat(&mut self, name: &str) {
        assert_eq!(
            self.master.handle(self.now, Input::Beat { node: id(name), taken_round: None }),
            Output::default()
        );
    }

    fn deadline(&mut self) -> Output {
        let output = self.master.handle(self.now, Input::Deadline);
        assert!(self.master.deadline().is_none_or(|due| due > self.now), "a shell would spin");
        output
    }

    /// The present progress message, and nothing else happens.
    fn posted(&mut self) -> Option<(Pending, BTreeSet<NodeId>)> {
        let output = self.deadline();
        assert_eq!((output.journal, output.effects), (vec![], vec![]));
        output.pending
    }
}

fn gathering(joined: u32, needed: u32, waited: u64, to: &[&str]) -> Option<(Pending, BTreeSet<NodeId>)> {
    let waited = Duration::from_secs(waited);
    let (most, missing, stopping, starts_in) = (needed, None, 0, None);
    let pending =
        Pending::Gathering { joined, needed, most, missing, stopping, starts_in, waited, limit: JOIN };
    Some((pending, to.iter().map(|name| id(name)).collect()))
}

fn spare(to: &[&str]) -> Option<(Pending, BTreeSet<NodeId>)> {
    Some((Pending::Spare { nodes: 1, lacking: 0 }, to.iter().map(|name| id(name)).collect()))
}

/// `a` runs alone.
fn running() -> Test {
    runs_in(Test::new())
}

fn runs_in(mut test: Test) -> Test {
    let _ = test.join("a", 1, 1);
    let _ = test.send(hosted("a"));
    let taken = Input::Beat { node: id("a"), taken_round: Some(Round(0)) };
    let journal = vec![Event::AssignmentTaken { node: id("a"), round: Round(0) }];
    assert_eq!(test.master.handle(test.now, taken.clone()).journal, journal);
    assert_eq!(test.master.handle(test.now, taken), Output::default(), "said again");
    test
}

#[test]
fn many_joins_are_one_change_sent_a_second_after_the_first() {
    let mut test = Test::quiet();
    let output = test.at(10).join("a", 4, 4);
    assert_eq!(output, Output { journal: vec![joined("a", 4, 4)], effects: vec![], pending: None });
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(11)));
    assert_eq!(test.at_millis(10_400).join("b", 4, 4).pending, None);
    assert_eq!(test.at_millis(10_900).join("c", 4, 4).pending, None);
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(11)), "the first is not kept waiting");
    assert_eq!(test.at(11).posted(), gathering(3, 4, 1, &["a", "b", "c"]));
}

#[test]
fn waiting_nodes_get_progress_every_ten_seconds_and_changes_at_once() {
    let mut test = Test::quiet();
    let _joined = test.join("a", 3, 3);
    assert_eq!(test.at(1).posted(), gathering(1, 3, 1, &["a"]));
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(11)));
    assert_eq!(test.at(5).posted(), None, "too early");
    assert_eq!(test.at(11).posted(), gathering(1, 3, 11, &["a"]));
    assert_eq!(test.at(15).join("b", 3, 3).pending, None);
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(16)));
    assert_eq!(test.at(16).posted(), gathering(2, 3, 16, &["a", "b"]));
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(26)));
    let left = Event::NodeEnded { node: id("b"), end: NodeEnd::Left { signal: 15 } };
    assert_eq!(test.at(20).send(left).pending, None);
    assert_eq!(test.at(21).posted(), gathering(1, 3, 21, &["a"]));
}

#[test]
fn unchanged_progress_is_not_sent() {
    let mut test = Test::quiet();
    let _joined = test.join("a", 2, 2);
    assert_eq!(test.at(1).posted(), gathering(1, 2, 1, &["a"]));
    let _again = test.at(3).join("a", 2, 2);
    assert_eq!(test.at(4).posted(), None);
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(11)), "every ten seconds, as before");
}

#[test]
fn no_message_is_sent_when_no_node_waits() {
    let mut test = Test::quiet();
    let _joined = test.join("a", 2, 2);
    let _placed = test.join("b", 2, 2);
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(60)), "the host's time alone");
    let _assignments = test.at(1).send(hosted("a"));
    assert_eq!(test.master.deadline(), None);
}

#[test]
fn a_spare_is_notified_once() {
    let mut test = runs_in(Test::quiet());
    assert_eq!(test.join("b", 1, 1).pending, None);
    assert_eq!(test.at(1).posted(), spare(&["b"]));
    assert_eq!(test.at(5).join("c", 1, 1).pending, None);
    assert_eq!(test.at(6).posted(), spare(&["c"]));
    let _again = test.at(7).join("b", 1, 1);
    for secs in [8, 12] {
        assert_eq!(test.at(secs).posted(), None);
    }
    let succeeded = Event::NodeEnded { node: id("a"), end: NodeEnd::Succeeded { round: Round(0) } };
    let output = test.at(13).send(succeeded);
    let told = |name| Effect::Push { node: id(name), push: Push::JobEnd(JobVerdict::Succeeded) };
    assert_eq!((output.effects, output.pending), (vec![told("a"), told("b"), told("c")], None));
}

#[test]
fn a_beat_is_not_journalled_and_keeps_its_node() {
    let mut test = running();
    assert_eq!(test.master.beat_interval(), Some(Duration::from_secs(1)));
    assert_eq!(test.master.deadline(), Some(Moment::START + SILENCE));
    test.at(10).beat("a");
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(25)));
    test.beat("z");
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(25)), "a node without a stream is not watched");
    // So does any other message.
    let _ignored = test.at(20).send(hosted("a"));
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(35)));
}

fn lost(name: &str, cause: LossCause) -> Event {
    Event::NodeLost { node: id(name), cause }
}

/// What the loss of the only node of round 0 brings.
fn gone(name: &str, cause: &LossCause, rank: u32) -> Vec<Effect> {
    let node = NodeName {
        rank: Some(crate::NodeRank(rank)),
        host: String::new(),
        address: format!("10.0.0.{}", name.as_bytes()[0]),
        node_id: id(name),
    };
    let gone = Gone::Lost { reason: cause.to_string() };
    vec![
        Effect::HangUp { node: id(name) },
        Effect::Forget { node: id(name) },
        Effect::Log(Log::Gone { node: node.clone(), gone: gone.clone(), losses: Some(1), limit: 1 }),
        Effect::Log(Log::Regrouped { round: Round(0), why: Regroup::NodeGone { node, gone } }),
    ]
}

#[test]
fn a_silent_node_is_lost_once_and_the_loss_is_journalled() {
    let mut test = running();
    let cause = LossCause::Silent { timeout: SILENCE };
    assert_eq!(test.at(14).deadline(), Output::default());
    assert_eq!(
        test.at(15).deadline(),
        Output { journal: vec![lost("a", cause)], effects: gone("a", &cause, 0), pending: None }
    );
    assert_eq!(test.at(16).deadline(), Output::default());
    test.beat("a");
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(15) + JOIN), "no node is watched");
}

#[test]
fn a_master_that_stood_still_loses_no_node() {
    let mut test = running();
    let _broken = test.at(14).send(Event::LinkBroken { node: id("a") });
    assert_eq!(test.at(40).deadline(), Output::default(), "no node could be heard");
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(49)), "the grace begins again");
    test.at(60).beat("b");
    let cause = LossCause::Disconnected { grace: RETURN };
    assert_eq!(test.at(69).deadline().journal, [lost("a", cause)], "and ends when the master runs");
}

#[test]
fn a_broken_stream_is_a_loss_after_the_grace_unless_it_comes_back() {
    let mut test = running();
    let _broken = test.at(5).send(Event::LinkBroken { node: id("a") });
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(7)));
    test.at(6).beat("a");
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(7)), "a beat is no stream");
    let _back = test.at(6).send(subscribed("a"));
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(21)));
    let _broken = test.at(8).send(Event::LinkBroken { node: id("a") });
    let cause = LossCause::Disconnected { grace: GRACE };
    assert_eq!(
        test.at(10).deadline(),
        Output { journal: vec![lost("a", cause)], effects: gone("a", &cause, 0), pending: None }
    );
}

#[test]
fn a_node_that_never_joins_is_disconnected_or_forgotten() {
    let mut test = Test::new();
    let _subscribed = test.send(subscribed("a"));
    let cause = LossCause::Silent { timeout: SILENCE };
    let effects = vec![Effect::HangUp { node: id("a") }];
    assert_eq!(test.at(15).deadline(), Output { journal: vec![lost("a", cause)], effects, pending: None });
    let _subscribed = test.send(subscribed("b"));
    let _broken = test.send(Event::LinkBroken { node: id("b") });
    assert_eq!(test.master.deadline(), None);
}

#[test]
fn a_join_that_is_read_after_its_stream_broke_makes_no_ghost() {
    let mut test = Test::new();
    let broken = Event::LinkBroken { node: id("a") };
    assert_eq!(test.send(joined("a", 2, 2)).journal, [joined("a", 2, 2), broken]);
    let cause = LossCause::Disconnected { grace: GRACE };
    assert_eq!(test.at(2).deadline().journal, [lost("a", cause)]);
}

#[test]
fn a_node_that_left_is_not_lost_later() {
    let mut test = running();
    let _left = test.send(Event::NodeEnded { node: id("a"), end: NodeEnd::Left { signal: 2 } });
    let _broken = test.send(Event::LinkBroken { node: id("a") });
    assert_eq!(test.master.deadline(), Some(Moment::START + JOIN), "for a replacement, not for the node");
}

#[test]
fn two_losses_in_one_turn_are_two_records() {
    let mut test = Test::new();
    for name in ["a", "b"] {
        let _ = test.join(name, 3, 3);
    }
    let cause = LossCause::Silent { timeout: SILENCE };
    let output = test.at(15).deadline();
    assert_eq!(output.journal, [lost("a", cause), lost("b", cause)]);
    let gone = |name| [Effect::HangUp { node: id(name) }, Effect::Forget { node: id(name) }];
    assert_eq!(output.effects, [gone("a"), gone("b")].concat());
}

#[test]
fn a_deadline_of_the_job_is_journalled_as_such() {
    let mut test = Test::quiet();
    let _joined = test.join("a", 2, 2);
    let output = test.at(600).deadline();
    assert_eq!(output.journal, [Event::Deadline]);
    assert!(test.master.job().verdict().is_some());
}

#[test]
fn after_a_restart_all_nodes_have_the_grace_to_come_back() {
    let job = running().master.job().clone();
    let now = Moment::at_secs(100);
    let (master, output) = JobMaster::restored(job, timeout(), now);
    assert_eq!(output, Output { journal: vec![Event::Restarted], effects: vec![], pending: None });
    assert_eq!(master.deadline(), Some(now + RETURN));
    let mut test = Test { master, now };
    let cause = LossCause::Disconnected { grace: RETURN };
    assert_eq!(test.at(109).deadline().journal, [lost("a", cause)]);

    let (master, _) = JobMaster::restored(running().master.job().clone(), timeout(), now);
    let mut test = Test { master, now };
    let _back = test.at(101).send(subscribed("a"));
    assert_eq!(test.master.deadline(), Some(Moment::at_secs(116)));
}

#[test]
fn inside_one_process_there_are_no_heartbeats_and_no_silence() {
    let policy = running().master.job().clone();
    let timeout = Timeout { heartbeat_timeout: None, ..timeout() };
    let (master, _) = JobMaster::restored(policy, timeout, Moment::START);
    let mut test = Test { master, now: Moment::START };
    let _back = test.send(subscribed("a"));
    assert_eq!((test.master.beat_interval(), test.master.deadline()), (None, None));
}
