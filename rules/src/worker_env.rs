//! World + local rank -> the environment variables of one worker, exactly as torchrun 2.15 sets them.

use crate::{
    ids::{Attempt, LocalRank, NodeRank, RunId},
    world::Assignment,
};

/// The settings that are the same for every worker of a node.
#[derive(Debug, Clone)]
pub struct EnvSettings {
    /// `TORCHELASTIC_RUN_ID`.
    pub run_id: RunId,
    /// `TORCHELASTIC_MAX_RESTARTS`.
    pub max_restarts: u32,
    /// `TORCHELASTIC_USE_AGENT_STORE`: the launcher serves the store.
    pub agent_store: bool,
    /// `TORCHELASTIC_SIGNALS_TO_HANDLE`.
    pub signals_to_handle: String,
    /// `TORCH_NCCL_ASYNC_ERROR_HANDLING` of the launcher; unset means 1.
    pub nccl_async_error_handling: Option<String>,
    /// `DLROVER_LAUNCHER_ID`: marks every process this launcher starts.
    pub launcher_id: String,
    /// `DLROVER_CKPT_SOCK`: where workers reach the saver of this node; `None`: they cannot.
    pub checkpoint_socket: Option<String>,
    /// The devices for a virtual local rank; `None` when it is off.
    pub virtual_local_rank: Option<VisibleDevices>,
    /// `TORCH_ELASTIC_WORKER_IDENTICAL=1`: ranks by multiplication, as torchrun's shortcut.
    pub identical_workers: bool,
}

/// The device lists of the launcher's environment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VisibleDevices {
    /// `CUDA_VISIBLE_DEVICES` of the launcher.
    pub cuda: Option<String>,
    /// `HIP_VISIBLE_DEVICES` of the launcher; it is the source when both are set.
    pub hip: Option<String>,
}

/// Why a worker has no environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerEnvError {
    /// The local rank is not in the assignment: a bug here or in the master.
    #[error(
        "local rank {local_rank} of node rank {node_rank} is not in the assignment of the job master; this is a bug: \
         report it with this message"
    )]
    NotInWorld { node_rank: NodeRank, local_rank: LocalRank },
    /// A virtual local rank with more workers than visible devices.
    #[error(
        "local rank {local_rank} has no device: {variable}={list} lists fewer devices than there are workers"
    )]
    TooFewDevices {
        /// The rank without a device.
        local_rank: LocalRank,
        /// The variable that limits the devices.
        variable: &'static str,
        list: String,
    },
}

/// Returns the variables that worker `local_rank` of this node gets in addition to the launcher's environment.
/// `error_file` is empty when there are no log files.
///
/// # Errors
/// When the worker has no place in the round, or no device for a virtual local rank.
pub fn worker_env(
    settings: &EnvSettings,
    assignment: &Assignment,
    local_rank: LocalRank,
    attempt: Attempt,
    error_file: &str,
) -> Result<Vec<(&'static str, String)>, WorkerEnvError> {
    let node_rank = assignment.node_rank;
    let place = assignment.place(local_rank).ok_or(WorkerEnvError::NotInWorld { node_rank, local_rank })?;
    let identical = settings.identical_workers;
    let rank = if identical { node_rank.0 * place.local_world_size + local_rank.0 } else { place.rank.0 };
    let world_size = if identical { place.nodes * place.local_world_size } else { place.world_size };
    let role_rank = if identical { rank } else { place.role_rank };
    let role_world_size = if identical { world_size } else { place.role_world_size };
    let python_bool = if settings.agent_store { "True" } else { "False" };
    let shown_local_rank = if settings.virtual_local_rank.is_some() { 0 } else { local_rank.0 };
    let mut env = vec![
        ("LOCAL_RANK", shown_local_rank.to_string()),
        ("RANK", rank.to_string()),
        ("GROUP_RANK", node_rank.to_string()),
        ("ROLE_RANK", role_rank.to_string()),
        ("ROLE_NAME", assignment.role.clone()),
        ("LOCAL_WORLD_SIZE", place.local_world_size.to_string()),
        ("WORLD_SIZE", world_size.to_string()),
        ("GROUP_WORLD_SIZE", place.nodes.to_string()),
        ("ROLE_WORLD_SIZE", role_world_size.to_string()),
        ("MASTER_ADDR", assignment.master_addr.clone()),
        ("MASTER_PORT", assignment.master_port.to_string()),
        ("TORCHELASTIC_RESTART_COUNT", attempt.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", settings.max_restarts.to_string()),
        ("TORCHELASTIC_RUN_ID", settings.run_id.to_string()),
        ("TORCHELASTIC_USE_AGENT_STORE", python_bool.into()),
        (
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
            settings.nccl_async_error_handling.clone().unwrap_or_else(|| "1".into()),
        ),
        ("TORCHELASTIC_ERROR_FILE", error_file.into()),
        ("TORCHELASTIC_SIGNALS_TO_HANDLE", settings.signals_to_handle.clone()),
        ("DLROVER_LAUNCHER_ID", settings.launcher_id.clone()),
        // Grows with every generation on every node; the restart count is each node's own.
        ("DLROVER_ROUND", assignment.round.to_string()),
    ];
    if let Some(socket) = &settings.checkpoint_socket {
        env.push(("DLROVER_CKPT_SOCK", socket.clone()));
    }
    if assignment.restore_from_disk {
        env.push(("DLROVER_RESTORE", "disk".into()));
    }
    if let Some(visible) = &settings.virtual_local_rank {
        env.extend(one_device(visible, local_rank)?);
    }
    Ok(env)
}

/// One device for one worker, as with torchrun's `--virtual-local-rank`: the n-th of the launcher's list, or the
/// local rank itself when there is no list.
fn one_device(
    visible: &VisibleDevices,
    local_rank: LocalRank,
) -> Result<Vec<(&'static str, String)>, WorkerEnvError> {
    // An empty HIP_VISIBLE_DEVICES counts as unset, an empty CUDA_VISIBLE_DEVICES lists one nameless device.
    let hip = visible.hip.as_ref().filter(|list| !list.is_empty());
    let (variable, list) = match (hip, &visible.cuda) {
        (Some(list), _) => ("HIP_VISIBLE_DEVICES", list),
        (None, Some(list)) => ("CUDA_VISIBLE_DEVICES", list),
        (None, None) => {
            return Ok(vec![("CUDA_VISIBLE_DEVICES", local_rank.to_string())]);
        }
    };
    let device = list
        .split(',')
        .nth(local_rank.0 as usize)
        .map(|entry| entry.trim().to_owned())
        .ok_or(WorkerEnvError::TooFewDevices { local_rank, variable, list: list.clone() })?;
    let mut env = vec![("CUDA_VISIBLE_DEVICES", device.clone())];
    if hip.is_some() {
        env.push(("HIP_VISIBLE_DEVICES", device));
    }
    Ok(env)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{NodeRank, Round};

    fn settings() -> EnvSettings {
        EnvSettings {
            run_id: RunId("j1".into()),
            max_restarts: 3,
            agent_store: true,
            signals_to_handle: "SIGTERM,SIGINT,SIGHUP,SIGQUIT".into(),
            nccl_async_error_handling: None,
            launcher_id: "id".into(),
            checkpoint_socket: None,
            virtual_local_rank: None,
            identical_workers: false,
        }
    }

    /// Two nodes of two workers each.
    fn assignment(node_rank: u32) -> Assignment {
        Assignment {
            round: Round(0),
            node_rank: NodeRank(node_rank),
            nodes: 2,
            local_world_size: 2,
            role: "default".into(),
            first_rank: node_rank * 2,
            world_size: 4,
            first_role_rank: node_rank * 2,
            role_world_size: 4,
            master_addr: "localhost".into(),
            master_port: 34697,
            restore_from_disk: false,
            fence: None,
            restore: Vec::new(),
        }
    }

    fn made(
        settings: &EnvSettings,
        assignment: Assignment,
        local_rank: u32,
    ) -> Result<String, WorkerEnvError> {
        let env = worker_env(settings, &assignment, LocalRank(local_rank), Attempt(0), "/tmp/e.json")?;
        Ok(env.iter().map(|(name, value)| format!("{name}={value}\n")).collect())
    }

    #[test]
    fn the_second_worker_of_the_second_node_has_torchruns_environment() {
        // What torchrun 2.15 sets; `.ci/run` compares with the real one (tests/torchrun).
        assert_eq!(
            made(&settings(), assignment(1), 1).unwrap(),
            "LOCAL_RANK=1\nRANK=3\nGROUP_RANK=1\nROLE_RANK=3\nROLE_NAME=default\nLOCAL_WORLD_SIZE=2\n\
             WORLD_SIZE=4\nGROUP_WORLD_SIZE=2\nROLE_WORLD_SIZE=4\nMASTER_ADDR=localhost\nMASTER_PORT=34697\n\
             TORCHELASTIC_RESTART_COUNT=0\nTORCHELASTIC_MAX_RESTARTS=3\nTORCHELASTIC_RUN_ID=j1\n\
             TORCHELASTIC_USE_AGENT_STORE=True\nTORCH_NCCL_ASYNC_ERROR_HANDLING=1\n\
             TORCHELASTIC_ERROR_FILE=/tmp/e.json\n\
             TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT\nDLROVER_LAUNCHER_ID=id\n\
             DLROVER_ROUND=0\n"
        );
    }

    #[test]
    fn a_virtual_local_rank_sees_one_device_as_local_rank_zero() {
        let with = |cuda: Option<&str>, hip: Option<&str>| EnvSettings {
            virtual_local_rank: Some(VisibleDevices { cuda: cuda.map(Into::into), hip: hip.map(Into::into) }),
            ..settings()
        };
        let env = made(&with(Some("4, 7"), None), assignment(0), 1).unwrap();
        assert!(env.starts_with("LOCAL_RANK=0\nRANK=1\n"), "{env}");
        assert!(env.ends_with("CUDA_VISIBLE_DEVICES=7\n"), "{env}");
        assert!(made(&with(None, None), assignment(0), 1).unwrap().ends_with("CUDA_VISIBLE_DEVICES=1\n"));
        assert!(
            made(&with(Some("4"), Some("2,3")), assignment(0), 1)
                .unwrap()
                .ends_with("CUDA_VISIBLE_DEVICES=3\nHIP_VISIBLE_DEVICES=3\n")
        );
        assert!(
            made(&with(Some("4,7"), Some("")), assignment(0), 1)
                .unwrap()
                .ends_with("CUDA_VISIBLE_DEVICES=7\n"),
            "an empty list of HIP devices is none"
        );
        assert_eq!(
            made(&with(Some("4"), None), assignment(0), 1).unwrap_err(),
            WorkerEnvError::TooFewDevices {
                local_rank: LocalRank(1),
                variable: "CUDA_VISIBLE_DEVICES",
                list: "4".into()
            }
        );
    }

    #[test]
    fn a_node_with_another_rank_restores_from_disk() {
        let env = |restore_from_disk| {
            made(&settings(), Assignment { restore_from_disk, ..assignment(0) }, 0).unwrap()
        };
        assert!(env(true).ends_with("DLROVER_ROUND=0\nDLROVER_RESTORE=disk\n"));
        assert!(env(false).ends_with("DLROVER_ROUND=0\n"));
    }

    #[test]
    fn a_worker_finds_the_saver() {
        let settings = EnvSettings { checkpoint_socket: Some("@s".into()), ..settings() };
        assert!(made(&settings, assignment(0), 0).unwrap().ends_with("DLROVER_CKPT_SOCK=@s\n"));
    }

    #[test]
    fn a_worker_without_a_place_gets_nothing() {
        assert_eq!(
            made(&settings(), assignment(1), 2).unwrap_err(),
            WorkerEnvError::NotInWorld { node_rank: NodeRank(1), local_rank: LocalRank(2) }
        );
    }
}
