//! The inventory of a node's accelerators: what drivers and vendors' tools say of them, as numbers.
//!
//! All of it is gathered in a process of its own, which tells what it has found after each accelerator: a driver that
//! hangs at the fourth does not hide the first three. A node has accelerators of one vendor:
//! once some are found nobody else is asked.

mod host;
pub(super) mod metax;
pub(super) mod nvidia_smi;
mod nvml;
pub(super) mod table;
mod tool;
pub(super) mod watch;

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    time::Duration,
};

use diagnosis::{
    gpus::{Inventory, Vendor},
    network_check::LocalFault,
};
use serde::{Deserialize, Serialize};

pub use self::watch::{GpuWord, watch_gpus};
use super::{
    GRACE, Helper, bus,
    child::Voice,
    handle::{Heard, Limits, Listeners, hear},
    process,
    wire::{End, Task, Word},
};

/// How an inventory is gathered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuPlan {
    /// It is cut short then; what is known by that time counts.
    pub deadline: Duration,
    /// Where `sys` and `dev` are: `/`, but for tests.
    pub root: PathBuf,
    /// Where vendors' tools are looked for, in the form of `PATH`; empty: only where a driver's package puts them.
    pub path: OsString,
    /// How its process is started.
    pub helper: Helper,
}

impl Default for GpuPlan {
    /// Two seconds, on this machine, without tools.
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(2),
            root: PathBuf::from("/"),
            path: OsString::new(),
            helper: Helper::default(),
        }
    }
}

/// What the process is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct GpuTask {
    root: PathBuf,
    path: OsString,
}

/// Gathers the inventory of this node, on a tokio runtime. Never fails: what cannot be found out is a note in it.
pub async fn take_inventory(plan: GpuPlan) -> Inventory {
    let task = Task::Gpus(GpuTask { root: plan.root.clone(), path: plan.path.clone() });
    let started = match process::start(&plan.helper, &task, None) {
        Ok(started) => started,
        Err(error) => return Inventory { notes: vec![rules::chain(&error)], ..Inventory::default() },
    };
    let limits = Limits { cancel: None, deadline: Some(plan.deadline), grace: GRACE };
    let heard = hear(started, limits, Listeners::default()).await;
    from_heard(heard, plan.deadline).bounded()
}

/// The same where there is no runtime: one is made for it, on this thread.
#[must_use]
pub fn inventory_now(plan: GpuPlan) -> Inventory {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(take_inventory(plan)),
        Err(error) => Inventory { notes: vec![format!("cannot ask: {error}")], ..Inventory::default() },
    }
}

fn from_heard(heard: Heard, deadline: Duration) -> Inventory {
    if let Some(End::Inventory(inventory)) = heard.end {
        return *inventory;
    }
    let why = heard.silence(deadline);
    let at = heard.at.unwrap_or_else(|| LocalFault::PROBE.into());
    let mut inventory = heard.so_far.map_or_else(Inventory::default, |so_far| *so_far);
    inventory.notes.push(why);
    inventory.hangs_at = Some(at);
    inventory
}

/// Where accelerators of one kind are asked for.
trait Source {
    /// Adds what there is. Nothing there is a note at most.
    fn take(&self, taking: &mut Taking<'_>);
}

/// An inventory in the making, and who hears of it meanwhile.
struct Taking<'a> {
    inventory: Inventory,
    told: &'a mut dyn FnMut(Word),
}

impl Taking<'_> {
    /// The next thing that is touched, which may hang.
    fn at(&mut self, what: impl Into<String>) {
        (self.told)(Word::At(what.into()));
    }

    /// Something is known that is worth keeping if the rest hangs.
    fn keep(&mut self) {
        (self.told)(Word::SoFar(Box::new(self.inventory.clone())));
    }

    fn note(&mut self, words: impl Into<String>) {
        self.inventory.notes.push(words.into());
    }

    /// The program of this name in one of these folders.
    fn find(&mut self, path: &OsStr, name: &str) -> Option<PathBuf> {
        // A folder may be that of a server which is gone.
        self.at(format!("the search for {name} on PATH"));
        tool::find(path, name)
    }

    /// What is read from a tool's answer. A tool that gives none, or one that cannot be read, is a note.
    fn ask<T>(
        &mut self,
        tool: &Path,
        arguments: &[&str],
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let question = tool::words(tool, arguments);
        self.at(question.as_str());
        let answer = tool::ask(tool, arguments).map_err(|error| error.to_string());
        answer.and_then(|text| read(&text)).map_err(|why| self.note(format!("{question}: {why}"))).ok()
    }

    fn found(&mut self, vendor: Vendor) {
        self.inventory.vendor = Some(vendor);
    }
}

/// In the probe's process.
pub(super) fn gather(task: &GpuTask, voice: &Voice) -> Inventory {
    let GpuTask { root, path } = task;
    let sources: [&dyn Source; 4] = [
        &host::Host { root: root.clone() },
        &nvml::Nvml { root: root.clone() },
        &metax::Metax { root: root.clone(), path: path.clone() },
        &nvidia_smi::NvidiaSmi { root: root.clone(), path: path.clone() },
    ];
    let mut inventory = Inventory::default();
    if let Err(error) = tool::take_tools_along(voice.clone()) {
        inventory.notes.push(format!("what a vendor's tool starts may outlive it: {error}"));
    }
    let inventory = take(&sources, inventory, &mut |word| voice.say(&word));
    tool::clear_away();
    inventory
}

fn take(sources: &[&dyn Source], inventory: Inventory, told: &mut dyn FnMut(Word)) -> Inventory {
    let mut taking = Taking { inventory, told };
    for source in sources {
        source.take(&mut taking);
        taking.keep();
    }
    taking.inventory
}

#[cfg(test)]
mod tests {
    use diagnosis::gpus::Gpu;

    use super::*;

    struct Recorded(Inventory);

    impl Source for Recorded {
        fn take(&self, taking: &mut Taking<'_>) {
            for gpu in &self.0.gpus {
                taking.at(gpu.label());
                taking.inventory.gpus.push(gpu.clone());
                taking.keep();
            }
        }
    }

    #[test]
    fn a_recorded_node_is_told_step_by_step() {
        let gpu = |index| Gpu { index, ..Gpu::default() };
        let recorded = Recorded(Inventory { gpus: vec![gpu(0), gpu(1)], ..Inventory::default() });
        let mut words = Vec::new();
        let inventory = take(&[&recorded], Inventory::default(), &mut |word| words.push(word));
        assert_eq!(inventory.gpus, recorded.0.gpus);
        let seen: Vec<String> = words
            .iter()
            .map(|word| match word {
                Word::At(at) => at.clone(),
                Word::SoFar(so_far) => so_far.gpus.len().to_string(),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(seen, ["gpu 0", "1", "gpu 1", "2", "2"]);
    }
}
