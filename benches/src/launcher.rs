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

/// Finds a program in the directory of this one.
///
/// # Errors
/// It is not there, and is built with the given package.
pub fn program(name: &str, package: &str) -> Outcome<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    let build = format!("cargo build --profile dist -p {package} --bin {name}");
    Err(format!("{} is missing; build it with `{build}`", path.display()).into())
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
    /// Finds `dlrover-run` and `stamp` in the directory of this program, and the torchrun that `TORCHRUN` names.
    ///
    /// # Errors
    /// One is missing.
    pub fn new() -> Outcome<Self> {
        let torchrun = std::env::var_os("TORCHRUN").map(PathBuf::from);
        if let Some(torchrun) = torchrun.as_ref().filter(|path| !path.is_file()) {
            return Err(format!("TORCHRUN={} is no file", torchrun.display()).into());
        }
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new().prefix("dlrover-bench-").tempdir_in(parent)?;
        Ok(Self {
            ours: program("dlrover-run", "launcher")?,
            torchrun,
            stamp: program("stamp", "dlrover-benches")?,
            stamps: Stamps::new(folder.path().join("stamps"))?,
            folder,
        })
    }

    /// The launchers to measure.
    #[must_use]
    pub fn sides(&self) -> Vec<Side> {
        if self.torchrun.is_some() { vec![Side::Ours, Side::Torchrun] } else { vec![Side::Ours] }
    }

    /// Our launcher.
    #[must_use]
    pub fn ours(&self) -> &Path {
        &self.ours
    }

    /// torchrun, if there is one.
    #[must_use]
    pub fn torchrun(&self) -> Option<&Path> {
        self.torchrun.as_deref()
    }

    /// Waits until no process of the bench is left but this one.
    ///
    /// # Errors
    /// Some are, by their process ids and names.
    pub fn expect_none_left(&self) -> Outcome<()> {
        let deadline_ns = now_ns() + 10_000_000_000;
        loop {
            let left = marked(self.stamps.path());
            if left.is_empty() {
                return Ok(());
            }
            if now_ns() > deadline_ns {
                let names: Vec<String> = left.into_iter().map(name_of).collect();
                return Err(format!("processes are left behind: {}", names.join(", ")).into());
            }
            // They are no children of this process, so that there is nothing to wait for.
            std::thread::sleep(Duration::from_millis(10));
        }
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
        self.spawn(command, plan.stdout, stderr)
    }

    /// Starts a program that belongs to the bench, as all that it starts do. Its standard error goes to a file named
    /// `stderr`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&self, mut command: Command, stdout: Stdio, stderr: &str) -> Outcome<Running> {
        command.env(stamps::VARIABLE, self.stamps.path()).env("TMPDIR", self.folder.path());
        let stderr = self.folder.path().join(stderr);
        command.stdin(Stdio::null()).stdout(stdout).stderr(File::create(&stderr)?);
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
            self.end.recv_timeout(TIMEOUT).map_err(|_| format!("{} does not end", name_of(self.pid)))?;
        self.ended = Some(status?);
        Ok(at_ns)
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

    /// The file of its standard error.
    #[must_use]
    pub fn stderr_path(&self) -> &Path {
        &self.stderr
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

    /// Returns what these have used of the CPUs.
    ///
    /// # Errors
    /// One of them has ended.
    pub fn used(&self) -> Outcome<processes::Used> {
        let mut sum = processes::Used::default();
        for (pid, _) in self.own_processes() {
            let used = processes::Used::of(pid)?;
            sum.cpu_ns += used.cpu_ns;
            sum.voluntary_switches += used.voluntary_switches;
        }
        Ok(sum)
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

/// Its process id and its command line.
fn name_of(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!("{pid} ({})", String::from_utf8_lossy(&line).replace('\0', " ").trim_end())
}

/// The processes that have the environment of this bench, other than itself.
fn marked(stamps: &Path) -> Vec<i32> {
    let is_marked = |pid: &i32| {
        processes::variable(*pid, stamps::VARIABLE).is_some_and(|value| Path::new(&value) == stamps)
    };
    let pids = fs::read_dir("/proc").into_iter().flatten();
    pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok()).filter(is_marked).collect()
}

impl Drop for Bench {
    /// Kills workers that are left: of a killed torchrun, or the bench's own.
    fn drop(&mut self) {
        for pid in marked(self.stamps.path()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}
