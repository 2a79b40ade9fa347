//! Bugs that the simulator found in the state machines, each as the shortest script that shows it.

use std::time::Duration;

use rules::{
    Moment, NodeId, NodeRank, Round, RunId,
    job::{Claim, Effect, Event, Job, NodeEnd, OnGiveUp, Policy, WorkersState},
    job_master::{Input, JobMaster, Output},
    liveness::Timeout,
    node::{JoinRequest, NodeAttributes, Terms},
    push::Push,
    verdict::JobVerdict,
};

const GRACE: Duration = Duration::from_secs(2);

fn policy() -> Policy {
    Policy {
        restart_count: 3,
        on_give_up: OnGiveUp::Replace,
        host: None,
        has_topology: false,
        host_timeout: Duration::from_secs(15),
        reconnect_grace: Duration::from_secs(30),
        terms: None,
        is_open: false,
        taint_guard_permille: 300,
        lease: None,
    }
}

fn timeout() -> Timeout {
    Timeout { reconnect_grace: GRACE, heartbeat_timeout: Some(Duration::from_secs(3600)) }
}

/// A master and the clock.
struct Scene {
    master: JobMaster,
    now: Moment,
    min: u32,
    max: u32,
    /// Every node requests the rank of its letter.
    has_wishes: bool,
}

fn id(node: &str) -> NodeId {
    NodeId(node.into())
}

impl Scene {
    fn new(min: u32, max: u32) -> Self {
        let master = JobMaster::new(policy(), timeout());
        Self { master, now: Moment::START, min, max, has_wishes: false }
    }

    fn request(&self, node: &str, after: Option<u32>) -> JoinRequest {
        JoinRequest {
            node_id: id(node),
            wish: self.has_wishes.then(|| NodeRank(u32::from(node.as_bytes()[0] - b'a'))),
            local_world_size: 1,
            role: "default".into(),
            address: format!("10.0.0.{}", node.as_bytes()[0]),
            node_ip: None,
            terms: Terms {
                run_id: RunId("job".into()),
                min_nodes: self.min,
                max_nodes: self.max,
                node_unit: 1,
                last_call: Duration::from_secs(3),
                join_timeout: Duration::from_secs(60),
                require_uniform: false,
                check: None,
                hang: None,
                save_at_breakpoint: false,
            },
            attributes: NodeAttributes::default(),
            after: after.map(Round),
            checked: None,
            question_port: 1,
            shards: Vec::new(),
        }
    }

    fn tell(&mut self, event: Event) -> Vec<Effect> {
        let Output { effects, .. } = self.master.handle(self.now, Input::Event(event));
        effects
    }

    fn subscribe(&mut self, node: &str) {
        let effects = self.tell(Event::Subscribed { node: id(node) });
        assert_eq!(effects, []);
    }

    fn join(&mut self, node: &str, after: Option<u32>) -> Vec<Effect> {
        let request = self.request(node, after);
        self.tell(Event::Joined(request))
    }

    fn claim(&mut self, node: &str, round: u32, node_rank: u32, workers_state: WorkersState) -> Vec<Effect> {
        let request = self.request(node, None);
        let claim = Claim {
            fence: None,
            round: Round(round),
            node_rank: NodeRank(node_rank),
            nodes: 2,
            master_addr: "10.0.0.97".into(),
            master_port: 4000,
            workers_state,
        };
        self.subscribe(node);
        self.tell(Event::Resumed { request, claim })
    }

    fn hosted(&mut self, node: &str, round: u32) -> Vec<Effect> {
        self.tell(Event::Hosted { node: id(node), round: Round(round), master_addr: None, master_port: 4000 })
    }

    fn wait(&mut self, secs: u64) -> Vec<Effect> {
        let until = self.now + Duration::from_secs(secs);
        let mut effects = Vec::new();
        while let Some(due) = self.master.deadline().filter(|due| *due <= until) {
            self.now = due;
            effects.extend(self.master.handle(due, Input::Deadline).effects);
            assert!(self.master.deadline().is_none_or(|next| next > due), "a deadline was handled and stays");
        }
        self.now = until;
        effects
    }

    /// These nodes run in round 0; the first of them serves the store.
    fn run(&mut self, nodes: &[&str]) {
        for node in nodes {
            self.subscribe(node);
            let _joined = self.join(node, None);
        }
        let _completed = self.wait(5);
        let _assigned = self.hosted(nodes[0], 0);
        assert!(self.master.job().world().is_some_and(|world| world.members.len() == nodes.len()));
    }
}

/// Whether the next round asks for a new port; `None` when no host was asked.
fn fresh_port(effects: &[Effect]) -> Option<bool> {
    effects.iter().find_map(|effect| match effect {
        Effect::Push { push: Push::Host { fresh_port, .. }, .. } => Some(*fresh_port),
        _ => None,
    })
}

#[test]
fn a_leaver_may_still_have_workers_when_the_next_round_starts() {
    let mut scene = Scene::new(2, 3);
    scene.run(&["a", "b", "c"]);
    let _told = scene.tell(Event::NodeEnded { node: id("c"), end: NodeEnd::Left { signal: 15 } });
    let _joined = scene.join("a", Some(0));
    let effects = scene.join("b", Some(0));
    assert_eq!(fresh_port(&effects), Some(true));
}

#[test]
fn a_join_timeout_in_the_middle_of_a_last_call_completes_the_round() {
    let mut scene = Scene::new(2, 3);
    for node in ["a", "b"] {
        scene.subscribe(node);
    }
    let _joined = scene.join("a", None);
    let _waited = scene.wait(59);
    let _joined = scene.join("b", None);
    let effects = scene.wait(1);
    assert_eq!(fresh_port(&effects), Some(false));
}

#[test]
fn a_member_that_a_round_did_not_wait_for_may_still_have_workers() {
    let mut scene = Scene::new(2, 3);
    scene.run(&["a", "b", "c"]);
    let (round, reason) = (Round(0), "exit code 1".to_owned());
    let _told = scene.tell(Event::WorkersFailed {
        node: id("a"),
        round,
        reason,
        gives_up: false,
        has_detail: false,
        age: Duration::ZERO,
    });
    let _joined = [scene.join("a", Some(0)), scene.join("b", Some(0))];
    let effects = scene.wait(60);
    assert_eq!(fresh_port(&effects), Some(true), "c has not stopped its workers");
}

#[test]
fn a_master_without_state_cannot_know_which_workers_run() {
    let mut scene = Scene::new(1, 2);
    scene.subscribe("a");
    let mut effects = scene.join("a", Some(4));
    effects.extend(scene.wait(5));
    assert_eq!(fresh_port(&effects), Some(true));
}

#[test]
fn a_restoration_that_a_member_ends_leaves_others_unknown() {
    let mut scene = Scene::new(1, 2);
    let mut effects = scene.claim("a", 4, 0, WorkersState::Running);
    scene.subscribe("c");
    effects.extend(scene.join("c", Some(4)));
    effects.extend(scene.join("a", Some(4)));
    assert_eq!(fresh_port(&effects), Some(true), "the member of rank 1 was not heard");
}

#[test]
fn a_claim_after_the_start_of_a_new_round_reports_old_workers() {
    let mut scene = Scene::new(1, 2);
    scene.run(&["a"]);
    let _late = scene.claim("b", 4, 0, WorkersState::Running);
    let mut effects = scene.join("b", Some(4));
    effects.extend(scene.join("a", Some(0)));
    effects.extend(scene.wait(5));
    assert_eq!(fresh_port(&effects), Some(true));
}

#[test]
fn what_is_found_out_while_a_store_is_opened_is_for_the_next_round() {
    let mut scene = Scene::new(1, 2);
    scene.subscribe("a");
    let mut effects = scene.join("a", None);
    effects.extend(scene.wait(4));
    assert_eq!(fresh_port(&effects), Some(false));
    let _late = scene.claim("b", 4, 0, WorkersState::Running);
    let _assigned = scene.hosted("a", 0);
    let (round, reason) = (Round(0), "exit code 1".to_owned());
    let _told = scene.tell(Event::WorkersFailed {
        node: id("a"),
        round,
        reason,
        gives_up: false,
        has_detail: false,
        age: Duration::ZERO,
    });
    let effects = scene.join("a", Some(0));
    assert_eq!(fresh_port(&effects), Some(true));
}

#[test]
fn a_host_that_served_an_older_round_takes_a_new_port() {
    // A member would stay before a newcomer that requests no rank.
    let mut scene = Scene { has_wishes: true, ..Scene::new(1, 3) };
    scene.run(&["b"]);
    // It served round 4 of a master that is forgotten, and its workers are still there.
    let _late = scene.claim("a", 4, 0, WorkersState::Running);
    let (round, reason) = (Round(0), "exit code 1".to_owned());
    let _told = scene.tell(Event::WorkersFailed {
        node: id("b"),
        round,
        reason,
        gives_up: false,
        has_detail: false,
        age: Duration::ZERO,
    });
    assert_eq!(fresh_port(&scene.join("b", Some(0))), Some(true));
    let _assigned = scene.hosted("b", 5);
    let _joined = scene.join("a", Some(4));
    let _regrouped = scene.wait(3);
    assert_eq!(
        fresh_port(&scene.join("b", Some(5))),
        Some(true),
        "the workers of round 4 may not all be gone"
    );
    let _assigned = scene.hosted("a", 6);
    let (round, reason) = (Round(6), "exit code 1".to_owned());
    let _told = scene.tell(Event::WorkersFailed {
        node: id("a"),
        round,
        reason,
        gives_up: false,
        has_detail: false,
        age: Duration::ZERO,
    });
    let _joined = scene.join("b", Some(6));
    assert_eq!(
        fresh_port(&scene.join("a", Some(6))),
        Some(false),
        "the same host again, and all have come back"
    );
}

#[test]
fn a_join_that_is_read_after_its_stream_broke_does_not_make_a_ghost() {
    let mut scene = Scene::new(2, 2);
    scene.subscribe("a");
    let _joined = scene.join("a", None);
    scene.subscribe("b");
    let _broken = scene.tell(Event::LinkBroken { node: id("b") });
    let effects = scene.join("b", None);
    assert_eq!(fresh_port(&effects), Some(false), "it may come back yet");
    let effects = scene.wait(2);
    assert!(effects.contains(&Effect::HangUp { node: id("b") }), "{effects:?}");
}

/// The replay of a journal must not need the liveness of the time when it was written.
#[test]
fn what_a_late_join_brings_about_is_in_the_journal() {
    let mut scene = Scene::new(2, 2);
    let request = scene.request("b", None);
    let output = scene.master.handle(scene.now, Input::Event(Event::Joined(request.clone())));
    assert_eq!(output.journal, [Event::Joined(request), Event::LinkBroken { node: id("b") }]);
}

#[test]
fn a_join_overtaken_by_its_own_assignment_is_ignored() {
    let mut scene = Scene::new(2, 2);
    scene.run(&["a", "b"]);
    let (round, reason) = (Round(0), "exit code 1".to_owned());
    let _told = scene.tell(Event::WorkersFailed {
        node: id("a"),
        round,
        reason,
        gives_up: false,
        has_detail: false,
        age: Duration::ZERO,
    });
    // Sent over the stream on which b then received its assignment in round 0.
    let stray = scene.join("b", None);
    assert_eq!(stray, []);
    let effects = scene.join("a", Some(0));
    assert_eq!(fresh_port(&effects), None, "b has workers");
    let effects = scene.join("b", Some(0));
    assert_eq!(fresh_port(&effects), Some(false));
}

#[test]
fn a_node_whose_assignment_went_to_a_broken_stream_asks_again() {
    let mut scene = Scene::new(2, 2);
    for node in ["a", "b"] {
        scene.subscribe(node);
        let _joined = scene.join(node, None);
    }
    let _broken = scene.tell(Event::LinkBroken { node: id("b") });
    let _assigned = scene.hosted("a", 0);
    let (round, reason) = (Round(0), "exit code 1".to_owned());
    let _told = scene.tell(Event::WorkersFailed {
        node: id("a"),
        round,
        reason,
        gives_up: false,
        has_detail: false,
        age: Duration::ZERO,
    });
    let _joined = scene.join("a", Some(0));
    scene.subscribe("b");
    let effects = scene.join("b", None);
    assert!(fresh_port(&effects).is_some(), "{effects:?}");
}

#[test]
fn a_master_killed_between_its_last_decision_and_its_end_ends_after_its_restart() {
    let mut job = Job::new(policy());
    let scene = Scene::new(1, 1);
    let _joined = job.handle(Moment::START, Event::Joined(scene.request("a", None)));
    let _assigned = job.handle(
        Moment::START,
        Event::Hosted { node: id("a"), round: Round(0), master_addr: None, master_port: 1 },
    );
    let end = NodeEnd::Succeeded { round: Round(0) };
    let _told = job.handle(Moment::at_secs(9), Event::NodeEnded { node: id("a"), end });
    let verdict = JobVerdict::Succeeded;
    let effects = job.handle(Moment::at_secs(9), Event::EndAcknowledged { node: id("a") });
    assert_eq!(effects, [Effect::Finish { verdict: verdict.clone() }]);
    let (mut master, output) = JobMaster::restored(job, timeout(), Moment::at_secs(10));
    let mut effects = output.effects;
    while let Some(due) = master.deadline() {
        effects.extend(master.handle(due, Input::Deadline).effects);
    }
    assert!(effects.contains(&Effect::Finish { verdict }), "{effects:?}");
}
