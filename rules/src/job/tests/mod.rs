//! Events in, the whole effect list out.
//!
//! Nodes are called `a` to `z`: `a` has the address 10.0.0.1 and the host name `host-a`, and so on. Time stands
//! still unless a test moves it.

mod absent_nodes;
mod checking;
mod checkpoints;
mod ending;
mod failures;
mod growth;
mod hangs;
mod inventory;
mod placement;
mod promises;
mod rendezvous;
mod replacement;
mod restoring;
mod status;
mod unauthenticated;
mod withheld;

use super::*;
use crate::push::Push;
use crate::{ids::RunId, liveness::LossCause, node::NodeAttributes, topology::Topology, verdict::JobFailure};

pub(super) const JOIN: Duration = Duration::from_secs(600);
pub(super) const LAST_CALL: Duration = Duration::from_secs(30);
pub(super) const HOST: Duration = Duration::from_secs(60);
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// What members have to come back to a master that was started again.
const RETURN: Duration = Duration::from_secs(9);
const PORT: u16 = 29500;

fn policy() -> Policy {
    Policy {
        restart_count: 1,
        on_give_up: OnGiveUp::Replace,
        host: None,
        has_topology: false,
        host_timeout: HOST,
        reconnect_grace: GRACE,
        terms: None,
        is_open: false,
        taint_guard_permille: 300,
        lease: None,
    }
}

/// Torchrun's own lines.
fn fail_job() -> Policy {
    Policy { on_give_up: OnGiveUp::FailJob, ..policy() }
}

fn terms(min_nodes: u32, max_nodes: u32) -> Terms {
    Terms {
        run_id: RunId("job".into()),
        min_nodes,
        max_nodes,
        node_unit: 1,
        last_call: LAST_CALL,
        join_timeout: JOIN,
        require_uniform: false,
        check: None,
        hang: None,
        save_at_breakpoint: false,
    }
}

fn id(name: &str) -> NodeId {
    NodeId(name.into())
}

fn address(name: &str) -> String {
    format!("10.0.0.{}", name.as_bytes()[0] - b'a' + 1)
}

fn host(name: &str) -> String {
    format!("host-{name}")
}

fn request(name: &str, terms: &Terms) -> JoinRequest {
    JoinRequest {
        node_id: id(name),
        wish: None,
        local_world_size: 2,
        role: "default".into(),
        address: address(name),
        node_ip: None,
        terms: terms.clone(),
        attributes: NodeAttributes { host_name: host(name), ..NodeAttributes::default() },
        after: None,
        checked: None,
        question_port: 0,
        shards: Vec::new(),
    }
}

/// What a person calls a node.
fn named(name: &str, rank: Option<u32>) -> NodeName {
    NodeName { rank: rank.map(NodeRank), host: host(name), address: address(name), node_id: id(name) }
}

/// A job, the messages of its nodes, and the time.
struct Test {
    job: Job,
    terms: Terms,
    now: Moment,
}

impl Test {
    fn new(policy: Policy, terms: Terms) -> Self {
        Self { job: Job::new(policy), terms, now: Moment::START }
    }

    /// All of these are members of round 0, in this order; there was no last call.
    fn running(policy: Policy, terms: Terms, names: &[&str]) -> Self {
        let mut test = Self::new(policy, terms);
        for name in names {
            let _ = test.join(name);
        }
        if names.len() < test.terms.most() as usize {
            let _ = test.due();
        }
        assert_eq!(test.hosted(names[0], 0), assignments(0, names));
        test
    }

    fn at(&mut self, secs: u64) -> &mut Self {
        self.now = Moment::at_secs(secs);
        self
    }

    fn send(&mut self, event: Event) -> Vec<Effect> {
        self.job.handle(self.now, event)
    }

    /// Time passes until the deadline.
    fn due(&mut self) -> Vec<Effect> {
        self.now = self.job.deadline().expect("the job waits for nothing");
        let effects = self.send(Event::Deadline);
        assert!(self.job.deadline().is_none_or(|due| due > self.now), "a shell would spin");
        effects
    }

    fn join(&mut self, name: &str) -> Vec<Effect> {
        let request = request(name, &self.terms);
        self.send(Event::Joined(request))
    }

    fn join_as(&mut self, name: &str, rank: u32) -> Vec<Effect> {
        let request = JoinRequest { wish: Some(NodeRank(rank)), ..request(name, &self.terms) };
        self.send(Event::Joined(request))
    }

    /// Its workers of that round are gone.
    fn rejoin(&mut self, name: &str, after: u32) -> Vec<Effect> {
        let request = JoinRequest { after: Some(Round(after)), ..request(name, &self.terms) };
        self.send(Event::Joined(request))
    }

    fn hosted(&mut self, name: &str, round: u32) -> Vec<Effect> {
        let round = Round(round);
        let effects =
            self.send(Event::Hosted { node: id(name), round, master_addr: None, master_port: PORT });
        for effect in &effects {
            if let Effect::Push { node, push: Push::Assigned(_) } = effect {
                assert_eq!(self.send(Event::AssignmentTaken { node: node.clone(), round }), []);
            }
        }
        effects
    }

    fn lose(&mut self, name: &str) -> Vec<Effect> {
        self.send(Event::NodeLost { node: id(name), cause: DISCONNECTED })
    }

    fn leave(&mut self, name: &str) -> Vec<Effect> {
        self.send(Event::NodeEnded { node: id(name), end: NodeEnd::Left { signal: 15 } })
    }

    fn succeed(&mut self, name: &str, round: u32) -> Vec<Effect> {
        let round = Round(round);
        self.send(Event::NodeEnded { node: id(name), end: NodeEnd::Succeeded { round } })
    }

    fn workers_fail(&mut self, name: &str, round: u32, gives_up: bool) -> Vec<Effect> {
        let round = Round(round);
        let (node, reason) = (id(name), REASON.into());
        self.send(Event::WorkersFailed {
            node,
            round,
            reason,
            gives_up,
            has_detail: false,
            age: Duration::ZERO,
        })
    }

    /// Resumes in a round of these nodes.
    fn resume(&mut self, name: &str, round: u32, of: &[&str], workers_state: WorkersState) -> Vec<Effect> {
        let request = request(name, &self.terms);
        let node_rank = of.iter().position(|member| *member == name).expect("a member");
        let claim = Claim {
            round: Round(round),
            node_rank: NodeRank(u32::try_from(node_rank).unwrap()),
            nodes: count(of.len()),
            master_addr: address(of[0]),
            master_port: PORT,
            workers_state,
            fence: None,
        };
        self.send(Event::Resumed { request, claim })
    }
}

const DISCONNECTED: LossCause = LossCause::Disconnected { grace: GRACE };
const BROKE: &str = "its connection to the job master broke and was not restored within 2 s";
const STOPPED: &str = "its launcher received SIGTERM";
const REASON: &str = "rank 1 exited with code 3";

fn member(name: &str) -> Member {
    Member {
        node_id: id(name),
        local_world_size: 2,
        role: "default".into(),
        address: address(name),
        addresses: Vec::new(),
        host_name: host(name),
        question_port: 0,
        restore_from_disk: false,
    }
}

fn world(round: u32, names: &[&str]) -> World {
    World {
        round: Round(round),
        members: names.iter().map(|name| member(name)).collect(),
        master_addr: address(names[0]),
        master_port: PORT,
        fence: None,
        restore: Vec::new(),
    }
}

/// Every node of a round is assigned.
fn assignments(round: u32, names: &[&str]) -> Vec<Effect> {
    let world = world(round, names);
    let assignments = world.assignments();
    assignments
        .map(|(member, assignment)| Effect::Push {
            node: member.node_id.clone(),
            push: Push::Assigned(assignment),
        })
        .collect()
}

/// A round has its members, and the first is asked to open the store.
fn placed(round: u32, names: &[&str]) -> Vec<Effect> {
    placed_at(round, names, false)
}

/// The same, where workers of a lost node may still speak to the old port.
fn placed_afresh(round: u32, names: &[&str]) -> Vec<Effect> {
    placed_at(round, names, true)
}

fn placed_at(round: u32, names: &[&str], fresh_port: bool) -> Vec<Effect> {
    let nodes = names.iter().map(|name| (address(name), host(name), None)).collect();
    let round = Round(round);
    vec![
        Effect::Log(Log::Placed { round, nodes }),
        Effect::Push { node: id(names[0]), push: Push::Host { round, fresh_port } },
    ]
}

/// These members are notified that the round is over.
fn regrouped(round: u32, names: &[&str], why: &Regroup) -> Vec<Effect> {
    let round = Round(round);
    let log = Effect::Log(Log::Regrouped { round, why: why.clone() });
    let send = |name: &&str| Effect::Push { node: id(name), push: Push::regroup(round, why) };
    std::iter::once(log).chain(names.iter().map(send)).collect()
}

fn node_gone(name: &str, rank: Option<u32>, reason: &str) -> Regroup {
    Regroup::NodeGone { node: named(name, rank), gone: gone_for(reason) }
}

fn gone_for(reason: &str) -> Gone {
    let is_lost = ![STOPPED, REASON].contains(&reason);
    let reason = reason.to_owned();
    match &*reason {
        _ if is_lost => Gone::Lost { reason },
        STOPPED => Gone::Left { reason },
        _ => Gone::Failed { reason },
    }
}

fn gone(name: &str, rank: Option<u32>, reason: &str, losses: u32) -> Effect {
    let losses = rank.map(|_| losses);
    Effect::Log(Log::Gone { node: named(name, rank), gone: gone_for(reason), losses, limit: 1 })
}

fn hang_up(name: &str) -> Effect {
    Effect::HangUp { node: id(name) }
}

fn forget(name: &str) -> Effect {
    Effect::Forget { node: id(name) }
}

fn ended(names: &[&str], verdict: &JobVerdict) -> Vec<Effect> {
    names.iter().map(|name| Effect::Push { node: id(name), push: Push::JobEnd(verdict.clone()) }).collect()
}

fn finish(verdict: &JobVerdict) -> Effect {
    Effect::Finish { verdict: verdict.clone() }
}

/// One list out of several.
fn all<const N: usize>(parts: [Vec<Effect>; N]) -> Vec<Effect> {
    parts.into_iter().flatten().collect()
}
