//! What starts the workers: `dlrover-run`, torchrun, or the bench itself.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::{
    Outcome, processes,
    stamps::{self, Stamps, now_ns},
};

/// Time limit of a start, a restart or an end. torchrun takes seconds; a launcher that hangs is an error.
pub const TIMEOUT: Duration = Duration::from_secs(120);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Returns whether the bench was interrupted with Ctrl-C.
#[must_use]
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Installs a handler for Ctrl-C, so that the bench cleans up before it exits.
///
/// # Errors
/// Signals cannot be watched.
pub fn watch_interrupt() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            INTERRUPTED.store(true, Ordering::Relaxed);
        }
    });
    Ok(())
}

/// A launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Ours,
    Torchrun,
}

/// What all cases work with.
#[derive(Debug)]
pub struct Bench {
    ours: PathBuf,
    torchrun: Option<PathBuf>,
    pub stamp: PathBuf,
    pub stamps: Stamps,
    /// In /dev/shm if there is one; removed with the bench.
    pub folder: TempDir,
}

impl Bench {
    /// Finds `dlrover-run` and `stamp` in the folder of this program, and the torchrun that `TORCHRUN` names.
    ///
    /// # Errors
    /// One is missing.
    pub fn new() -> Outcome<Self> {
        let own = std::env::current_exe()?;
        let find = |name: &str, package: &str| {
            let path = own.with_file_name(name);
            let missing = || {
                let build = format!("cargo build --profile dist -p {package} --bin {name}");
                format!("{} is missing; build it with `{build}`", path.display())
            };
            if path.is_file() { Ok(path.clone()) } else { Err(missing()) }
        };
        let torchrun = std::env::var_os("TORCHRUN").map(PathBuf::from);
        if let Some(torchrun) = torchrun.as_ref().filter(|path| !path.is_file()) {
            return Err(format!("TORCHRUN={} is no file", torchrun.display()).into());
        }
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new().prefix("dlrover-bench-").tempdir_in(parent)?;
        Ok(Self {
            ours: find("dlrover-run", "launcher")?,
            torchrun,
            stamp: find("stamp", "dlrover-benches")?,
            stamps: Stamps::new(folder.path().join("stamps"))?,
            folder,
        })
    }

    /// The launchers to measure.
    #[must_use]
    pub fn sides(&self) -> Vec<Side> {
        if self.torchrun.is_some() { vec![Side::Ours, Side::Torchrun] } else { vec![Side::Ours] }
    }

    /// One line about what is measured.
    #[must_use]
    pub fn about(&self) -> String {
        let size = fs::metadata(&self.ours).map_or(0, |file| file.len()) as f64 / 1e6;
        let peer =
            self.torchrun.as_ref().map_or("no torchrun (name one by TORCHRUN=...)".to_owned(), |path| {
                format!("compared with {}", path.display())
            });
        format!("{} ({size:.1} MB), {peer}", self.ours.display())
    }

    /// A worker without a launcher.
    #[must_use]
    pub fn worker(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.stamp);
        command.args(arguments).env(stamps::VARIABLE, self.stamps.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts a launcher of a job of one node, with the workers of a plan.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&mut self, side: Side, plan: Plan<'_>) -> Outcome<Running> {
        self.stamps.clear()?;
        self.launch(side, &["--standalone"], plan, "stderr")
    }

    /// Starts a launcher with the rendezvous options `meeting`. Its standard error goes to a file named `stderr`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn launch(&self, side: Side, meeting: &[&str], plan: Plan<'_>, stderr: &str) -> Outcome<Running> {
        let program = match side {
            Side::Ours => &self.ours,
            Side::Torchrun => self.torchrun.as_ref().ok_or("no TORCHRUN")?,
        };
        let mut command = Command::new(program);
        command.args(meeting).arg(format!("--nproc-per-node={}", plan.workers));
        command.args(plan.options).arg("--no-python").arg(&self.stamp).args(plan.arguments);
        command.env(stamps::VARIABLE, self.stamps.path()).env("TMPDIR", self.folder.path());
        let stderr = self.folder.path().join(stderr);
        command.stdin(Stdio::null()).stdout(plan.stdout).stderr(File::create(&stderr)?);
        let exec_ns = now_ns();
        let child = command.spawn()?;
        // The command holds our ends of pipes.
        drop(command);
        Running::new(child, exec_ns, stderr)
    }
}

/// What a launcher starts.
#[derive(Debug)]
pub struct Plan<'a> {
    pub workers: usize,
    /// Options of the launcher.
    pub options: &'a [&'a str],
    /// Arguments of the worker.
    pub arguments: &'a [&'a str],
    pub stdout: Stdio,
}

/// A running launcher. Dropped, it is stopped.
#[derive(Debug)]
pub struct Running {
    pub pid: i32,
    /// The time just before it was forked.
    pub exec_ns: u64,
    stderr: PathBuf,
    ended: Option<ExitStatus>,
    end: mpsc::Receiver<(u64, std::io::Result<ExitStatus>)>,
}

impl Running {
    fn new(mut child: Child, exec_ns: u64, stderr: PathBuf) -> Outcome<Self> {
        let pid = i32::try_from(child.id())?;
        let (sender, end) = mpsc::channel();
        std::thread::spawn(move || {
            let status = child.wait();
            // The bench may have given up.
            let _ = sender.send((now_ns(), status));
        });
        Ok(Self { pid, exec_ns, stderr, ended: None, end })
    }

    /// Waits for its end, and returns the time of it.
    ///
    /// # Errors
    /// It does not end.
    pub fn wait(&mut self) -> Outcome<u64> {
        let (at_ns, status) =
            self.end.recv_timeout(TIMEOUT).map_err(|_| format!("{} does not end", self.name()))?;
        self.ended = Some(status?);
        Ok(at_ns)
    }

    /// Its process id and its command line.
    fn name(&self) -> String {
        let line = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        format!("{} ({})", self.pid, String::from_utf8_lossy(&line).replace('\0', " ").trim_end())
    }

    /// Like [`Running::wait`], and the run must have succeeded.
    ///
    /// # Errors
    /// It failed; with its standard error.
    pub fn succeed(&mut self) -> Outcome<u64> {
        let at_ns = self.wait()?;
        match self.ended {
            Some(status) if status.success() => Ok(at_ns),
            Some(status) => Err(format!("{status}\n{}", self.stderr()).into()),
            None => Err("no exit status".into()),
        }
    }

    /// Sends SIGTERM, and waits for its end.
    ///
    /// # Errors
    /// It does not end.
    pub fn stop(&mut self) -> Outcome<()> {
        kill(Pid::from_raw(self.pid), Signal::SIGTERM)?;
        self.wait().map(drop)
    }

    /// Returns its standard error.
    #[must_use]
    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Returns the processes of the launcher: itself, and our guard.
    #[must_use]
    pub fn own_processes(&self) -> Vec<(i32, &'static str)> {
        let mut own = vec![(self.pid, "launcher")];
        let guard = processes::children(self.pid).into_iter().find(|(_, name)| name == "dlrover-guard");
        own.extend(guard.map(|(pid, _)| (pid, "guard")));
        own
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process id is valid until the thread has reaped it.
        if self.ended.is_some() || self.end.try_recv().is_ok() {
            return;
        }
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let _ = kill(Pid::from_raw(self.pid), signal);
            if self.end.recv_timeout(Duration::from_secs(20)).is_ok() {
                return;
            }
        }
    }
}

/// Kills workers that are left: of a killed torchrun, or the bench's own.
fn kill_workers(stamps: &Path) {
    let marker = format!("{}={}", stamps::VARIABLE, stamps.display());
    let pids = fs::read_dir("/proc").into_iter().flatten();
    for pid in pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok()) {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|entry| entry == marker.as_bytes()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        kill_workers(self.stamps.path());
    }
}
