//! The probe's own side: a process with one task, progress counters, and one writer of standard output.

pub(crate) mod bus;
pub(crate) mod command;
pub(crate) mod gpus;
mod local;
pub(crate) mod pattern;
pub(crate) mod progress;
pub(crate) mod ring;
mod session;
mod stacks;
pub(crate) mod switchbox;

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::FromRawFd as _,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use diagnosis::network_check::Probed;
use nix::{
    libc,
    sys::{
        prctl,
        signal::{SigSet, Signal},
    },
};

use self::{progress::Progress, ring::error::RingError};
use crate::wire::{End, ProbeMessage, Task};

/// Between two progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// The members of a cancelled group are cancelled one after the other. A member whose peer has disconnected waits
/// this long to be cancelled too: a cancelled test must not be reported as a failure.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// The only writer of standard output.
#[derive(Debug, Clone)]
pub(super) struct Reporter(Arc<Mutex<File>>);

impl Reporter {
    fn new() -> Self {
        // SAFETY: nothing else in this process writes to standard output or closes it.
        Self(Arc::new(Mutex::new(unsafe { File::from_raw_fd(libc::STDOUT_FILENO) })))
    }

    /// Sends a message. An agent that does not read it has ended, or is about to kill this process.
    pub(super) fn send(&self, message: &ProbeMessage) {
        let mut line = serde_json::to_vec(message).unwrap_or_default();
        line.push(b'\n');
        let mut stdout = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _agent_gone = stdout.write_all(&line);
    }

    /// Exits without a result; no further message is sent. `clear_up` runs before the exit.
    pub(super) fn close(&self, clear_up: impl FnOnce()) -> ! {
        let _silence = self.0.lock();
        clear_up();
        // SAFETY: as in `end`.
        unsafe { libc::_exit(1) }
    }

    /// Sends the result and exits, even if other threads hang.
    pub(super) fn end(&self, end: End) -> ! {
        let mut line = serde_json::to_vec(&ProbeMessage::End(end)).unwrap_or_default();
        line.push(b'\n');
        // Never released: nothing is sent after the result.
        let mut stdout = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _agent_gone = stdout.write_all(&line);
        // SAFETY: `_exit` has no preconditions; a driver's clean-up, which may hang, is not run.
        unsafe { libc::_exit(0) }
    }
}

/// Runs a probe to its end.
pub(super) fn run() -> ExitCode {
    let _cosmetic = prctl::set_name(c"dlrover-probe");
    match task() {
        Ok(task) => perform(task),
        Err(error) => {
            print_error(&format!("cannot read the task: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn task() -> io::Result<Task> {
    let mut plan = Vec::new();
    io::stdin().read_to_end(&mut plan)?;
    serde_json::from_slice(&plan).map_err(io::Error::from)
}

#[expect(clippy::print_stderr, reason = "the agent reads it, and there is no log here")]
fn print_error(message: &str) {
    eprintln!("{message}");
}

/// Performs the task and reports its result, or why there is none.
fn perform(task: Task) -> ! {
    let reporter = Reporter::new();
    match task {
        Task::Local { accelerators, places } => {
            let end = local::check::check(accelerators, &places, &reporter);
            reporter.end(End::Local(end))
        }
        Task::Compute { times, accelerators } => {
            let end = local::check::measure(times, accelerators, &reporter);
            reporter.end(End::Compute(end))
        }
        Task::Gpus(task) => {
            let inventory = gpus::gather(&task, &reporter);
            reporter.end(End::Inventory(Box::new(inventory)))
        }
        Task::WatchGpus { and_memory } => {
            if let Err(error) = gpus::watch::listen(and_memory, &reporter) {
                print_error(&format!("cannot receive error events from the NVIDIA driver: {error}"));
            }
            reporter.close(|| {})
        }
        Task::Ring(task) => {
            let progress = Arc::new(Progress::new(task.plan.total_bytes()));
            if let Err(error) = report_progress(reporter.clone(), Arc::clone(&progress)) {
                let reason = format!("cannot start a thread: {error}");
                reporter.end(End::Group(Ok(Probed::Failed { reason }.into())));
            }
            match ring::run(task, &progress) {
                Ok(measured) => reporter.end(End::Group(Ok(measured))),
                Err(error) => {
                    if matches!(error, RingError::ClosedEarly { .. }) {
                        thread::sleep(CANCEL_TIMEOUT);
                    }
                    reporter.end(End::Group(Ok(Probed::Failed { reason: rules::chain(&error) }.into())))
                }
            }
        }
        Task::Command(task) => {
            let end = command::supervisor::run(task, &reporter);
            reporter.end(End::Group(end))
        }
        Task::Switchbox(task) => {
            let end = switchbox::supervisor::run(&task, &reporter);
            reporter.end(End::Switchbox(end))
        }
        Task::Stacks(task) => {
            stacks::take(&task, &reporter);
            reporter.end(End::Stacks)
        }
        Task::SwitchboxCopy(task) => switchbox::run_copy(&task),
    }
}

/// Reports the progress four times a second, and a last time on SIGTERM.
fn report_progress(reporter: Reporter, progress: Arc<Progress>) -> io::Result<()> {
    let asked = SigSet::from(Signal::SIGTERM);
    // Inherited by later threads, so the signal waits for the thread below.
    asked.thread_block()?;
    thread::Builder::new().name("progress".into()).spawn(move || {
        loop {
            if wait_for(&asked, PROGRESS_INTERVAL).is_some() {
                reporter.end(End::Group(Ok(progress.unfinished().into())));
            }
            reporter.send(&ProbeMessage::Progress(progress.unfinished()));
        }
    })?;
    Ok(())
}

/// Waits for one of these blocked signals. `None`: timeout.
pub(super) fn wait_for(signals: &SigSet, timeout: Duration) -> Option<Signal> {
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    };
    // SAFETY: both are valid for the call, and only the signal's number is requested.
    let signal = unsafe { libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), &raw const timeout) };
    Signal::try_from(signal).ok()
}
