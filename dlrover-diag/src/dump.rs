//! `dlrover-diag dump`: takes the stacks of a job's processes on this node.

mod workers;

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{ArgAction, builder::NonEmptyStringValueParser, value_parser};
use launcher::{
    environment::Environment,
    failure::{FAILED, SUCCEEDED, USAGE},
    resolve::stack_folder,
};
use probes::{ProbeProgram, StackTarget, StacksPlan, take_stacks};
use rules::RunId;
use stacks::RankDump;

use self::workers::{NoTargets, Targets};
use super::{
    log_line,
    stack_folder::{self, FolderError, Report},
};

/// Takes the stacks of a job's processes on this node, and says which rank is elsewhere
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --run-id and --pid the one job of this node is taken. The stacks of Python are read without stopping a process; \
for native stacks its threads are stopped one after the other, each while its stack is copied. Reading another user's processes takes root or \
CAP_SYS_PTRACE; what cannot be read is a note.

The directory gets RRRRR-WWWWW.stacktrace for each rank, and py_stack, cpp_stack, py_stack.svg and cpp_stack.svg for all of \
them. After a dump on every node into one directory, `dlrover-diag stacks` merges the ranks of all nodes.

Exit code: 0 when stacks were read, 1 when there are none, or nothing can be written, 2 when the command line cannot be \
used.")]
pub(super) struct Arguments {
    /// The job (--rdzv-id) whose workers are taken
    #[arg(long, value_name = "ID", conflicts_with = "pids", value_parser = NonEmptyStringValueParser::new())]
    run_id: Option<String>,
    /// A process; its rank is that of its environment, else 0 (repeatable)
    #[arg(long = "pid", value_name = "PID", action = ArgAction::Append, value_parser = value_parser!(u32).range(1..=0x7fff_ffff))]
    pids: Vec<u32>,
    /// The directory for the files [default: $XPU_TIMER_TIMELINE_PATH, else /root/timeline/RUN_ID, else the current one]
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// Read Python's stacks only, so that no thread is stopped
    #[arg(long)]
    no_native: bool,
    /// What has not been read by then is left out
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=600), default_value = "30")]
    timeout: u64,
    /// One JSON document, for programs
    #[arg(long)]
    json: bool,
}

/// Why there is no output.
#[derive(Debug, thiserror::Error)]
enum DumpError {
    #[error(transparent)]
    Targets(#[from] NoTargets),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
}

impl DumpError {
    /// Whether the command line is at fault.
    const fn exit_code(&self) -> u8 {
        match self {
            Self::Targets(NoTargets::SeveralJobs { .. } | NoTargets::Twice { .. }) => USAGE,
            Self::Targets(_) | Self::Folder(_) | Self::Runtime(_) => FAILED,
        }
    }
}

pub(super) fn main(arguments: &Arguments, env: Environment<'_>) -> ExitCode {
    match answer(arguments, env) {
        Ok((text, code)) => super::print(&text, code),
        Err(error) => {
            log_line(format_args!("error: {}", rules::chain(&error)));
            ExitCode::from(error.exit_code())
        }
    }
}

fn answer(arguments: &Arguments, env: Environment<'_>) -> Result<(String, u8), DumpError> {
    let Targets { job, targets, mut notes } = match arguments.pids[..] {
        [] => workers::of_job(arguments.run_id.as_deref())?,
        _ => workers::of_pids(&arguments.pids)?,
    };
    // Before processes are stopped: a dump that cannot be written is of no use.
    let folder = folder(arguments, env, job.as_deref(), &mut notes)?;
    let dumps = dumps(arguments, targets, &folder)?;
    let mut files = Vec::new();
    for dump in &dumps {
        let name = dump.name().to_string();
        stack_folder::write(&folder, &name, &dump.to_json())?;
        files.push(name);
    }
    files.extend(stack_folder::write_merged(&folder, &dumps)?);
    let has_stacks = dumps.iter().any(|dump| !dump.python.is_empty() || !dump.native.is_empty());
    let text = Report { dumps: &dumps, folder: &folder, files, notes }.text(arguments.json);
    Ok((text, if has_stacks { SUCCEEDED } else { FAILED }))
}

/// The directory that was asked for, else the usual one, else the current one.
fn folder(
    arguments: &Arguments,
    env: Environment<'_>,
    job: Option<&str>,
    notes: &mut Vec<String>,
) -> Result<PathBuf, FolderError> {
    if let Some(path) = &arguments.path {
        stack_folder::prepare(path)?;
        return Ok(path.clone());
    }
    let usual = stack_folder(env);
    let usual = match job {
        Some(job) => usual.of_job(&RunId(job.to_owned()).file_name()),
        None => usual.path().to_owned(),
    };
    match stack_folder::prepare(&usual) {
        Ok(()) => Ok(usual),
        Err(error) => {
            let current = PathBuf::from(".");
            stack_folder::prepare(&current)?;
            notes.push(format!("{}; the files are in the current directory", rules::chain(&error)));
            Ok(current)
        }
    }
}

fn dumps(
    arguments: &Arguments,
    targets: Vec<StackTarget>,
    folder: &Path,
) -> Result<Vec<RankDump>, DumpError> {
    let plan = StacksPlan {
        targets,
        native: !arguments.no_native,
        collect_in: vec![folder.to_owned()],
        limit: Duration::from_secs(arguments.timeout),
        program: ProbeProgram::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(DumpError::Runtime)?.block_on(take_stacks(plan)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Subcommand, parse};

    fn arguments(line: &str) -> Arguments {
        match parse(line).unwrap() {
            Subcommand::Dump(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_job_or_processes_can_be_named() {
        assert_eq!(arguments("dump --pid 7 --pid 8").pids, [7, 8]);
        assert_eq!(arguments("dump --run-id a").run_id.as_deref(), Some("a"));
        for wrong in
            ["dump --run-id a --pid 7", "dump --pid 0", "dump --pid x", "dump --timeout 0", "dump --run-id="]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_folder_that_was_asked_for_is_used_or_refused() {
        let folder_ = tempfile::tempdir().unwrap();
        let path = folder_.path().join("a/b");
        let mut notes = Vec::new();
        let found = folder(
            &arguments(&format!("dump --path {}", path.display())),
            Environment(&[]),
            Some("a"),
            &mut notes,
        );
        assert_eq!(found.unwrap(), path);
        assert!(fs::read_dir(&path).unwrap().next().is_none(), "a file is left");
        let refused = folder(&arguments("dump --path /proc/self/none"), Environment(&[]), None, &mut notes);
        let error = refused.unwrap_err().to_string();
        assert_eq!((error.as_str(), notes.len()), ("/proc/self/none cannot be created", 0));
    }

    #[test]
    fn the_variable_of_xpu_timer_names_the_folder() {
        let folder_ = tempfile::tempdir().unwrap();
        let env = [("XPU_TIMER_TIMELINE_PATH".into(), folder_.path().into())];
        let mut notes = Vec::new();
        let of_job = folder(&arguments("dump"), Environment(&env), Some("llm-7b"), &mut notes);
        assert_eq!(of_job.unwrap(), folder_.path(), "it is named for the job");
        let env = [("XPU_TIMER_TIMELINE_PATH".into(), "/proc/self/none".into())];
        let current = folder(&arguments("dump"), Environment(&env), None, &mut notes);
        assert_eq!(current.unwrap(), PathBuf::from("."));
        assert!(notes[0].starts_with("/proc/self/none cannot be created: "), "{notes:?}");
    }
}
