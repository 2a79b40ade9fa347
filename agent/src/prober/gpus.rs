//! The accelerators of this node: their inventory, whether they are fit, and what their driver tells while workers run.

use std::{collections::BTreeMap, time::Duration};

use diagnosis::{
    gpus::{
        Inventory,
        health::{GpuTerms, Health, judge},
    },
    network_check::LocalFault,
};
use rules::worker_group::Event;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tracing::debug;

use super::{CLOSE, Prober};
use probes::{GpuMessage, GpuPlan, watch_gpus};

/// Words of the driver that may wait to be told.
const WORDS: usize = 16;

/// Somebody listens to the driver.
#[derive(Debug)]
pub(super) struct Watch {
    cancel: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Ends it, and waits for that within bounds.
    pub(super) async fn close(self) {
        self.cancel.send_replace(true);
        if timeout(CLOSE, self.task).await.is_err() {
            debug!("the listener to the driver does not end; it dies with this launcher");
        }
    }
}

impl Prober {
    /// Finds out what the accelerators are. The end is [`Event::InventoryTaken`].
    pub fn take_inventory<E: From<Event> + Send + 'static>(&self, events: mpsc::Sender<E>) {
        let plan = self.gpu_plan();
        tokio::spawn(async move {
            let inventory = Box::new(probes::take_inventory(plan).await);
            let _gone = events.send(Event::InventoryTaken { inventory }.into()).await;
        });
    }

    /// Listens to the driver for as long as this prober lives. Each word is an [`Event::GpuError`], each look at who
    /// holds memory an [`Event::GpuMemory`].
    pub fn watch_gpus<E: From<Event> + Send + 'static>(&mut self, and_memory: bool, events: mpsc::Sender<E>) {
        let (told, mut words) = mpsc::channel(WORDS);
        let (cancel, cancelled) = watch::channel(false);
        let listening = watch_gpus(self.helper.clone(), and_memory, told, cancelled);
        let task = tokio::spawn(async move {
            tokio::pin!(listening);
            loop {
                tokio::select! {
                    ended = &mut listening => {
                        // Without it training goes on as well.
                        debug!(ended, "the listener to the accelerators' driver has ended");
                        return;
                    }
                    Some(word) = words.recv() => {
                        let event = match word {
                            GpuMessage::Error { gpu, code } => Event::GpuError { gpu, code },
                            GpuMessage::Memory(uses) => Event::GpuMemory { uses },
                        };
                        let _gone = events.send(event.into()).await;
                    }
                }
            }
        });
        self.watch = Some(Watch { cancel, task });
    }
}

/// Looks until the accelerators are fit, or are known not to be.
///
/// # Errors
/// What is wrong with them.
pub(super) async fn fitness(plan: GpuPlan, terms: &GpuTerms) -> (Inventory, Result<Vec<String>, LocalFault>) {
    let began = Instant::now();
    let mut waited = Duration::ZERO;
    loop {
        let inventory = probes::take_inventory(plan.clone()).await;
        match judge(&inventory, terms, waited) {
            Health::Fit { notes } => return (inventory, Ok(notes)),
            Health::Unfit(fault) => return (inventory, Err(fault)),
            Health::Recheck { after } => {
                sleep(after).await;
                waited = began.elapsed();
            }
        }
    }
}

/// The numbers of accelerators by their places on the bus.
pub(super) fn places(inventory: &Inventory) -> BTreeMap<String, u32> {
    inventory.gpus.iter().filter_map(|gpu| Some((gpu.pci.clone()?, gpu.index))).collect()
}
