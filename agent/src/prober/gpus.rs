//! The accelerators of this node: their inventory, their health, and events of their driver while workers run.

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

/// Events of the driver that may be queued.
const QUEUE: usize = 16;

/// The watch over the driver.
#[derive(Debug)]
pub(super) struct Watch {
    cancel: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Ends it and waits for that, with a timeout.
    pub(super) async fn close(self) {
        self.cancel.send_replace(true);
        if timeout(CLOSE, self.task).await.is_err() {
            debug!("the listener to the driver does not end; it dies with this launcher");
        }
    }
}

impl Prober {
    /// Takes the inventory. It ends with [`Event::InventoryTaken`].
    pub fn take_inventory<E: From<Event> + Send + 'static>(&self, events: mpsc::Sender<E>) {
        let plan = self.gpu_plan();
        tokio::spawn(async move {
            let inventory = Box::new(probes::take_inventory(plan).await);
            let _gone = events.send(Event::InventoryTaken { inventory }.into()).await;
        });
    }

    /// Watches the driver for as long as this prober lives. Each error is an [`Event::GpuError`], each report of
    /// memory in use an [`Event::GpuMemory`].
    pub fn watch_gpus<E: From<Event> + Send + 'static>(&mut self, and_memory: bool, events: mpsc::Sender<E>) {
        let (messages, mut received) = mpsc::channel(QUEUE);
        let (cancel, cancelled) = watch::channel(false);
        let watching = watch_gpus(self.program.clone(), and_memory, messages, cancelled);
        let task = tokio::spawn(async move {
            tokio::pin!(watching);
            loop {
                tokio::select! {
                    ended = &mut watching => {
                        // Training continues without it.
                        debug!(ended, "the driver of the accelerators is no longer watched for errors; training continues");
                        return;
                    }
                    Some(message) = received.recv() => {
                        let event = match message {
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

/// Waits until the accelerators are healthy, or known not to be.
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

/// The numbers of accelerators by PCI address.
pub(super) fn places(inventory: &Inventory) -> BTreeMap<String, u32> {
    inventory.gpus.iter().filter_map(|gpu| Some((gpu.pci.clone()?, gpu.index))).collect()
}
