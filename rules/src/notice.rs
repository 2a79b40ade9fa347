//! Messages to the user during a run.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    check_order::{CheckOrder, CheckRound, Partner, Test},
    checkpoints::CheckpointNotice,
    failure::WorkerFailure,
    fence::FenceFinding,
    hang::HangNotice,
    ids::{Attempt, LocalRank},
    pending::Pending,
    signal_name::{SIGINT, signal_text},
    taint_report::numbered,
    warm::WarmNotice,
    world::Assignment,
};
use diagnosis::{
    counted::counted,
    gpus,
    network_check::{Component, ComputeKind, ComputeTime, LocalCheck, LocalFault},
};

/// A message to the user during a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A worker failed and its peers are stopped.
    WorkerFailed { failure: WorkerFailure, attempt: Attempt, then: RestartDecision },
    /// The first signal was forwarded.
    Stopping { signal: i32, grace: Duration },
    /// The second signal, or the end of the grace period.
    Killing,
    /// The round is over: on every node, or this one was not in it any more.
    Regrouping { why: String, on_all: bool },
    /// The failure of this node's workers is secondary.
    Secondary { why: String },
    /// There is no assignment yet.
    Pending(Pending),
    /// Progress of the self-test.
    SelfCheck { message: String },
    /// The result of the self-test.
    LocallyChecked(LocalCheck),
    /// A test with other nodes begins.
    Testing(CheckOrder),
    /// A test with other nodes takes long.
    TestRunning { at: CheckRound, bytes: u64, total: u64, elapsed: Duration },
    /// The check is over and this node passed.
    CheckOver { message: String },
    /// The driver reported an error of an accelerator.
    GpuError { gpu: String, code: u64, count: u32 },
    /// A worker holds more of an accelerator's memory than its share, in bytes.
    GpuShareExceeded { local_rank: LocalRank, used: u64, limit: u64, is_killed: bool },
    /// The driver's process ids are not those of this container.
    GpuMemoryUnseen,
    /// Some workers reached the store and these did not.
    StoreNotReached { missing: Vec<LocalRank>, waited: Duration },
    /// The node is assigned to a round with other nodes.
    Assigned(Assignment),
    /// No worker of this node has shown progress for so long since its start, so a hang would not be detected.
    ProgressMissing { waited: Duration },
    /// The job hangs.
    Hang(HangNotice),
    /// The master requested the stacks of the workers while they were being taken.
    DumpIsRunning,
    /// The master requested the stacks of the workers after so many dumps within this time.
    TooManyDumps { dumps: usize, interval: Duration },
    /// The template of warm workers.
    Warm(WarmNotice),
    /// Checkpoints in memory.
    Checkpoints(CheckpointNotice),
    /// What follows from a hang on this node, whose ranks the stacks name.
    RestartAfterHang { then: RestartDecision },
    /// The stream to the master broke, or could not be opened.
    MasterAway { reason: String, keeps_running: bool, limit: Duration },
    /// The master is still away, and this node can do nothing without it.
    WaitingForMaster { reason: String, waited: Duration, limit: Duration },
    /// The master stayed unreachable after the workers of this node succeeded.
    OutcomeUnknown { reason: String, waited: Duration },
    /// The stream to the master is open again.
    MasterBack,
    /// So many of the launchers that were asked have lost the master too.
    MasterDead { lost: u32, of: u32 },
    /// This node may be cut off, and its workers are killed: so long ago was the last contact with the master.
    Fenced { silent: Duration, found: Option<FenceFinding>, limit: Duration },
}

/// What follows once the old workers are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartDecision {
    /// All workers are restarted: restart `next` of at most `max_restarts`.
    Restart { next: Attempt, max_restarts: u32 },
    /// No restart is left: the run fails, unless the failure only followed from that of another node.
    Fail { max_restarts: u32 },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WorkerFailed { failure, then, .. } => {
                failure.fmt(f)?;
                match then {
                    RestartDecision::Restart { next, max_restarts } => {
                        write!(f, "; restarting all workers (restart {next} of {max_restarts})")
                    }
                    RestartDecision::Fail { max_restarts } => write!(f, "; not restarting (max restarts: {max_restarts})"),
                }
            }
            Self::ProgressMissing { waited } => write!(
                f,
                "no worker of this node has shown progress within {} s of its start, so a hang would not be detected: call \
                 dlrover_run.progress(step) in the script, or write the step to the file that DLROVER_PROGRESS_FILE names \
                 (docs/progress.md)",
                waited.as_secs_f64()
            ),
            Self::Hang(notice) => notice.fmt(f),
            Self::Warm(notice) => notice.fmt(f),
            Self::Checkpoints(notice) => notice.fmt(f),
            Self::RestartAfterHang { then: RestartDecision::Restart { next, max_restarts } } => {
                write!(f, "restarting all workers because of the hang (restart {next} of {max_restarts})")
            }
            Self::RestartAfterHang { then: RestartDecision::Fail { max_restarts } } => {
                write!(f, "not restarting after the hang (max restarts: {max_restarts})")
            }
            Self::DumpIsRunning => f.write_str(
                "the job master requested the workers' stacks while they were being taken; ignoring the request",
            ),
            Self::TooManyDumps { dumps, interval } => write!(
                f,
                "the job master requested the workers' stacks again after {} within {} s; ignoring the request",
                counted(*dumps, "dump"),
                interval.as_secs_f64()
            ),
            Self::Stopping { signal, grace } => write!(
                f,
                "forwarded {} to the workers; waiting up to {} s ({} again to kill them)",
                signal_text(*signal),
                grace.as_secs_f64(),
                if *signal == SIGINT { "press Ctrl-C" } else { "send it" }
            ),
            Self::Killing => f.write_str("killing the remaining processes"),
            Self::Regrouping { why, on_all: true } => write!(f, "{why}; all nodes restart their workers"),
            Self::Regrouping { why, on_all: false } => {
                write!(f, "{why}; this node stops its workers and joins again")
            }
            Self::Secondary { why } => {
                write!(f, "{why}; the failure on this node followed from it and uses no restart")
            }
            Self::Pending(pending) => pending.fmt(f),
            Self::SelfCheck { message } => f.write_str(message),
            Self::LocallyChecked(checked) => locally_checked(checked, f),
            Self::Testing(order) => testing(order, f),
            // A user's own program need not report progress.
            Self::TestRunning { at, bytes: 0, total: 0, elapsed } => write!(
                f,
                "network check {}, round {}: still running after {} s",
                at.check,
                at.round,
                elapsed.as_secs()
            ),
            Self::TestRunning { at, bytes, total, elapsed } => write!(
                f,
                "network check {}, round {}: received {} of {} MB in {} s",
                at.check,
                at.round,
                rounded_megabytes(*bytes),
                rounded_megabytes(*total),
                elapsed.as_secs()
            ),
            Self::CheckOver { message } => f.write_str(message),
            Self::GpuShareExceeded { local_rank, used, limit, is_killed } => {
                let (used, limit) = (gpus::gigabytes(*used), gpus::gigabytes(*limit));
                write!(f, "local rank {local_rank} uses {used} GB of accelerator memory (its share: {limit} GB); ")?;
                f.write_str(if *is_killed {
                    "killing it, because the share is enforced"
                } else {
                    "other processes on this accelerator may run out of memory"
                })
            }
            Self::GpuMemoryUnseen => f.write_str(
                "the workers' share of the accelerator is not watched: its driver reports process ids of the host \
                 (set hostPID: true in the pod spec)",
            ),
            Self::GpuError { gpu, code, count } => {
                write!(f, "{gpu}: the driver reported Xid {code} ({})", gpus::xid_name(*code))?;
                if *count > 1 { write!(f, ", {count} times so far") } else { Ok(()) }
            }
            Self::StoreNotReached { missing, waited } => {
                let missing: Vec<String> = missing.iter().map(LocalRank::to_string).collect();
                let (ranks, has) = if missing.len() == 1 { ("rank", "has") } else { ("ranks", "have") };
                let missing = missing.join(", ");
                write!(
                    f,
                    "local {ranks} {missing} {has} not reached the store at MASTER_ADDR:MASTER_PORT within {} s of the \
                     start; the other workers have. If the start hangs, check local {ranks} {missing} first",
                    waited.as_secs()
                )
            }
            Self::Assigned(assignment) => assigned(assignment, f),
            Self::MasterAway { reason, keeps_running: true, .. } => {
                write!(f, "{reason}; workers keep running; reconnecting")
            }
            Self::MasterAway { reason, keeps_running: false, limit } => {
                write!(f, "{reason}; retrying for up to {} s", limit.as_secs_f64())
            }
            Self::WaitingForMaster { reason, waited, limit } => {
                let (waited, limit) = (waited.as_secs(), limit.as_secs_f64());
                write!(f, "waiting for the job master, {waited} s of {limit} s: {reason}")
            }
            Self::OutcomeUnknown { reason, waited } => write!(
                f,
                "the workers of this node succeeded; whether those of the other nodes did is unknown: the job master was \
                 unreachable for {} s: {reason}",
                waited.as_secs_f64()
            ),
            Self::MasterBack => f.write_str("reconnected to the job master"),
            Self::MasterDead { lost, of } => write!(
                f,
                "the job master is presumed lost: {lost} of {} reported it lost; workers keep running",
                counted(*of as usize, "node")
            ),
            Self::Fenced { silent, found, limit } => {
                write!(f, "no contact with the job master for {} s, and ", silent.as_secs())?;
                match found {
                    Some(FenceFinding::CutOff) => f.write_str("another node of the round still reaches the master")?,
                    Some(FenceFinding::Alone { lost, of }) => {
                        write!(f, "only {lost} of {} reported the master lost", counted(*of, "node"))?;
                    }
                    Some(FenceFinding::MasterDead { .. } | FenceFinding::MasterGone) | None => {
                        f.write_str("the other nodes did not confirm in time that they have lost the master")?;
                    }
                }
                write!(
                    f,
                    ": this node may be cut off, so its workers are killed before the job continues \
                     without it; the node retries for {} s and joins again when it reaches the master",
                    limit.as_secs_f64()
                )
            }
        }
    }
}

/// The result of the self-test.
fn locally_checked(
    LocalCheck { fault, compute, .. }: &LocalCheck,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match (fault, compute) {
        (Some(LocalFault { component, reason }), _) => {
            f.write_str("network check: ")?;
            match component {
                Component::GpuBusy => write!(f, "this node has too few free accelerators: {reason}"),
                Component::GpuPermission => {
                    write!(f, "this node has too few accessible accelerators: {reason}")
                }
                Component::SwitchboxProbe => write!(f, "this node's switchbox cannot be measured: {reason}"),
                Component::CheckCommand => write!(f, "failed on this node: {reason}"),
                Component::Switchbox | Component::Probe | Component::Other(_) => {
                    write!(f, "this node is broken: {component}: {reason}")
                }
            }
        }
        (None, Some(ComputeTime { time, kind: ComputeKind::Unspecified | ComputeKind::Processor })) => {
            write!(f, "network check: self-test passed ({:.1} ms)", millis(*time))
        }
        (None, Some(ComputeTime { time, kind })) => {
            let took = millis(*time);
            write!(f, "network check: self-test passed ({took:.1} ms for {kind})")
        }
        (None, None) => f.write_str("network check: self-test passed (loopback only)"),
    }
}

fn testing(order: &CheckOrder, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let CheckOrder { at, test, size, partners, .. } = order;
    write!(f, "network check {}, round {}: ", at.check, at.round)?;
    match test {
        Test::AllReduce { bytes } => {
            return write!(
                f,
                "all-reduce of {} MB with {}",
                rounded_megabytes(*bytes),
                counted(*size, "node")
            );
        }
        Test::Pair if partners.len() > 1 => f.write_str("testing the links to ")?,
        Test::Pair => f.write_str("testing the link to ")?,
    }
    for (index, Partner { number, name, address, .. }) in partners.iter().enumerate() {
        let comma = if index == 0 { "" } else { " and " };
        write!(f, "{comma}{}", numbered(*number, name.rank, &name.host, address))?;
    }
    Ok(())
}

/// 1 MB = 10^6 bytes.
fn rounded_megabytes(bytes: u64) -> u64 {
    bytes.saturating_add(500_000) / 1_000_000
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The assignment. The round is the workers' `DLROVER_ROUND`.
fn assigned(assignment: &Assignment, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Assignment { round, node_rank, nodes, local_world_size, first_rank, world_size, .. } = assignment;
    let Assignment { master_addr, master_port, .. } = assignment;
    write!(f, "round {round}: node rank {node_rank} of {nodes}, ")?;
    match local_world_size {
        0 | 1 => write!(f, "rank {first_rank}")?,
        several => write!(f, "ranks {first_rank}-{}", first_rank.saturating_add(several - 1))?,
    }
    write!(f, " of {world_size}; rendezvous of the workers: ")?;
    if master_addr.contains(':') {
        write!(f, "[{master_addr}]:{master_port}")
    } else {
        write!(f, "{master_addr}:{master_port}")
    }
}
