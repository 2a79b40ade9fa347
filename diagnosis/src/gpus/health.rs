//! Whether a node's accelerators can be used for the job, by their driver's report. The first step of the self-test:
//! nothing is computed here and no other node is asked.
//!
//! An accelerator is broken if it cannot be opened, has fallen off the bus, or has errors in its memory that only a
//! reset or a replacement ends: uncorrected ECC errors since the driver was loaded, a row that waits for its
//! replacement, no spare row left. NVIDIA's own fleet tool (DCGM) fails a device by these memory checks. It is busy
//! if other processes hold a part of its memory, and forbidden if this user or container may not open it: neither is
//! a fault, and neither is tainted.

use crate::counted::{counted, named_and_more};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Gpu, GpuTrouble, Inventory, NvLink, gigabytes, inventory::cut_short};
use crate::{
    gpu_topology::{Allowed, absent, allowed},
    network_check::{Component, LocalFault},
};

/// How long drivers may take to release the memory of our own dead workers. They do that after the process is gone.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// The default limit of memory in use, DLRover's own: 30 %.
pub const BUSY_PERMILLE: u32 = 300;

/// Between two queries: drivers do not report when memory is free again.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The most processes of a busy accelerator that are named.
const NAMED: usize = 3;

/// The job's requirements of a node's accelerators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuTerms {
    /// An accelerator is busy when more of its memory is in use than this, in thousandths. `None`: never, because the
    /// node has a share of an accelerator that others use too.
    pub busy_permille: Option<u32>,
    /// The number of accelerators that the node's workers take.
    pub needed: u32,
    /// `None`: all may be used.
    pub visible: Option<VisibleList>,
}

/// The user's own list of visible devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VisibleList {
    /// The variable that it comes from, such as `CUDA_VISIBLE_DEVICES`.
    pub variable: String,
    /// Its value.
    pub list: String,
}

/// The result of the health check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    Fit {
        /// What is worth knowing nevertheless.
        notes: Vec<String>,
    },
    Unfit(LocalFault),
    /// Too few are free: query again then.
    Recheck {
        /// From now.
        after: Duration,
    },
}

/// Decides by the inventory whether the job can use the accelerators, `waited` after the first query.
#[must_use]
pub fn judge(inventory: &Inventory, terms: &GpuTerms, waited: Duration) -> Health {
    let list = terms.visible.as_ref().map(|visible| visible.list.as_str());
    let absent = absent(list, &ids(inventory));
    let unanswered = inventory.hangs_at.as_deref().map(cut_short);
    // The others are unknown; nothing is missing from a list that is known completely.
    let is_known = absent == 0 && list.is_some_and(|list| !list.contains("MIG-"));
    if let (Some(reason), false) = (&unanswered, is_known) {
        return Health::Unfit(LocalFault::unanswered(inventory.hangs_at.as_deref(), reason));
    }
    let visible = visible(inventory, list);
    let shown = visible.len();
    let mut broken = visible.iter().filter_map(|gpu| Some((gpu.index, what_is_broken(gpu)?)));
    if let Some((index, mut reason)) = broken.next() {
        let others: Vec<String> = broken.map(|(index, reason)| format!("GPU {index}: {reason}")).collect();
        if !others.is_empty() {
            reason = format!("{reason}; {}", others.join("; "));
        }
        return Health::Unfit(LocalFault::new(format!("GPU {index}"), reason));
    }
    // A host without any computes on its processors, whatever the list contains.
    let absent = if inventory.gpus.is_empty() { 0 } else { absent };
    let needed = (visible.len() + absent).min(terms.needed as usize);
    let (denied, visible): (Vec<&Gpu>, Vec<&Gpu>) =
        visible.into_iter().partition(|gpu| gpu.trouble == Some(GpuTrouble::NotPermitted));
    let denied = denied.iter().map(|gpu| format!("GPU {}: permission denied", gpu.index));
    let absent = terms.visible.as_ref().filter(|_| absent > 0).map(|visible| not_here(visible, shown));
    let denied: Vec<String> = denied.chain(absent).collect();
    if visible.len() < needed {
        let usable = visible.len();
        let reason =
            format!("{} needed, {usable} accessible: {}", counted(needed, "accelerator"), denied.join("; "));
        return Health::Unfit(LocalFault { component: Component::GpuPermission, reason });
    }
    let is_busy = |gpu: &&Gpu| terms.busy_permille.is_some_and(|permille| is_busy(gpu, permille));
    let busy: Vec<&Gpu> = visible.iter().copied().filter(is_busy).collect();
    let free = visible.len() - busy.len();
    let in_use: Vec<String> = busy.iter().map(|gpu| taken(gpu)).collect();
    if free >= needed {
        let links = visible.iter().filter_map(|gpu| dead_links(gpu));
        return Health::Fit {
            notes: denied.into_iter().chain(in_use).chain(links).chain(unanswered).collect(),
        };
    }
    if waited < BUSY_TIMEOUT {
        return Health::Recheck { after: LOOK_EVERY.min(BUSY_TIMEOUT - waited) };
    }
    let reason = format!(
        "{} needed, {free} of {} free: {}",
        counted(needed, "accelerator"),
        visible.len(),
        in_use.join("; ")
    );
    Health::Unfit(LocalFault { component: Component::GpuBusy, reason })
}

/// The accelerators that workers will see, as [`allowed`] reads the list. Numbers count as places on the bus. A list
/// of slices (`MIG-...`) shows none that could be checked.
#[must_use]
pub fn visible<'a>(inventory: &'a Inventory, list: Option<&str>) -> Vec<&'a Gpu> {
    match allowed(list, &ids(inventory)) {
        Allowed::All => inventory.gpus.iter().collect(),
        Allowed::These(places) => places.into_iter().filter_map(|place| inventory.gpus.get(place)).collect(),
        Allowed::Untouched { .. } => Vec::new(),
    }
}

/// The ids that a list may have. A broken accelerator may have none; for a healthy one without, the empty id matches
/// no entry.
fn ids(inventory: &Inventory) -> Vec<Option<String>> {
    let id = |gpu: &Gpu| gpu.uuid.clone().or_else(|| gpu.trouble.is_none().then(String::new));
    inventory.gpus.iter().map(id).collect()
}

/// `CUDA_VISIBLE_DEVICES=0,GPU-90: no device GPU-90 here; this and all later entries are ignored (1 in all)`.
fn not_here(VisibleList { variable, list }: &VisibleList, shown: usize) -> String {
    let first = list.split(',').map(str::trim).nth(shown).unwrap_or_default();
    let first: String = first.chars().take(60).collect();
    let all: String = list.chars().take(120).collect();
    let ignored = list.split(',').skip(shown).filter(|entry| !entry.trim().is_empty()).count();
    format!(
        "{variable}={all}: no device {first} here; this and all later entries are ignored ({ignored} in all)"
    )
}

/// More of its memory is in use than `busy_permille` thousandths. Does not apply to one that is split into slices.
#[must_use]
pub fn is_busy(gpu: &Gpu, busy_permille: u32) -> bool {
    !gpu.is_mig && gpu.used_permille() > Some(u64::from(busy_permille))
}

/// Why an accelerator is broken; `None` if it is not.
#[must_use]
pub fn what_is_broken(gpu: &Gpu) -> Option<String> {
    match &gpu.trouble {
        Some(GpuTrouble::Lost) => return Some("it has fallen off the bus".into()),
        Some(GpuTrouble::CannotOpen(reason)) => {
            return Some(format!("the driver cannot open it: {reason}"));
        }
        Some(GpuTrouble::NotPermitted) | None => {}
    }
    let remapped = gpu.remapped.unwrap_or_default();
    if remapped.failed {
        return Some("row remapping failed: no spare memory row is left".into());
    }
    if remapped.pending {
        return Some("a memory row remapping is pending: reset the device".into());
    }
    let errors = gpu.ecc_uncorrected.filter(|errors| *errors > 0)?;
    Some(counted(errors, "uncorrectable ECC error") + " in its memory")
}

/// Why an accelerator cannot be used: it is broken, or not for this user.
#[must_use]
pub fn why_unusable(gpu: &Gpu) -> Option<String> {
    let forbidden = (gpu.trouble == Some(GpuTrouble::NotPermitted)).then(|| "permission denied".to_owned());
    what_is_broken(gpu).or(forbidden)
}

/// `GPU 2: 61.0 of 80.0 GB are in use by process 4711`.
fn taken(gpu: &Gpu) -> String {
    let (used, total) = (gpu.memory_used.unwrap_or_default(), gpu.memory_total.unwrap_or_default());
    let mut message = format!("GPU {}: {} of {} GB are in use", gpu.index, gigabytes(used), gigabytes(total));
    if !gpu.processes.is_empty() {
        let pids = gpu.processes.iter().take(NAMED).map(|process| process.pid);
        let noun = if gpu.processes.len() == 1 { "process" } else { "processes" };
        message = format!("{message} by {noun} {}", named_and_more(pids, gpu.processes.len()));
    }
    message
}

/// Links that are down while others are up. Where none is up, none is connected.
fn dead_links(gpu: &Gpu) -> Option<String> {
    let (up, down): (Vec<&NvLink>, Vec<&NvLink>) = gpu.nvlinks.iter().partition(|link| link.is_active);
    let numbers: Vec<String> = down.iter().map(|link| link.number.to_string()).collect();
    (!up.is_empty() && !down.is_empty()).then(|| {
        let (noun, verb) = if down.len() == 1 { ("NVLink", "is") } else { ("NVLinks", "are") };
        let (numbers, count, all) = (numbers.join(", "), down.len(), gpu.nvlinks.len());
        format!("GPU {}: {noun} {numbers} {verb} down ({count} of {all})", gpu.index)
    })
}

#[cfg(test)]
mod tests;
