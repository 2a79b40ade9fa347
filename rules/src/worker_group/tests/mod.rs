//! Events in, the whole effect list out.

mod accelerators;
mod checkpoints;
mod checks;
mod dumps;
mod fencing;
mod link;
mod missing_progress;
mod promises;
mod warm;
mod workers;

use super::*;
use crate::push::Push;
use crate::{
    failure::{ExitCause, GroupFailure},
    ids::{NodeId, NodeRank, Rank},
    node::NodeName,
    pending::Pending,
    stop_sequence::KILL_TIMEOUT,
    verdict::{JobFailure, JobVerdict},
};

const GRACE: Duration = Duration::from_secs(30);
const JOIN: Duration = Duration::from_secs(600);
const SEGV: ExitCause = ExitCause::Signal(11);
const OK: ExitCause = ExitCause::Code(0);
const TERM: ExitCause = ExitCause::Signal(15);
const CODE: ExitCause = ExitCause::Code(3);

fn limits(max_restarts: u32) -> Limits {
    Limits {
        node_id: NodeId("me".into()),
        max_restarts,
        shutdown_timeout: GRACE,
        join_timeout: JOIN,
        check: None,
        has_accelerators: false,
        visible_accelerators: None,
        gpu_share: None,
        hang: None,
        reports_missing_progress: false,
        warm: None,
        save_at_breakpoint: false,
    }
}

/// The second of two nodes.
fn assignment(round: u32, workers: u32) -> Assignment {
    Assignment {
        round: Round(round),
        node_rank: NodeRank(1),
        nodes: 2,
        local_world_size: workers,
        role: "default".into(),
        first_rank: 4,
        world_size: 4 + workers,
        first_role_rank: 4,
        role_world_size: 4 + workers,
        master_addr: "10.0.0.1".into(),
        master_port: 29500,
        restore_from_disk: false,
        fence: None,
        restore: Vec::new(),
    }
}

fn assigned(round: u32, workers: u32) -> Event {
    Event::Pushed(Push::Assigned(assignment(round, workers)))
}

/// The stream is open and the node has joined.
fn joining(max_restarts: u32) -> WorkerGroup {
    let mut group = WorkerGroup::new(limits(max_restarts));
    assert_eq!(group.handle(Moment::START, Event::MasterBack), [join(0, None)]);
    group
}

fn running(workers: u32, max_restarts: u32) -> WorkerGroup {
    let mut group = joining(max_restarts);
    start(&mut group, 0, workers);
    group
}

fn start(group: &mut WorkerGroup, round: u32, workers: u32) {
    let attempt = group.attempt();
    assert_eq!(
        group.handle(Moment::START, assigned(round, workers)),
        [
            Effect::Prepare { assignment: assignment(round, workers), attempt },
            Effect::Notify(Notice::Assigned(assignment(round, workers)))
        ]
    );
    assert_eq!(group.handle(Moment::START, prepared(round)), [Effect::Spawn { round: Round(round) }]);
}

/// All its workers succeeded, and the master knows.
fn succeeded() -> WorkerGroup {
    let mut group = running(1, 3);
    assert_eq!(group.handle(Moment::START, exited(0, 0, OK)), [Effect::SignalTree { signal: 15 }]);
    assert_eq!(group.handle(Moment::START, gone(0)), [succeeded_in(0)]);
    group
}

fn prepared(round: u32) -> Event {
    Event::Prepared { round: Round(round), oom_kills: Some(3) }
}

fn exited(round: u32, local_rank: u32, cause: ExitCause) -> Event {
    let exit = WorkerExit {
        local_rank: LocalRank(local_rank),
        pid: 100 + i32::try_from(local_rank).unwrap(),
        cause,
        unix_secs: 7,
    };
    Event::WorkerExited { round: Round(round), exit, oom_kills: Some(3) }
}

fn gone(round: u32) -> Event {
    Event::TreeGone { round: Round(round) }
}

fn signalled(signal: i32) -> Event {
    Event::Signalled { signal }
}

fn regroup(round: u32) -> Event {
    Event::Pushed(Push::Regroup { round: Round(round), why: "a peer failed".into(), is_secondary: true })
}

fn away() -> Event {
    Event::MasterAway { reason: "broke off".into() }
}

fn refused() -> Event {
    Event::Pushed(Push::Refused { reason: "rank held".into() })
}

fn job_failure() -> JobFailure {
    let node_id = NodeId("other".into());
    let node =
        NodeName { rank: Some(NodeRank(0)), host: "host-b".into(), address: "10.0.0.1".into(), node_id };
    JobFailure::Node { node, reason: "rank 0 exited with code 1".into() }
}

fn job_failed() -> Event {
    Event::Pushed(Push::JobEnd(JobVerdict::Failed(job_failure())))
}

fn job_succeeded() -> Event {
    Event::Pushed(Push::JobEnd(JobVerdict::Succeeded))
}

fn join(attempt: u32, after: Option<u32>) -> Effect {
    Effect::Join { attempt: Attempt(attempt), after: after.map(Round), checked: None, shards: Vec::new() }
}

fn succeeded_in(round: u32) -> Effect {
    Effect::ReportEnd { end: NodeEnd::Succeeded { round: Round(round) } }
}

fn left(signal: i32) -> Effect {
    Effect::ReportEnd { end: NodeEnd::Left { signal } }
}

fn failed_with(reason: &str) -> Effect {
    Effect::ReportEnd { end: NodeEnd::Failed { reason: reason.into() } }
}

fn finished(outcome: Outcome) -> Effect {
    Effect::Finish { outcome }
}

fn regrouping() -> Effect {
    Effect::Notify(Notice::Regrouping { why: "a peer failed".into(), on_all: true })
}

fn resumed(round: u32, workers_state: WorkersState) -> Effect {
    let claim = Claim {
        fence: None,
        round: Round(round),
        node_rank: NodeRank(1),
        nodes: 2,
        master_addr: "10.0.0.1".into(),
        master_port: 29500,
        workers_state,
    };
    Effect::Resume { claim }
}

fn failure(local_rank: u32, cause: ExitCause) -> WorkerFailure {
    WorkerFailure {
        rank: Rank(4 + local_rank),
        local_rank: LocalRank(local_rank),
        pid: 100 + i32::try_from(local_rank).unwrap(),
        cause,
        unix_secs: 7,
        out_of_memory: false,
    }
}

fn group_failed(attempt: u32, failures: &[(u32, ExitCause)]) -> Outcome {
    let failures = failures.iter().map(|(local_rank, cause)| failure(*local_rank, *cause)).collect();
    let (attempt, ended_before) = (Attempt(attempt), Vec::new());
    let group = GroupFailure { attempt, failures, ended_before, has_oom_counter: true };
    Outcome::Failed(Failure::Workers(group))
}

fn told(local_rank: u32, cause: ExitCause, attempt: u32, then: RestartDecision) -> Effect {
    let (failure, attempt) = (failure(local_rank, cause), Attempt(attempt));
    Effect::Notify(Notice::WorkerFailed { failure, attempt, then })
}

fn reported(round: u32, local_rank: u32, cause: ExitCause, gives_up: bool) -> Effect {
    let reason = failure(local_rank, cause).to_string();
    let worker = Some(Box::new(failure(local_rank, cause)));
    Effect::ReportFailure { round: Round(round), reason, gives_up, worker }
}

const TERM_TREE: Effect = Effect::SignalTree { signal: 15 };
