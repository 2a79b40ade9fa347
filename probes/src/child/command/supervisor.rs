//! The process that supervises a check command: it reads the output, ends the command, and exits when no process of
//! it is left.
//!
//! It is a subreaper, so orphans of the command become its children, and `waitpid` failing with ECHILD proves that
//! none is left. When the agent dies, the kernel sends it SIGTERM, as for a cancellation. When it is killed itself,
//! the command is killed by PDEATHSIG; descendants carry the launcher's id, for the next sweep.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io::{self, Write as _},
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use diagnosis::network_check::Probed;
use nix::{
    sys::{
        prctl,
        signal::{SigSet, Signal},
    },
    unistd::getpid,
};
use rules::{failure::ExitCause, signal_name::signal_text};

use super::{
    answer,
    output::{LastOutput, read_stderr, read_stdout},
};
use crate::{
    child::{
        Reporter,
        progress::Progress,
        session::{in_a_session_of_its_own, kill_descendants},
        wait_for,
    },
    wire::{
        ProbeMessage,
        command::{CannotRun, CommandTask},
        group::Measured,
    },
};
use processes::{reap::reap_exited, tree};

/// Between two progress messages, and two checks of the deadline.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// How long the last of the output may take.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// Why there is no command to supervise.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    /// No program was named.
    #[error("the check command is empty")]
    Empty,
    /// A system call of the supervisor failed.
    #[error("cannot supervise the check command")]
    Prepare(#[source] io::Error),
    #[error("cannot start the check command `{program}`")]
    Start {
        program: String,
        #[source]
        source: io::Error,
    },
}

/// Runs the command to its end, or until SIGTERM.
pub(crate) fn run(task: CommandTask, reporter: &Reporter) -> Result<Measured, CannotRun> {
    let watched = watch(task, reporter);
    watched.unwrap_or_else(|error| Ok(Probed::Failed { reason: rules::chain(&error) })).map(Measured::from)
}

fn watch(task: CommandTask, reporter: &Reporter) -> Result<Result<Probed, CannotRun>, CommandError> {
    prctl::set_child_subreaper(true).map_err(|error| CommandError::Prepare(error.into()))?;
    let mut signals = SigSet::from(Signal::SIGTERM);
    signals.add(Signal::SIGCHLD);
    // Before the first thread: all threads inherit it, and the signals stay pending until `wait_for`.
    signals.thread_block().map_err(|error| CommandError::Prepare(error.into()))?;
    let mut child = start(&task)?;
    let progress = Arc::new(Progress::new(0));
    progress.begin();
    let (answers, message) = (LastOutput::default(), LastOutput::default());
    let (over, output) = mpsc::channel();
    listen(&mut child, &progress, [&answers, &message], reporter, &over).map_err(CommandError::Prepare)?;
    drop(over);
    write_request(&mut child, &task);
    let mut supervised = Supervised { pid: i32::try_from(child.id()).unwrap_or(i32::MAX), exit: None };
    let is_cancelled =
        supervised.wait(&signals, || reporter.send(&ProbeMessage::Progress(progress.unfinished())));
    if is_cancelled {
        supervised.terminate(task.grace, &signals);
    }
    if let Some(left) = kill_descendants(|| supervised.reap()) {
        reporter.send(&ProbeMessage::Log(format!(
            "left behind by the check command and still alive after SIGKILL: {left}"
        )));
    }
    // Both pipes end with the last process. A process that survives SIGKILL may hold them.
    let deadline = Instant::now() + OUTPUT_TIMEOUT;
    for _ in 0..2 {
        let _ended = output.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
    let exit = supervised.exit;
    if is_cancelled {
        return Ok(Ok(progress.unfinished()));
    }
    let said = message.get().unwrap_or_default();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    Ok(match exit {
        Some(ExitCause::Code(0)) => Ok(answer::judge(answers.get().as_deref())),
        // Exit codes of the shell: the program does not exist, or cannot be executed.
        Some(ExitCause::Code(code @ (126 | 127))) => Err(CannotRun { code, said }),
        exit => Ok(Probed::Failed { reason: failure(exit, &said) }),
    })
}

fn start(task: &CommandTask) -> Result<Child, CommandError> {
    let [program, arguments @ ..] = &task.argv[..] else { return Err(CommandError::Empty) };
    let request = &task.request;
    let number = |number: usize| OsString::from(number.to_string());
    let own: [(&str, OsString); 8] = [
        ("RANK", number(request.rank)),
        ("WORLD_SIZE", number(request.world_size)),
        ("LOCAL_RANK", number(0)),
        ("LOCAL_WORLD_SIZE", number(1)),
        ("MASTER_ADDR", OsString::from(&request.master_addr)),
        ("MASTER_PORT", number(request.master_port.into())),
        ("DLROVER_CHECK", number(1)),
        ("DLROVER_CHECK_SEED", OsString::from(request.seed.to_string())),
    ];
    let mut command = Command::new(program);
    command.args(arguments).envs(task.env.iter().map(|(name, value)| (name, value))).envs(own);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    in_a_session_of_its_own(&mut command);
    command
        .spawn()
        .map_err(|source| CommandError::Start { program: program.to_string_lossy().into_owned(), source })
}

/// Reads both pipes on threads of their own; each sends to `over` when its pipe has ended.
fn listen(
    child: &mut Child,
    progress: &Arc<Progress>,
    [answers, message]: [&LastOutput; 2],
    reporter: &Reporter,
    over: &mpsc::Sender<()>,
) -> io::Result<()> {
    if let Some(stdout) = child.stdout.take() {
        let (last, progress, over) = (answers.clone(), Arc::clone(progress), over.clone());
        thread::Builder::new().name("stdout".into()).spawn(move || {
            read_stdout(stdout, &last, &progress);
            let _late = over.send(());
        })?;
    }
    if let Some(stderr) = child.stderr.take() {
        let (last, reporter, over) = (message.clone(), reporter.clone(), over.clone());
        thread::Builder::new().name("stderr".into()).spawn(move || {
            read_stderr(stderr, &last, &reporter);
            let _late = over.send(());
        })?;
    }
    Ok(())
}

/// The request is far shorter than a pipe's buffer, so this never blocks.
fn write_request(child: &mut Child, task: &CommandTask) {
    if let Some(mut stdin) = child.stdin.take() {
        let mut request = serde_json::to_vec(&task.request).unwrap_or_default();
        request.push(b'\n');
        // A command that does not read its input has the environment.
        let _closed = stdin.write_all(&request);
    }
}

struct Supervised {
    pid: i32,
    exit: Option<ExitCause>,
}

impl Supervised {
    /// Reaps all children that exited. Returns true when none is left.
    fn reap(&mut self) -> bool {
        reap_exited(|pid, cause| {
            if pid == self.pid {
                self.exit.get_or_insert(cause);
            }
        })
    }

    /// Waits for the command to exit. Returns true when cancelled.
    fn wait(&mut self, signals: &SigSet, mut tell: impl FnMut()) -> bool {
        loop {
            self.reap();
            if self.exit.is_some() {
                return false;
            }
            match wait_for(signals, PROGRESS_INTERVAL) {
                Some(Signal::SIGTERM) => return true,
                Some(_) => {}
                None => tell(),
            }
        }
    }

    /// Sends SIGTERM to all processes of the command and waits up to `grace`.
    fn terminate(&mut self, grace: Duration, signals: &SigSet) {
        let leaders = BTreeSet::from([self.pid]);
        tree::ask(tree::below(getpid().as_raw()), &leaders, Signal::SIGTERM);
        let deadline = Instant::now() + grace;
        while !self.reap() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            wait_for(signals, left.min(PROGRESS_INTERVAL));
        }
    }
}

fn failure(exit: Option<ExitCause>, message: &str) -> String {
    let how = match exit {
        Some(ExitCause::Code(code)) => format!("exited with code {code}"),
        Some(ExitCause::Signal(signal)) => format!("was killed by {}", signal_text(signal)),
        None => "did not exit".to_owned(),
    };
    if message.is_empty() {
        format!("the check command {how}")
    } else {
        format!("the check command {how}: {message}")
    }
}
