//! Notices as lines of the log: how urgent each is, and what programs need of it.

use checkpoint::message::Level as SaverLevel;
use rules::{
    checkpoints::CheckpointNotice,
    failure::{ExitCause, WorkerFailure},
    notice::{Notice, RestartDecision},
};
use serde_json::{Map, Value, json};
use tracing::Level;

/// `WARN` where a person may have to act, or where workers were lost.
pub(crate) fn level(notice: &Notice) -> Level {
    match notice {
        Notice::WorkerFailed { .. }
        | Notice::Regrouping { on_all: true, .. }
        | Notice::Secondary { .. }
        | Notice::GpuError { .. }
        | Notice::GpuShareExceeded { .. }
        | Notice::GpuMemoryUnseen
        | Notice::StoreNotReached { .. }
        | Notice::ProgressMissing { .. }
        | Notice::MasterAway { .. }
        | Notice::MasterDead { .. }
        | Notice::OutcomeUnknown { .. }
        | Notice::Hang(_)
        | Notice::DumpIsRunning
        | Notice::TooManyDumps { .. }
        | Notice::RestartAfterHang { .. }
        | Notice::Fenced { .. } => Level::WARN,
        Notice::LocallyChecked(checked) if checked.fault.is_some() => Level::WARN,
        Notice::Checkpoints(notice) => level_of_checkpoints(notice),
        Notice::Stopping { .. }
        | Notice::Killing
        | Notice::Regrouping { on_all: false, .. }
        | Notice::Pending(_)
        | Notice::SelfCheck { .. }
        | Notice::LocallyChecked(_)
        | Notice::Testing(_)
        | Notice::TestRunning { .. }
        | Notice::CheckOver { .. }
        | Notice::Assigned(_)
        | Notice::Warm(_)
        | Notice::WaitingForMaster { .. }
        | Notice::MasterBack => Level::INFO,
    }
}

fn level_of_checkpoints(notice: &CheckpointNotice) -> Level {
    match notice {
        CheckpointNotice::Saver { level: SaverLevel::Info, .. } | CheckpointNotice::Saving { .. } => {
            Level::INFO
        }
        CheckpointNotice::Saver { level: SaverLevel::Warn, .. }
        | CheckpointNotice::SaverEnded { .. }
        | CheckpointNotice::NoState { .. }
        | CheckpointNotice::Unfinished
        | CheckpointNotice::NoSaver { .. } => Level::WARN,
        CheckpointNotice::Saver { level: SaverLevel::Error, .. } => Level::ERROR,
    }
}

/// The `fields` of a line in JSON: of a worker that failed, and of an assignment.
pub(crate) fn fields(notice: &Notice) -> Map<String, Value> {
    let fields = match notice {
        Notice::WorkerFailed { failure, then, .. } => {
            let WorkerFailure { rank, local_rank, pid, cause, out_of_memory, .. } = failure;
            let (exit_code, signal) = match cause {
                ExitCause::Code(code) => (Some(*code), None),
                ExitCause::Signal(signal) => (None, Some(*signal)),
            };
            json!({
                "rank": rank.0,
                "local_rank": local_rank.0,
                "pid": pid,
                "exit_code": exit_code,
                "signal": signal,
                "out_of_memory": out_of_memory,
                "is_restarted": matches!(then, RestartDecision::Restart { .. }),
            })
        }
        Notice::Hang(hang) => json!({
            "round": hang.round.0,
            "idle_seconds": hang.idle.as_secs_f64(),
            "sentence": hang.sentence,
            "folder": hang.folder,
        }),
        Notice::Assigned(assignment) => json!({
            "round": assignment.round.0,
            "node_rank": assignment.node_rank.0,
            "nodes": assignment.nodes,
            "world_size": assignment.world_size,
        }),
        _ => return Map::new(),
    };
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
