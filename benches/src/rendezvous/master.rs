//! A real `dlrover-master` process.

use std::{
    error::Error,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use crate::Outcome;

/// Time limit of the start.
const START: Duration = Duration::from_secs(20);

/// Time limit of the exit after the last agent knows that the job is over.
pub(super) const END: Duration = Duration::from_secs(20);

/// Lines of the log in an error.
const LINES: usize = 12;

/// The program: `DLROVER_MASTER`, or the one in the directory of this program.
///
/// # Errors
/// There is none.
pub(super) fn program() -> Outcome<PathBuf> {
    let path = match std::env::var_os("DLROVER_MASTER") {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe()?.with_file_name("dlrover-master"),
    };
    if path.is_file() {
        return Ok(path);
    }
    let build = "cargo build --profile dist -p launcher --bin dlrover-master";
    Err(format!("{} is missing; build it with `{build}`, or name one by DLROVER_MASTER", path.display())
        .into())
}

/// How to start it.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) program: PathBuf,
    pub(super) agents: usize,
    /// Further arguments.
    pub(super) args: Vec<String>,
    /// The file of its output.
    pub(super) log: PathBuf,
}

/// A master. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Master {
    child: Child,
    pub(super) port: u16,
    log: PathBuf,
}

impl Master {
    /// Starts it and waits until it listens. Port 0: a free one.
    pub(super) fn start(
        plan: &Plan,
        port: u16,
        state_dir: Option<&Path>,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let Plan { program, agents, args, log } = plan;
        let file = File::create(log)?;
        let mut command = Command::new(program);
        command.args(["--port", &port.to_string(), "--node-num", &agents.to_string()]).args(args);
        if let Some(folder) = state_dir {
            command.arg("--state-dir").arg(folder);
        }
        // The bench's environment must not change what is measured.
        command.env_remove("DLROVER_JOB_TOKEN");
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn()?;
        let mut master = Self { child, port, log: log.clone() };
        let began = Instant::now();
        while began.elapsed() < START {
            if let Some(port) = master.logged_port() {
                master.port = port;
                return Ok(master);
            }
            if let Some(status) = master.child.try_wait()? {
                return Err(format!("{status}\n{}", master.last_lines()).into());
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        Err(format!("the master does not log its port\n{}", master.last_lines()).into())
    }

    /// Returns the port in the line `listening on ADDRESS:PORT, job ...`, once it is complete.
    fn logged_port(&self) -> Option<u16> {
        let log = fs::read_to_string(&self.log).ok()?;
        let mut lines = log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let (_, rest) = lines.find_map(|line| line.split_once("listening on "))?;
        rest.split_once(',')?.0.rsplit(':').next()?.parse().ok()
    }

    pub(super) fn pid(&self) -> Outcome<i32> {
        Ok(i32::try_from(self.child.id())?)
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&mut self) -> Outcome<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Returns how it ended, if it has.
    pub(super) fn ended(&mut self) -> Outcome<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Returns the last lines of its log, without the tables of ranks.
    pub(super) fn last_lines(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().filter(|line| !line.starts_with("  node rank ")).collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
