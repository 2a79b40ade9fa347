//! The job's status as data ([`JobStatus`]), from its state and its history. Asked for by people, never by decisions.

use super::{Job, Node, Phase, count};
use crate::{
    ids::{NodeId, Round},
    job_status::{
        CheckStatus, CheckedNodeStatus, EndStatus, FailureStatus, JobEvent, JobPhase, JobStatus, LostSeconds,
        MAX_GPU_TROUBLES, MAX_TESTS, MasterStatus, NodeState, NodeStatus, RoundStatus, SCHEMA, TestStatus,
        Totals,
    },
    pending::Pending,
    taint_report::TaintReport,
    verdict::JobVerdict,
};
use diagnosis::{
    gpus::{Inventory, health::what_is_broken},
    moment::Moment,
    network_check::TestResult,
};

impl Job {
    /// What the job is doing; `master` is filled in by the shell, and the ranks by
    /// [`crate::job_master::JobMaster::status`].
    #[must_use]
    pub fn status(&self, now: Moment) -> JobStatus {
        let history = &self.history;
        let ago = |at: Moment| (now - at).as_secs_f64();
        let world = self.world();
        let round = match &self.phase {
            Phase::Hosting { round, .. } | Phase::Restoring { round, .. } => Some(*round),
            _ => world.map(|world| world.round).or_else(|| self.next_round.0.checked_sub(1).map(Round)),
        };
        JobStatus {
            schema: SCHEMA.to_owned(),
            job: self.name().map(ToString::to_string),
            phase: self.job_phase(),
            phase_seconds: ago(history.since()),
            age_seconds: history.began().map_or(0.0, ago),
            round: round.map(|round| round.0),
            min_nodes: self.terms.as_ref().map(crate::node::Terms::least),
            max_nodes: self.terms.as_ref().map(crate::node::Terms::most),
            world_size: world.map(|world| world.members.iter().map(|member| member.local_world_size).sum()),
            // That of a spare is for its own console; here the node's state says it.
            pending: self
                .pending(now)
                .filter(|(pending, _)| !matches!(pending, Pending::Spare { .. }))
                .map(|(pending, _)| pending.to_string()),
            nodes: self.node_statuses(now),
            last_failure: history.last_failure().map(|failure| FailureStatus {
                round: failure.round.map(|round| round.0),
                node: failure.node.to_string(),
                reason: failure.reason.clone(),
                seconds_ago: ago(failure.at),
                root_cause: failure.root_cause.as_ref().map(ToString::to_string),
                last_lines: failure
                    .root_cause
                    .as_ref()
                    .map(|it| it.detail.lines().to_vec())
                    .unwrap_or_default(),
            }),
            hang: self.hang_status(now),
            // Filled in with the ranks.
            checkpoints: Vec::new(),
            check: history.check().map(|(at, report)| check_status(ago(at), report)),
            end: self.verdict().filter(|_| self.is_end_announced()).map(|verdict| match verdict {
                JobVerdict::Succeeded => {
                    EndStatus { succeeded: true, message: "every worker exited with code 0".to_owned() }
                }
                JobVerdict::Failed(failure) => EndStatus { succeeded: false, message: failure.to_string() },
            }),
            rounds: history
                .rounds()
                .map(|past| RoundStatus {
                    round: past.round.0,
                    nodes: past.nodes,
                    rendezvous_seconds: past.rendezvous.as_secs_f64(),
                    started_seconds_ago: ago(past.started),
                    ran_seconds: (past.ended.as_ref().map_or(now, |(at, _)| *at) - past.started)
                        .as_secs_f64(),
                    ended: past.ended.as_ref().map(|(_, why)| why.clone()),
                })
                .collect(),
            totals: self.totals(now),
            events: history
                .events()
                .map(|(number, at, message)| JobEvent {
                    number,
                    seconds_ago: ago(at),
                    message: message.to_owned(),
                })
                .collect(),
            master: MasterStatus::default(),
        }
    }

    fn totals(&self, now: Moment) -> Totals {
        let history = &self.history;
        let spent = |phase| history.spent(now, phase).as_secs_f64();
        let training = spent(JobPhase::Running);
        let lost_seconds = LostSeconds {
            pending: spent(JobPhase::Pending),
            rendezvous: spent(JobPhase::Rendezvous),
            check: spent(JobPhase::Check),
            restart: spent(JobPhase::Restart),
        };
        let LostSeconds { pending, rendezvous, check, restart } = lost_seconds;
        let all = training + pending + rendezvous + check + restart;
        Totals {
            rounds: history.round_count(),
            worker_restarts: history.restart_count(),
            restarts_by_node: history.restarts_by_node(),
            node_losses: history.loss_count(),
            training_seconds: training,
            lost_seconds,
            effective_training_ratio: (all > 0.0).then(|| training / all),
            rendezvous: history.rendezvous(),
            failure_to_running: history.failure_to_running(),
        }
    }

    fn node_statuses(&self, now: Moment) -> Vec<NodeStatus> {
        let world = self.world();
        let mut first_ranks = std::collections::BTreeMap::new();
        if let Some(world) = world {
            let mut first = 0_u32;
            for member in &world.members {
                first_ranks.insert(&member.node_id, first);
                first = first.saturating_add(member.local_world_size);
            }
        }
        let mut nodes: Vec<NodeStatus> = self
            .nodes
            .iter()
            .map(|(id, node)| {
                let rank = self.node_rank_of(id).or(node.request.wish);
                let inventory = self.inventories.get(id);
                NodeStatus {
                    node_rank: rank.map(|rank| rank.0),
                    host: node.request.attributes.host_name.clone(),
                    address: node.request.address.clone(),
                    state: self.node_state(id, node),
                    workers: node.request.local_world_size,
                    first_rank: first_ranks.get(id).copied(),
                    restarts: rank.map_or(0, |rank| self.history.restarts_of(rank)),
                    replacements: rank.and_then(|rank| self.losses.get(&rank)).copied().unwrap_or_default(),
                    max_replacements: self.policy.restart_count,
                    seconds: (now - node.joined).as_secs_f64(),
                    accelerators: inventory.map(|it| it.to_string()),
                    gpus: inventory.map_or(0, |it| count(it.gpus.len())),
                    broken_gpus: inventory.map_or(0, |it| {
                        count(it.gpus.iter().filter(|gpu| what_is_broken(gpu).is_some()).count())
                    }),
                    gpu_troubles: inventory.map(|it| troubles(it)).unwrap_or_default(),
                    ranks: Vec::new(),
                }
            })
            .collect();
        nodes.sort_by(|a, b| {
            let key = |node: &NodeStatus| {
                (node.state == NodeState::Spare, node.node_rank.is_none(), node.node_rank)
            };
            key(a).cmp(&key(b)).then_with(|| a.host.cmp(&b.host)).then_with(|| a.address.cmp(&b.address))
        });
        nodes
    }

    fn node_state(&self, id: &NodeId, node: &Node) -> NodeState {
        if !node.is_connected && !matches!(self.phase, Phase::Over { .. }) {
            return NodeState::Disconnected;
        }
        match &self.phase {
            Phase::Running { succeeded, .. } | Phase::Restoring { succeeded, .. }
                if succeeded.contains(id) =>
            {
                NodeState::Succeeded
            }
            Phase::Running { .. } if self.waiting.contains(id) => NodeState::Spare,
            Phase::Running { .. } | Phase::Restoring { .. } => NodeState::Running,
            Phase::Gathering { awaited, .. } if awaited.contains(id) => NodeState::Stopping,
            Phase::Checking(_) | Phase::Measuring(_) if self.has_part(id) => NodeState::Checking,
            Phase::Placing { .. } | Phase::Hosting { .. } if self.has_part(id) => NodeState::Starting,
            Phase::Over { verdict: JobVerdict::Succeeded, .. } => NodeState::Succeeded,
            Phase::Over { .. } => NodeState::Stopping,
            Phase::Gathering { .. }
            | Phase::Placing { .. }
            | Phase::Hosting { .. }
            | Phase::Checking(_)
            | Phase::Measuring(_) => NodeState::Waiting,
        }
    }
}

/// An error of the driver that is reported several times is one trouble.
fn troubles(inventory: &Inventory) -> Vec<String> {
    let mut troubles: Vec<String> = Vec::new();
    for trouble in inventory.troubles() {
        if troubles.len() < MAX_GPU_TROUBLES && !troubles.contains(&trouble) {
            troubles.push(trouble);
        }
    }
    troubles
}

fn check_status(seconds_ago: f64, report: &TaintReport) -> CheckStatus {
    let nodes = (0..).zip(&report.nodes).zip(&report.outcome.nodes);
    let tests = (0..).zip(&report.outcome.rounds).flat_map(|(round, record)| {
        record.tests.iter().map(move |test| TestStatus {
            round,
            nodes: test.members.clone(),
            result: match test.result {
                TestResult::Pass => "pass",
                TestResult::Slow => "slow",
                TestResult::Fail => "fail",
            }
            .to_owned(),
            bytes_per_second: test.bytes_per_second.map(|rate| rate as f64),
        })
    });
    let tests: Vec<TestStatus> = tests.collect();
    let skipped = tests.len().saturating_sub(MAX_TESTS);
    CheckStatus {
        check: report.check,
        seconds_ago,
        nodes: nodes
            .map(|((number, node), finding)| CheckedNodeStatus {
                number,
                host: node.host.clone(),
                address: node.ip.clone(),
                verdict: finding.verdict.as_str().to_owned(),
                excluded: finding.excluded,
                tainted: finding.tainted,
                evidence: finding.evidence.first().map(|it| it.message.clone()),
            })
            .collect(),
        tests: tests.into_iter().skip(skipped).collect(),
    }
}
