//! A real `dlrover-master` process.

use std::{
    error::Error,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use crate::Outcome;

/// How long it may take to listen.
const START: Duration = Duration::from_secs(20);

/// How long it may take to end after the last agent knows that the job is over.
pub(super) const END: Duration = Duration::from_secs(20);

/// Lines that an error repeats.
const LINES: usize = 12;

/// The program: `DLROVER_MASTER`, or the one beside this program.
///
/// # Errors
/// When there is none.
pub(super) fn program() -> Outcome<PathBuf> {
    let path = match std::env::var_os("DLROVER_MASTER") {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe()?.with_file_name("dlrover-master"),
    };
    if path.is_file() {
        return Ok(path);
    }
    let build = "cargo build --release -p launcher --bin dlrover-master";
    Err(format!("{} is missing; build it with `{build}`, or name one by DLROVER_MASTER", path.display())
        .into())
}

/// How to start it.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) program: PathBuf,
    pub(super) agents: usize,
    /// A file for what it says.
    pub(super) said: PathBuf,
}

/// Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Master {
    child: Child,
    pub(super) port: u16,
    said: PathBuf,
}

impl Master {
    /// Starts it and waits until it listens. On port 0 it takes a free one.
    pub(super) fn start(
        plan: &Plan,
        port: u16,
        state_dir: Option<&Path>,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let Plan { program, agents, said } = plan;
        let file = File::create(said)?;
        let mut command = Command::new(program);
        command.args(["--port", &port.to_string(), "--node-num", &agents.to_string()]);
        if let Some(folder) = state_dir {
            command.arg("--state-dir").arg(folder);
        }
        // The bench's own environment is not its business.
        command.env_remove("DLROVER_JOB_TOKEN");
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn()?;
        let mut master = Self { child, port, said: said.clone() };
        let began = Instant::now();
        while began.elapsed() < START {
            if let Some(port) = master.port_said() {
                master.port = port;
                return Ok(master);
            }
            if let Some(status) = master.child.try_wait()? {
                return Err(format!("{status}\n{}", master.last_lines()).into());
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        Err(format!("the master does not say its port\n{}", master.last_lines()).into())
    }

    /// The number that the whole line about what is served ends with.
    fn port_said(&self) -> Option<u16> {
        let said = fs::read_to_string(&self.said).ok()?;
        let mut lines = said.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let line = lines.find(|line| line.contains("serving"))?;
        line.rsplit(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
    }

    pub(super) fn pid(&self) -> Outcome<i32> {
        Ok(i32::try_from(self.child.id())?)
    }

    /// With SIGKILL.
    pub(super) fn kill(&mut self) -> Outcome<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Outcome<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// The end of what it said, without the tables of who is where.
    pub(super) fn last_lines(&self) -> String {
        let said = fs::read_to_string(&self.said).unwrap_or_default();
        let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("  rank ")).collect();
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
