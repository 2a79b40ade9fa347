//! Events in, the whole effect list out.

use proptest::prelude::*;

use super::*;

const JOIN: Duration = Duration::from_secs(600);
const HOST: Duration = Duration::from_secs(60);

fn job(nodes: u32) -> Job {
    Job::new(JobLimits { nodes, join_timeout: JOIN, host_timeout: HOST })
}

fn id(name: &str) -> NodeId {
    NodeId(name.into())
}

fn member(name: &str) -> Member {
    Member { node_id: id(name), local_world_size: 2, role: "default".into() }
}

fn joined(name: &str, wish: Option<u32>) -> Event {
    Event::Joined(JoinRequest { member: member(name), wish: wish.map(NodeRank) })
}

fn hosted(name: &str, round: u32) -> Event {
    let master_addr = "10.0.0.1".to_owned();
    Event::Hosted { node: id(name), round: Round(round), master_addr, master_port: 5 }
}

fn world(round: u32, names: &[&str]) -> World {
    World {
        round: Round(round),
        members: names.iter().map(|name| member(name)).collect(),
        master_addr: "10.0.0.1".into(),
        master_port: 5,
    }
}

fn running(names: &[&str]) -> Job {
    let mut job = job(u32::try_from(names.len()).unwrap());
    for (wish, name) in (0u32..).zip(names) {
        let _ = job.handle(Moment::START, joined(name, Some(wish)));
    }
    let _ = job.handle(Moment::START, hosted(names[0], 0));
    job
}

fn ended(name: &str, end: NodeEnd) -> Event {
    Event::NodeEnded { node: id(name), end }
}

#[test]
fn one_node_is_asked_to_host_seated_and_dismissed() {
    let mut job = job(1);
    assert_eq!(
        job.handle(Moment::START, joined("a", None)),
        [Effect::AskToHost { node: id("a"), round: Round(0) }]
    );
    assert_eq!(
        job.handle(Moment::START, hosted("a", 0)),
        [Effect::Seat { node: id("a"), world: world(0, &["a"]) }]
    );
    assert_eq!(job.deadline(), None);
    assert_eq!(
        job.handle(Moment::START, ended("a", NodeEnd::Succeeded)),
        [
            Effect::TellEnd { node: id("a"), verdict: JobVerdict::Succeeded },
            Effect::Finish { verdict: JobVerdict::Succeeded }
        ]
    );
}

#[test]
fn wishes_order_the_seats_and_the_rest_follow() {
    let mut job = job(3);
    assert_eq!(job.handle(Moment::START, joined("a", None)), []);
    assert_eq!(job.handle(Moment::START, joined("b", Some(7))), []);
    assert_eq!(
        job.handle(Moment::START, joined("c", Some(0))),
        [Effect::AskToHost { node: id("c"), round: Round(0) }]
    );
    let seat = |name| Effect::Seat { node: id(name), world: world(0, &["c", "b", "a"]) };
    assert_eq!(job.handle(Moment::START, hosted("c", 0)), [seat("c"), seat("b"), seat("a")]);
}

#[test]
fn a_member_that_joins_again_brings_all_others_back() {
    let mut job = running(&["a", "b"]);
    assert_eq!(
        job.handle(Moment::START, joined("b", Some(1))),
        [Effect::Regroup { node: id("a"), round: Round(0) }]
    );
    assert_eq!(
        job.handle(Moment::START, joined("a", Some(0))),
        [Effect::AskToHost { node: id("a"), round: Round(1) }]
    );
    assert_eq!(job.handle(Moment::START, hosted("a", 0)), [], "late word of the old round");
    let seat = |name| Effect::Seat { node: id(name), world: world(1, &["a", "b"]) };
    assert_eq!(job.handle(Moment::START, hosted("a", 1)), [seat("a"), seat("b")]);
}

#[test]
fn success_waits_for_every_member() {
    let mut job = running(&["a", "b"]);
    assert_eq!(job.handle(Moment::START, ended("b", NodeEnd::Succeeded)), []);
    let tell = |name| Effect::TellEnd { node: id(name), verdict: JobVerdict::Succeeded };
    assert_eq!(
        job.handle(Moment::START, ended("a", NodeEnd::Succeeded)),
        [tell("a"), tell("b"), Effect::Finish { verdict: JobVerdict::Succeeded }]
    );
}

#[test]
fn one_node_giving_up_ends_the_job_for_all() {
    let mut job = running(&["a", "b"]);
    let reason = "rank 1 exited with code 3".to_owned();
    let verdict = JobVerdict::Failed { node: id("b"), reason: reason.clone() };
    let tell = |name| Effect::TellEnd { node: id(name), verdict: verdict.clone() };
    assert_eq!(job.handle(Moment::START, ended("b", NodeEnd::Failed { reason })), [tell("a"), tell("b")]);
    assert_eq!(
        job.handle(Moment::START, Event::NodeLost { node: id("a") }),
        [Effect::Finish { verdict: verdict.clone() }]
    );
}

#[test]
fn whoever_waits_in_vain_is_told_so() {
    let mut job = job(2);
    let _ = job.handle(Moment::at_secs(1), joined("a", None));
    let late = Moment::at_secs(1) + JOIN;
    assert_eq!(job.deadline(), Some(late));
    let reason = Refusal::TimedOut { joined: 1, nodes: 2, waited: JOIN };
    assert_eq!(reason.to_string(), "1 of 2 nodes joined within 600 s");
    assert_eq!(job.handle(late, Event::Deadline), [Effect::Refuse { node: id("a"), reason }]);
    assert_eq!(job.deadline(), None);
}

#[test]
fn a_host_that_stays_silent_does_not_hold_the_others() {
    let mut job = job(1);
    let _ = job.handle(Moment::START, joined("a", None));
    let reason = Refusal::NoHost { node: id("a") };
    assert_eq!(job.handle(Moment::START + HOST, Event::Deadline), [Effect::Refuse { node: id("a"), reason }]);
}

#[test]
fn a_stranger_is_refused_by_a_running_job() {
    let mut job = running(&["a"]);
    assert_eq!(
        job.handle(Moment::START, joined("z", None)),
        [Effect::Refuse { node: id("z"), reason: Refusal::Full { nodes: 1 } }]
    );
}

proptest! {
    #[test]
    fn any_order_of_events_keeps_the_promises(
        nodes in 1u32..4,
        events in proptest::collection::vec((0u64..100_000, 0u8..5, 0u32..4, 0u32..3), 0..60),
    ) {
        let mut job = job(nodes);
        let mut now = Moment::START;
        for (millis, kind, node, round) in events {
            now = now + Duration::from_millis(millis);
            let name = format!("n{node}");
            let event = match kind {
                0 => joined(&name, None),
                1 => hosted(&name, round),
                2 => ended(&name, NodeEnd::Succeeded),
                3 => Event::NodeLost { node: id(&name) },
                _ => Event::Deadline,
            };
            let was_deadline = event == Event::Deadline;
            for effect in job.handle(now, event) {
                if let Effect::Seat { node, world } = effect {
                    prop_assert_eq!(world.members.len(), nodes as usize);
                    prop_assert!(world.seat_of(&node).is_some());
                }
            }
            if was_deadline {
                prop_assert!(job.deadline().is_none_or(|at| at > now));
            }
        }
    }
}
