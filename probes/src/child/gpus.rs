//! In the probe's process: queries drivers and vendors' tools for the node's accelerators.

mod host;
pub(crate) mod metax;
pub(crate) mod nvidia_smi;
mod nvml;
pub(crate) mod table;
mod tool;
pub(super) mod watch;

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use diagnosis::gpus::{Inventory, Vendor};

use super::{Reporter, bus};
use crate::wire::{ProbeMessage, gpus::GpuTask};

/// A source of information on accelerators.
trait Source {
    /// Adds what it finds. That nothing was found is a note at most.
    fn take(&self, collector: &mut Collector<'_>);
}

/// An inventory in the making, and the function that reports its progress.
struct Collector<'a> {
    inventory: Inventory,
    subscribers: &'a mut dyn FnMut(ProbeMessage),
}

impl Collector<'_> {
    /// Reports the next step, which may hang.
    fn at(&mut self, what: impl Into<String>) {
        (self.subscribers)(ProbeMessage::At(what.into()));
    }

    /// Reports what is known so far, in case the rest hangs.
    fn keep(&mut self) {
        (self.subscribers)(ProbeMessage::Partial(Box::new(self.inventory.clone())));
    }

    fn note(&mut self, message: impl Into<String>) {
        self.inventory.notes.push(message.into());
    }

    /// Finds the program with this name in these directories.
    fn find(&mut self, path: &OsStr, name: &str) -> Option<PathBuf> {
        // A directory may be on a file server that is gone.
        self.at(format!("the search for {name} on PATH"));
        tool::find(path, name)
    }

    /// Runs a tool and parses its output. A failure of either is a note.
    fn ask<T>(
        &mut self,
        tool: &Path,
        arguments: &[&str],
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let question = tool::describe(tool, arguments);
        self.at(question.as_str());
        let answer = tool::ask(tool, arguments).map_err(|error| error.to_string());
        answer.and_then(|text| read(&text)).map_err(|why| self.note(format!("{question}: {why}"))).ok()
    }

    fn found(&mut self, vendor: Vendor) {
        self.inventory.vendor = Some(vendor);
    }
}

/// Gathers the inventory.
pub(super) fn gather(task: &GpuTask, reporter: &Reporter) -> Inventory {
    let GpuTask { root, path } = task;
    let sources: [&dyn Source; 4] = [
        &host::Host { root: root.clone() },
        &nvml::Nvml { root: root.clone() },
        &metax::Metax { root: root.clone(), path: path.clone() },
        &nvidia_smi::NvidiaSmi { root: root.clone(), path: path.clone() },
    ];
    let mut inventory = Inventory::default();
    if let Err(error) = tool::kill_tools_on_sigterm(reporter.clone()) {
        inventory
            .notes
            .push(format!("processes of a vendor's tool may keep running after the query: {error}"));
    }
    let inventory = take(&sources, inventory, &mut |message| reporter.send(&message));
    tool::kill_leftovers();
    inventory
}

fn take(
    sources: &[&dyn Source],
    inventory: Inventory,
    subscribers: &mut dyn FnMut(ProbeMessage),
) -> Inventory {
    let mut collector = Collector { inventory, subscribers };
    for source in sources {
        source.take(&mut collector);
        collector.keep();
    }
    collector.inventory
}

#[cfg(test)]
mod tests {
    use diagnosis::gpus::Gpu;

    use super::*;

    struct Recorded(Inventory);

    impl Source for Recorded {
        fn take(&self, collector: &mut Collector<'_>) {
            for gpu in &self.0.gpus {
                collector.at(gpu.label());
                collector.inventory.gpus.push(gpu.clone());
                collector.keep();
            }
        }
    }

    #[test]
    fn every_step_is_reported() {
        let gpu = |index| Gpu { index, ..Gpu::default() };
        let recorded = Recorded(Inventory { gpus: vec![gpu(0), gpu(1)], ..Inventory::default() });
        let mut messages = Vec::new();
        let inventory = take(&[&recorded], Inventory::default(), &mut |message| messages.push(message));
        assert_eq!(inventory.gpus, recorded.0.gpus);
        let seen: Vec<String> = messages
            .iter()
            .map(|message| match message {
                ProbeMessage::At(at) => at.clone(),
                ProbeMessage::Partial(partial) => partial.gpus.len().to_string(),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(seen, ["GPU 0", "1", "GPU 1", "2", "2"]);
    }
}
