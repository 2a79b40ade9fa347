//! From an assignment to commands that the guard can start: environments, arguments, files.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::Path,
    sync::{Mutex, PoisonError},
};

use rules::{
    Attempt, LocalRank,
    worker_env::{EnvSettings, VisibleDevices, WorkerEnvError, worker_env},
    world::Assignment,
};

use crate::{
    config::{AgentConfig, MasterPort},
    guard::frame::WorkerSpec,
    logs::{GenerationLogs, LogError, Logs},
    placeholders::substitute,
};

/// Everything the workers of one round need to start.
#[derive(Debug)]
pub struct Prepared {
    /// Their output.
    pub generation: GenerationLogs,
    /// The messages for the guard, by local rank, with their descriptors.
    pub workers: Vec<(WorkerSpec, Vec<OwnedFd>)>,
}

/// Why workers cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// Directories, files or pipes.
    #[error(transparent)]
    Logs(#[from] LogError),
    /// Their environment.
    #[error(transparent)]
    Env(#[from] WorkerEnvError),
}

/// Opens the output of all workers of an assignment and makes their environments. Uses the file system, so it is not
/// called on the event loop.
///
/// # Errors
/// When a file cannot be made, or `--virtual-local-rank` finds too few devices.
pub fn prepare(
    config: &AgentConfig,
    settings: &EnvSettings,
    logs: &Mutex<Logs>,
    assignment: &Assignment,
    attempt: Attempt,
    progress: &[Vec<(&'static str, OsString)>],
) -> Result<Prepared, PrepareError> {
    let mut ranks = Vec::new();
    for local_rank in (0..config.local_world_size).map(LocalRank) {
        let node_rank = assignment.node_rank;
        let place =
            assignment.place(local_rank).ok_or(WorkerEnvError::NotInWorld { node_rank, local_rank })?;
        ranks.push((local_rank, place.rank));
    }
    // A panic while opening leaves the logs usable for the report.
    let mut generation = logs.lock().unwrap_or_else(PoisonError::into_inner).open(attempt.0, &ranks)?;
    let mut workers = Vec::new();
    for (local_rank, _) in ranks {
        let error_file = generation.error_file(local_rank);
        let own = worker_env(settings, assignment, local_rank, attempt, &error_file.to_string_lossy())?;
        let stdio = generation.take_stdio(local_rank).unwrap_or_default();
        let argv = config.command.argv.iter().map(|arg| worker_argument(arg.as_bytes(), local_rank));
        let spec = WorkerSpec {
            local_rank,
            argv: argv.collect(),
            env: merged(&config.env.inherited, own, progress.get(local_rank.0 as usize)),
            cpus: config.cpus.get(local_rank.0 as usize).cloned().unwrap_or_default(),
            has_stdout: stdio.out.is_some(),
            has_stderr: stdio.err.is_some(),
        };
        workers.push((spec, stdio.out.into_iter().chain(stdio.err).collect()));
    }
    Ok(Prepared { generation, workers })
}

/// The launcher's environment, overridden by the worker's own variables and those by which it shows its progress.
fn merged(
    inherited: &[(OsString, OsString)],
    own: Vec<(&'static str, String)>,
    progress: Option<&Vec<(&'static str, OsString)>>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let own = own.into_iter().map(|(name, value)| (name, OsString::from(value)));
    let own: Vec<(&str, OsString)> = own.chain(progress.into_iter().flatten().cloned()).collect();
    let kept = inherited.iter().filter(|(name, _)| !own.iter().any(|(own, _)| name == own));
    kept.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .chain(own.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())))
        .collect()
}

/// A worker argument with `${local_rank}` filled in.
pub(crate) fn worker_argument(argument: &[u8], local_rank: LocalRank) -> Vec<u8> {
    substitute(argument, |name| (name == "local_rank").then(|| local_rank.to_string()))
}

/// What is the same in every worker's environment.
#[must_use]
pub fn env_settings(
    config: &AgentConfig,
    launcher_id: String,
    checkpoint_socket: Option<String>,
) -> EnvSettings {
    let inherited = |name: &str| {
        let found = config.env.inherited.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.to_string_lossy().into_owned())
    };
    EnvSettings {
        run_id: config.run_id.clone(),
        max_restarts: config.max_restarts,
        agent_store: config.master_port == MasterPort::Served,
        signals_to_handle: config.env.signals_to_handle.clone(),
        nccl_async_error_handling: inherited("TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        launcher_id,
        checkpoint_socket,
        virtual_local_rank: config.env.virtual_local_rank.then(|| VisibleDevices {
            cuda: inherited("CUDA_VISIBLE_DEVICES"),
            hip: inherited("HIP_VISIBLE_DEVICES"),
        }),
        identical_workers: inherited("TORCH_ELASTIC_WORKER_IDENTICAL").as_deref() == Some("1"),
    }
}

/// The reason why a worker could not be started, with its program.
#[must_use]
pub fn start_error(config: &AgentConfig, local_rank: LocalRank, errno: i32) -> String {
    let program = worker_argument(config.command.argv[0].as_bytes(), local_rank);
    let error = io::Error::from_raw_os_error(errno);
    let name = String::from_utf8_lossy(&program);
    match missing_interpreter(Path::new(OsStr::from_bytes(&program))).filter(|_| errno == libc::ENOENT) {
        Some(interpreter) => match interpreter.strip_suffix('\r') {
            Some(interpreter) => format!(
                "`{name}`: its first line, #!{interpreter}, ends with a carriage return, which Linux treats as part \
                 of the interpreter's name; save the file with Unix line endings"
            ),
            None => format!("`{name}`: its interpreter {interpreter} does not exist"),
        },
        None => format!("`{name}`: {error}"),
    }
}

/// The interpreter that the first line of a script names (`#!/usr/bin/env python3`), if there is none: the kernel then
/// says of the script itself that it does not exist.
fn missing_interpreter(script: &Path) -> Option<String> {
    let mut start = Vec::new();
    // The kernel reads 255 bytes of the line.
    File::open(script).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let interpreter = words.next()?;
    let is_missing = interpreter.starts_with(b"/") && !Path::new(OsStr::from_bytes(interpreter)).exists();
    is_missing.then(|| String::from_utf8_lossy(interpreter).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::missing_interpreter;

    #[test]
    fn the_interpreter_of_a_script_is_named_when_it_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train");
        for (text, missing) in [
            ("#!/nowhere/python3 -u\nprint()\n", Some("/nowhere/python3")),
            ("#! /nowhere/python3\n", Some("/nowhere/python3")),
            ("#!/bin/sh\r\n", Some("/bin/sh\r")),
            ("#!/bin/sh\nexit\n", None),
            ("print()\n", None),
            ("#!", None),
            ("", None),
        ] {
            fs::write(&script, text).unwrap();
            assert_eq!(missing_interpreter(&script).as_deref(), missing, "{text:?}");
        }
        assert_eq!(missing_interpreter(&folder.path().join("none")), None);
    }
}
