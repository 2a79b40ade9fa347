//! One run of a launcher, from its command line to the last of its processes.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::marked::{Marked, marked, sweep};
use crate::{TIMEOUT, seen, wait_for};

/// How long an ended launcher's last processes may take to vanish: its guard notices the death shortly after.
const AFTERGLOW: Duration = Duration::from_secs(2);

/// Variables that would affect a run from outside, by prefix.
const NOT_INHERITED: &[&str] = &[
    "PET_",
    "TORCH",
    "DLROVER_",
    "PROBE",
    "LOCAL_",
    "MASTER_",
    "RANK",
    "WORLD_SIZE",
    "NODE_",
    "POD_",
    "HOST_IP",
    "WORKER_",
    "ELASTIC_",
    "GANG_",
    "ALIYUN_COM_",
    "NVIDIA_VISIBLE",
    "GROUP_",
    "ROLE_",
    "OMP_",
    "CUDA_",
    "HIP_",
    "PYTHON",
    "LOGLEVEL",
    "RUST_LOG",
    "TMPDIR",
    "HOST_PORTS",
];

/// The launcher under test: ours, or the one that `LAUNCHER` names.
#[derive(Clone, Debug)]
pub struct Launcher {
    pub program: OsString,
    /// True for torchrun itself, which these suites also test.
    pub is_torchrun: bool,
}

impl Launcher {
    /// `LAUNCHER`, a path or a name on PATH; else `ours`.
    #[must_use]
    pub fn from_env(ours: &str) -> Self {
        let program = std::env::var_os("LAUNCHER").unwrap_or_else(|| ours.into());
        let is_torchrun = Path::new(&program).file_name() == Some(OsStr::new("torchrun"));
        Self { program, is_torchrun }
    }
}

/// The launcher that cargo built for the calling suite, or the one that `LAUNCHER` names.
#[macro_export]
macro_rules! launcher {
    () => {
        $crate::launch::Launcher::from_env(env!("CARGO_BIN_EXE_dlrover-run-under-test"))
    };
}

/// A command line under construction. Its files live in a directory of its own, which is its TMPDIR too.
#[derive(Debug)]
#[must_use]
pub struct Launch {
    launcher: Launcher,
    dir: TempDir,
    flags: Vec<OsString>,
    script: Option<OsString>,
    script_args: Vec<OsString>,
    env: BTreeMap<OsString, OsString>,
    cwd: Option<PathBuf>,
    shell: Option<String>,
    stdin: Vec<u8>,
}

impl Launch {
    /// # Panics
    /// No temporary directory can be made.
    pub fn new(launcher: Launcher) -> Self {
        let dir = tempfile::Builder::new().prefix("launch-").tempdir().expect("a temporary directory");
        Self {
            launcher,
            dir,
            flags: Vec::new(),
            script: Some(crate::trainer("probe.py").into()),
            script_args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            shell: None,
            stdin: Vec::new(),
        }
    }

    pub fn flags<S: AsRef<OsStr>>(mut self, flags: impl IntoIterator<Item = S>) -> Self {
        self.flags.extend(flags.into_iter().map(|flag| flag.as_ref().to_owned()));
        self
    }

    /// What to run instead of the probe.
    pub fn script(mut self, script: impl Into<OsString>) -> Self {
        self.script = Some(script.into());
        self
    }

    pub fn without_script(mut self) -> Self {
        self.script = None;
        self
    }

    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.script_args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// The steps of the probe, one for each item; see `trainers/probe.py`.
    pub fn steps(self, steps: &[&str]) -> Self {
        self.env("PROBE", steps.join("\n"))
    }

    pub fn cwd(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cwd = Some(dir.into());
        self
    }

    /// Shell commands that run just before the shell execs the launcher.
    pub fn after(mut self, commands: &str) -> Self {
        self.shell = Some(commands.to_owned());
        self
    }

    pub fn stdin(mut self, text: &str) -> Self {
        self.stdin = text.into();
        self
    }

    /// The directory of this run's files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn command(&self, mark: &str) -> Command {
        let mut command = match &self.shell {
            None => Command::new(&self.launcher.program),
            Some(commands) => {
                let mut shell = Command::new("bash");
                shell
                    .arg("-c")
                    .arg(format!("{commands}; exec \"$@\""))
                    .arg("bash")
                    .arg(&self.launcher.program);
                shell
            }
        };
        // SAFETY: between fork and exec it only makes system calls.
        unsafe { command.pre_exec(usual_signals) };
        command.args(&self.flags).args(&self.script).args(&self.script_args);
        command.current_dir(self.cwd.as_deref().unwrap_or(self.dir.path()));
        for (name, _) in std::env::vars_os() {
            if NOT_INHERITED.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        let (name, value) = mark.split_once('=').expect("the mark is NAME=value");
        command.env(name, value);
        command.env("TMPDIR", self.dir.path()).env("PROBE_OUT", self.dir.path());
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        // The same suites once more with workers that are forked from a template.
        if let Some(when) = std::env::var_os("TEST_WARM") {
            command.env("DLROVER_WARM", when);
        }
        command.envs(&self.env);
        command
    }

    /// # Panics
    /// The launcher cannot be started at all.
    #[must_use]
    pub fn start(self) -> Running {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let mark = format!("LAUNCH_UNDER_TEST={}-{run}", std::process::id());
        let file =
            |name: &str| File::create(self.dir.path().join(name)).expect("a file in our own directory");
        fs::write(self.dir.path().join("stdin"), &self.stdin).expect("a file in our own directory");
        let mut command = self.command(&mark);
        command.stdin(File::open(self.dir.path().join("stdin")).expect("just written"));
        command.stdout(file("stdout")).stderr(file("stderr"));
        let shown = format!("{command:?}");
        let started = Instant::now();
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {shown}: {error}"));
        Running { child, dir: Some(self.dir), mark, launcher: self.launcher, shown, started }
    }

    /// Runs it to its end. Ours must have left no process then.
    #[must_use]
    pub fn finish(self) -> Outcome {
        self.start().finish()
    }
}

/// Signals that a launcher under test does not ignore, unless the test makes it.
pub(crate) const RESET_SIGNALS: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGCHLD];

/// The caller of the tests may ignore signals (`nohup cargo test`), and a launcher honours that.
fn usual_signals() -> std::io::Result<()> {
    for baseline in RESET_SIGNALS {
        // SAFETY: the default action runs no handler.
        unsafe { signal(baseline, SigHandler::SigDfl) }?;
    }
    Ok(())
}

/// A running launcher. Dropped, it is killed with all that it started.
#[derive(Debug)]
pub struct Running {
    child: Child,
    dir: Option<TempDir>,
    mark: String,
    launcher: Launcher,
    shown: String,
    started: Instant,
}

impl Running {
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid fits")
    }

    /// # Panics
    /// The run has ended and owns no directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.as_ref().expect("the directory leaves with the outcome only").path()
    }

    /// # Panics
    /// The launcher is gone already.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("the launcher is still there");
    }

    /// Waits until the probe of a worker has made this file.
    pub fn await_file(&self, name: &str) -> String {
        let path = self.dir().join(name);
        wait_for(&format!("{name} of {}", self.shown), || fs::read_to_string(&path).ok())
    }

    /// What the launcher has said on standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        let bytes = fs::read(self.dir().join("stderr")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What the probes of a run wait for.
    ///
    /// # Panics
    /// The run's directory cannot be written.
    pub fn touch(&self, name: &str) {
        File::create(self.dir().join(name)).expect("a file in our own directory");
    }

    /// The processes of this run that live now, the launcher among them.
    #[must_use]
    pub fn processes(&self) -> Vec<Marked> {
        marked(&self.mark)
    }

    /// The mark that every process of this run carries, as `NAME=value`.
    #[must_use]
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// Whether the launcher has ended.
    ///
    /// # Panics
    /// The kernel does not say.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_some()
    }

    /// How the launcher ended. Its end may be asked for again.
    ///
    /// # Panics
    /// It does not end.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("our own child") {
                return status;
            }
            if start.elapsed() > TIMEOUT {
                let stderr = fs::read(self.dir().join("stderr")).unwrap_or_default();
                panic!("{} did not end; stderr:\n{}", self.shown, String::from_utf8_lossy(&stderr));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for its end. Ours must have left no process then.
    ///
    /// # Panics
    /// It does not end, or leaves a process.
    #[must_use]
    pub fn finish(self) -> Outcome {
        let is_torchrun = self.launcher.is_torchrun;
        let outcome = self.finish_whatever_is_left();
        assert!(is_torchrun || outcome.left.is_empty(), "left behind: {:?} by {outcome:#?}", outcome.left);
        outcome
    }

    /// Waits for its end and returns the processes that outlived it; those are swept.
    ///
    /// # Panics
    /// It does not end.
    #[must_use]
    pub fn finish_whatever_is_left(mut self) -> Outcome {
        let status = self.wait();
        let took = self.started.elapsed();
        let ended = Instant::now();
        let mut left = marked(&self.mark);
        while !left.is_empty() && ended.elapsed() < AFTERGLOW {
            std::thread::sleep(Duration::from_millis(5));
            left = marked(&self.mark);
        }
        sweep(&self.mark);
        let read = |name: &str| fs::read(self.dir().join(name)).expect("made at the start");
        let (stdout, stderr) = (read("stdout"), read("stderr"));
        let outcome = Outcome {
            shown: self.shown.clone(),
            code: status.code(),
            signal: status.signal(),
            stdout_bytes: stdout.clone(),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            took,
            left,
            dir: self.dir.take().expect("taken here only"),
        };
        if std::env::var_os("TEST_WARM").is_some() {
            outcome.say_if_not_forked();
        }
        outcome
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only a run that failed its test, or ended, comes here: both may be swept.
        let _ = self.child.kill();
        let _ = self.child.wait();
        sweep(&self.mark);
    }
}

/// What is to be known of a run that ended.
pub struct Outcome {
    shown: String,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stdout_bytes: Vec<u8>,
    pub stderr: String,
    pub took: Duration,
    /// The processes that outlived the launcher.
    pub left: Vec<Marked>,
    dir: TempDir,
}

/// Enough to see why an assertion on it failed.
impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files = fs::read_dir(self.dir.path()).into_iter().flatten().flatten();
        let files: Vec<_> = files.map(|file| file.file_name()).collect();
        write!(
            f,
            "{}\ncode {:?}, signal {:?}, took {:?}\n--- stdout\n{}\n--- stderr\n{}\n--- files {files:?}",
            self.shown, self.code, self.signal, self.took, self.stdout, self.stderr
        )
    }
}

impl Outcome {
    /// Tells the person who runs a suite with forked workers of a run that had others. Also while output is captured.
    fn say_if_not_forked(&self) {
        for line in self.stderr.lines().filter(|line| line.contains(" forked from ")) {
            // A closed stderr must not fail the case.
            let _closed = writeln!(std::io::stderr(), "not forked: {}: {line}", self.shown);
        }
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// # Panics
    /// The run ended otherwise.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!((self.code, self.signal), (Some(code), None), "{self:#?}");
        self
    }

    /// A file that a worker's probe wrote, by `<rank>.<attempt>.<what>`.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.dir().join(name)).ok()
    }

    /// What the worker found around itself.
    ///
    /// # Panics
    /// It wrote no dump.
    #[track_caller]
    #[must_use]
    pub fn dump(&self, rank: u32, attempt: u32) -> seen::Dump {
        let text = self.file(&format!("{rank}.{attempt}.dump"));
        let text =
            text.unwrap_or_else(|| panic!("rank {rank} of attempt {attempt} dumped nothing: {self:#?}"));
        serde_json::from_str(&text).expect("the probe writes JSON")
    }

    /// The dumps of all workers of all attempts, by (attempt, rank).
    #[must_use]
    pub fn dumps(&self) -> Vec<(u32, u32)> {
        let mut found: Vec<(u32, u32)> = fs::read_dir(self.dir())
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|file| {
                let name = file.file_name().into_string().ok()?;
                let (rank, rest) = name.strip_suffix(".dump")?.split_once('.')?;
                Some((rest.parse().ok()?, rank.parse().ok()?))
            })
            .collect();
        found.sort_unstable();
        found
    }
}
