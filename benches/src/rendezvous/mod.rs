//! The cases of the `rendezvous` bench: [`agents`] is many agents against one master, [`mod@meeting`] a few whole
//! launchers beside torchrun.

mod agent;
mod case;
mod crowd;
mod files;
mod growth;
mod master;
mod meeting;
mod rows;

use std::{path::PathBuf, time::Duration};

use tempfile::TempDir;

use self::{case::Measured, master::Plan};
use crate::{Outcome, figures::heading, launcher::is_interrupted};

/// How much to measure.
#[derive(Debug, Clone)]
pub struct Amount {
    /// Numbers of agents.
    pub agents: Vec<usize>,
    /// Rounds of each.
    pub rounds: usize,
    /// Seconds of idleness.
    pub idle_secs: u64,
    /// How often whole launchers meet.
    pub meetings: usize,
}

pub use meeting::measure as meeting;

/// Who is measured, in a line.
///
/// # Errors
/// When there is no master.
pub fn about() -> Outcome<String> {
    Ok(format!("{}; {}", master::program()?.display(), files::about()?))
}

/// Many agents against one master.
///
/// # Errors
/// When nothing can be measured at all. A case that fails is printed as failed.
pub fn agents(amount: &Amount) -> Outcome<()> {
    let program = master::program()?;
    let room = files::raise()?;
    let mut measured: [Vec<Measured>; 2] = [Vec::new(), Vec::new()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for &agents in &amount.agents {
        if let Some(why) = room.lacks(agents) {
            heading(&format!("{agents} agents: skipped, {why}"))?;
            continue;
        }
        for (has_memory, measured) in [false, true].into_iter().zip(&mut measured) {
            let folder = Folder::new()?;
            let plan = Plan { program: program.clone(), agents, said: folder.said() };
            let state_dir = has_memory.then(|| folder.state());
            let much = case::Amount { rounds: amount.rounds, idle: Duration::from_secs(amount.idle_secs) };
            match runtime.block_on(case::measure(&plan, state_dir.as_deref(), much)) {
                Ok(case) => {
                    rows::print(&case, has_memory)?;
                    measured.push(case);
                }
                Err(error) if is_interrupted() => return Err(error),
                Err(error) => rows::failed(agents, has_memory, &*error)?,
            }
        }
    }
    for (has_memory, measured) in [false, true].into_iter().zip(&measured) {
        growth::print(measured, has_memory)?;
    }
    Ok(())
}

/// On a disk, as a master's memory is. Goes with the case.
#[derive(Debug)]
struct Folder(TempDir);

impl Folder {
    fn new() -> Outcome<Self> {
        Ok(Self(tempfile::Builder::new().prefix("dlrover-bench-").tempdir()?))
    }

    fn said(&self) -> PathBuf {
        self.0.path().join("said")
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }
}
