//! This node's accelerators, and the errors that their driver reports while workers run. Reported to the master in
//! the background; no worker waits for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Effect, WorkerGroup,
    share_watch::{ShareEffect, ShareWatch},
};
use crate::{ids::LocalRank, notice::Notice};
use diagnosis::gpus::{GpuUse, Inventory, Vendor, health, share::ShareTerms};

/// Samples without a single process of ours, before the user is notified that there is no use in them.
const IN_VAIN: u32 = 10;

/// What is known of the accelerators.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Accelerators {
    inventory: Option<Box<Inventory>>,
    is_asked: bool,
    is_watched: bool,
    /// The workers of the last assignment by their process ids.
    workers: BTreeMap<i32, LocalRank>,
    shares: ShareWatch,
    /// Samples without a process of ours, in a row.
    in_vain: u32,
}

impl Accelerators {
    /// Other workers follow.
    pub(super) fn assigned(&mut self) {
        self.workers.clear();
        self.shares = ShareWatch::default();
    }
}

impl WorkerGroup {
    /// Workers run: now there is time to query.
    pub(super) fn on_worker_started(&mut self, local_rank: LocalRank, pid: i32) -> Vec<Effect> {
        self.accelerators.workers.insert(pid, local_rank);
        if !self.limits.has_accelerators || self.accelerators.is_asked {
            return self.watch().into_iter().collect();
        }
        self.accelerators.is_asked = true;
        vec![Effect::TakeInventory]
    }

    pub(super) fn on_inventory_taken(&mut self, mut inventory: Box<Inventory>) -> Vec<Effect> {
        if let Some(before) = &self.accelerators.inventory {
            inventory.keep_xids(before);
        }
        self.accelerators.is_asked = true;
        self.accelerators.inventory = Some(inventory);
        let watch = if self.has_workers() { self.watch() } else { None };
        self.report_inventory().into_iter().chain(watch).collect()
    }

    /// Each error is reported, many of one kind less and less often. Those of accelerators that other jobs on this host
    /// have go into the inventory only.
    pub(super) fn on_gpu_error(&mut self, gpu: u32, code: u64) -> Vec<Effect> {
        let Some(inventory) = &mut self.accelerators.inventory else { return Vec::new() };
        if !inventory.note_xid(gpu, code) {
            return Vec::new();
        }
        let Some(device) = inventory.gpus.iter().find(|it| it.index == gpu) else { return Vec::new() };
        let count = device.xids.iter().find(|xid| xid.code == code).map_or(0, |xid| xid.count);
        if !count.is_power_of_two() {
            return Vec::new();
        }
        let is_ours = match self.limits.visible_accelerators.as_deref() {
            // Which accelerator a slice (`MIG-...`) is of is not known.
            Some(list) if !list.contains("MIG-") => {
                health::visible(inventory, Some(list)).iter().any(|it| it.index == gpu)
            }
            _ => true,
        };
        let notice = Notice::GpuError { gpu: device.label(), code, count };
        let tell = is_ours.then_some(Effect::Notify(notice));
        tell.into_iter().chain(self.report_inventory()).collect()
    }

    /// Reported when it is known, and again when the stream is back: before the node joins, so that a check's report
    /// has it.
    pub(super) fn report_inventory(&self) -> Option<Effect> {
        let inventory = self.accelerators.inventory.as_ref().filter(|_| self.link.is_up())?;
        Some(Effect::ReportInventory { inventory: inventory.clone() })
    }

    /// Whether the workers keep to their share, where they have one.
    pub(super) fn on_gpu_memory(&mut self, uses: &[GpuUse]) -> Vec<Effect> {
        let Some(ShareTerms { share, workers, enforces }) = self.limits.gpu_share else { return Vec::new() };
        if !self.has_workers() {
            return Vec::new();
        }
        let Accelerators { inventory, workers: pids, shares, in_vain, .. } = &mut self.accelerators;
        let gpus = inventory.as_ref().map_or(&[][..], |inventory| &inventory.gpus);
        // A container that shows one device shows the shared one, whatever its number on the host is.
        let device =
            if let [gpu] = gpus { Some(gpu) } else { gpus.iter().find(|gpu| gpu.index == share.device) };
        let total = device.and_then(|gpu| gpu.memory_total).unwrap_or_else(|| share.presumed_total());
        let limit = share.bytes_of_each(total, workers);
        let index = device.map_or(share.device, |gpu| gpu.index);
        let mut used: BTreeMap<LocalRank, u64> = BTreeMap::new();
        for it in uses.iter().filter(|it| it.gpu == index) {
            if let Some(rank) = it.lineage.iter().find_map(|pid| pids.get(pid)) {
                let sum = used.entry(*rank).or_default();
                *sum = sum.saturating_add(it.memory);
            }
        }
        let is_in_vain = used.is_empty() && uses.iter().any(|it| it.gpu == index);
        *in_vain = if is_in_vain { in_vain.saturating_add(1) } else { 0 };
        if *in_vain == IN_VAIN {
            return vec![Effect::Notify(Notice::GpuMemoryUnseen)];
        }
        let used: Vec<(LocalRank, u64)> = used.into_iter().collect();
        let mut effects = Vec::new();
        for effect in shares.sampled(limit, enforces, &used) {
            let (local_rank, used, is_killed) = match effect {
                ShareEffect::Warn { local_rank, used } => (local_rank, used, false),
                ShareEffect::Stop { local_rank, used } => (local_rank, used, true),
            };
            effects.push(Effect::Notify(Notice::GpuShareExceeded { local_rank, used, limit, is_killed }));
            effects.extend(is_killed.then_some(Effect::KillWorker { local_rank }));
        }
        effects
    }

    /// Only NVIDIA's driver reports errors.
    fn watch(&mut self) -> Option<Effect> {
        let Accelerators { inventory, is_watched, .. } = &mut self.accelerators;
        let has_any = inventory.as_ref().is_some_and(|it| it.vendor == Some(Vendor::Nvidia));
        let and_memory = self.limits.gpu_share.is_some();
        (has_any && !std::mem::replace(is_watched, has_any)).then_some(Effect::WatchGpus { and_memory })
    }
}
