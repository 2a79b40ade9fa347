//! The cases of the `rendezvous` bench: [`mod@agents`] is many agents against one master, [`mod@meeting`] a few
//! launchers and torchrun.

mod agent;
mod agents;
mod case;
mod files;
mod growth;
mod master;
mod meeting;
mod rows;
mod watching;

use std::{path::PathBuf, time::Duration};

use tempfile::TempDir;

use self::{case::Measured, master::Plan};
use crate::{Outcome, figures::heading, launcher::is_interrupted};

/// How much to measure.
#[derive(Debug, Clone)]
pub struct Amount {
    /// The numbers of agents.
    pub agents: Vec<usize>,
    /// Rounds of each.
    pub rounds: usize,
    /// Seconds of the idle measurement.
    pub idle_secs: u64,
    /// How often launchers rendezvous.
    pub meetings: usize,
    /// Seconds for which a watched job stays, to look at its page.
    pub hold_secs: u64,
}

pub use meeting::measure as meeting;

/// One line about what is measured.
///
/// # Errors
/// There is no master.
pub fn about() -> Outcome<String> {
    Ok(format!("{}; {}", master::program()?.display(), files::about()?))
}

/// Measures many agents against one master.
///
/// # Errors
/// Nothing can be measured at all. A case that fails is printed as failed.
pub fn agents(amount: &Amount) -> Outcome<()> {
    let program = master::program()?;
    let open_files = files::raise()?;
    let mut measured: [Vec<Measured>; 2] = [Vec::new(), Vec::new()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for &agents in &amount.agents {
        if let Some(why) = open_files.missing_for(agents) {
            heading(&format!("{agents} agents: skipped, {why}"))?;
            continue;
        }
        for (has_memory, measured) in [false, true].into_iter().zip(&mut measured) {
            let folder = Folder::new()?;
            let plan = Plan { program: program.clone(), agents, args: Vec::new(), log: folder.log() };
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

/// Measures what it costs to watch a job.
///
/// # Errors
/// A request or a round fails.
pub fn watching(amount: &Amount) -> Outcome<()> {
    let program = master::program()?;
    let open_files = files::raise()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for &agents in &amount.agents {
        if let Some(why) = open_files.missing_for(agents) {
            heading(&format!("{agents} agents: skipped, {why}"))?;
            continue;
        }
        let folder = Folder::new()?;
        let plan = Plan { program: program.clone(), agents, args: Vec::new(), log: folder.log() };
        let hold = Duration::from_secs(amount.hold_secs);
        runtime.block_on(watching::measure(&plan, amount.rounds, hold))?;
    }
    Ok(())
}

/// A directory on a disk, as a state directory is. Removed with the case.
#[derive(Debug)]
struct Folder(TempDir);

impl Folder {
    fn new() -> Outcome<Self> {
        Ok(Self(tempfile::Builder::new().prefix("dlrover-bench-").tempdir()?))
    }

    fn log(&self) -> PathBuf {
        self.0.path().join("log")
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }
}
