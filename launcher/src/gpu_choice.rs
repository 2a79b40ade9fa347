//! Which accelerators workers are given (`--gpu-select`), and in which order they see them.
//!
//! * [`inventory`]: what is known of them: the matrix, their ids, the memory that is taken.
//! * [`locks`]: no two launchers on one host choose the same.
//!
//! What is best is decided in [`diagnosis::gpu_topology`]. With `--gpu-select=first`, the default, nothing here runs.

pub mod inventory;
pub(crate) mod locks;

use std::{collections::BTreeMap, ffi::OsString, io};

use diagnosis::{
    gpu_topology::{Allowed, CannotArrange, GpuRequest, GpuSet, Objective, allowed, arrange},
    gpus::{
        Vendor,
        health::{is_busy, why_unusable},
    },
};

use self::{
    inventory::{Gpu, Inventory},
    locks::{LockError, Locks},
};
use crate::{environment::Environment, host::Host};

/// What `--gpu-select` selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Select {
    /// Nothing.
    First,
    /// The best ones.
    Best(Objective),
    /// These, as the user names them.
    List(Vec<String>),
}

impl Select {
    /// Parses `--gpu-select`. Of a list every entry is a number or an id.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "first" => Some(Self::First),
            "topology" => Some(Self::Best(Objective::Topology)),
            "pack" => Some(Self::Best(Objective::Pack)),
            list => {
                let entries: Vec<String> = list.split(',').map(|entry| entry.trim().to_owned()).collect();
                let is_id = |id: &str| id.bytes().all(|it| it.is_ascii_alphanumeric() || b"-/".contains(&it));
                let is_entry = |entry: &String| match entry.parse::<u16>() {
                    Ok(_) => entry.bytes().all(|it| it.is_ascii_digit()),
                    Err(_) => (entry.starts_with("GPU-") || entry.starts_with("MIG-")) && is_id(entry),
                };
                entries.iter().all(is_entry).then_some(Self::List(entries))
            }
        }
    }
}

/// The chosen accelerators.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    /// Variables for all workers alike; none: theirs stay as they are.
    pub(crate) variables: Vec<(&'static str, OsString)>,
    /// Held as long as the launcher lives.
    pub(crate) locks: Locks,
    /// Messages, a line each.
    pub(crate) messages: Vec<String>,
}

/// Why a user's own list cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadList {
    #[error("it names {} for {workers} workers; name at least one for \
        each", diagnosis::counted::counted(*.named, "GPU"))]
    TooFew { named: usize, workers: usize },
    #[error("{entry} is listed twice")]
    Twice { entry: String },
    #[error("this node has no GPU {entry} (GPUs found: {size})")]
    Unknown { entry: String, size: usize },
    #[error("{entry} is not visible with {variable}={list}")]
    NotAllowed { entry: String, variable: &'static str, list: String },
    #[error("{entry} cannot be used: {why}")]
    Unusable { entry: String, why: String },
    #[error("GPU {entry} is taken by another launcher on this host")]
    Taken { entry: String },
}

/// The variables that say which accelerators a program sees. The last one that is set is the user's own list.
const fn names(vendor: Vendor) -> &'static [&'static str] {
    match vendor {
        Vendor::Nvidia => &["CUDA_VISIBLE_DEVICES"],
        Vendor::Metax => &["CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES"],
    }
}

/// The user's own list and its variable.
fn own_list(env: Environment<'_>, vendor: Vendor) -> Option<(&'static str, String)> {
    let listed = |name: &'static str| env.get(name).map(|list| (name, list.to_string_lossy().into_owned()));
    names(vendor).iter().rev().find_map(|name| listed(name))
}

fn ids(gpus: &[Gpu]) -> Vec<Option<String>> {
    gpus.iter().map(|gpu| gpu.id.clone()).collect()
}

/// `0,GPU-...`, as the variables have it.
fn variables(vendor: Vendor, entries: &[String]) -> Vec<(&'static str, OsString)> {
    names(vendor).iter().map(|name| (*name, entries.join(",").into())).collect()
}

/// Those that others use: they hold more of their memory than these thousandths.
pub fn busy(gpus: &[Gpu], busy_permille: u32) -> GpuSet {
    (0..gpus.len()).filter(|place| is_busy(&gpus[*place].known, busy_permille)).collect()
}

/// Those that cannot be used at all.
pub fn broken(gpus: &[Gpu]) -> GpuSet {
    (0..gpus.len()).filter(|place| why_unusable(&gpus[*place].known).is_some()).collect()
}

/// Chooses the best `wanted` GPUs, which workers see first. When they cannot be determined nothing changes, and
/// a message has the reason.
pub(crate) fn best(
    host: &dyn Host,
    env: Environment<'_>,
    inventory: &Inventory,
    request: GpuRequest,
    busy_permille: u32,
) -> Result<Chosen, String> {
    let Inventory { matrix, gpus, vendor, .. } = inventory;
    let mut allowed: Vec<usize> = match own_list(env, *vendor) {
        None => (0..gpus.len()).collect(),
        Some((name, list)) => match allowed(Some(&list), &ids(gpus)) {
            Allowed::All => (0..gpus.len()).collect(),
            Allowed::These(these) if these.is_empty() => return Err(format!("{name}={list} selects no GPU")),
            Allowed::These(these) => these,
            Allowed::Untouched { entry } => {
                return Err(format!("{name} has slices of GPUs ({entry}), which have no links of their own"));
            }
        },
    };
    let mut chosen = Chosen::default();
    let broken = allowed.iter().filter_map(|place| Some((place, why_unusable(&gpus[*place].known)?)));
    chosen.messages.extend(broken.map(|(place, why)| format!("GPU {place} is not used: {why}")));
    let left_out = chosen.messages.iter().map(|words| format!("; {words}")).collect::<String>();
    allowed.retain(|place| why_unusable(&gpus[*place].known).is_none());
    // All that are allowed are locked briefly, to find those that other launchers hold.
    let _choice_lock = host.lock_gpu_choice(env);
    let (mut held, mut taken) = (BTreeMap::new(), GpuSet::default());
    for place in &allowed {
        match host.lock_gpu(env, &gpus[*place].lock) {
            Ok(Some(lock)) => drop(held.insert(*place, lock)),
            Ok(None) => taken = taken.or([*place].into_iter().collect()),
            Err(why) => {
                chosen.messages.push(cannot_lock(&why));
                break;
            }
        }
    }
    let arranged = arrange(matrix, request, &allowed, busy(gpus, busy_permille), taken)
        .map_err(|error: CannotArrange| format!("{error}{left_out}"))?;
    let mine = arranged.order.iter().take(arranged.chosen);
    chosen.locks = mine.filter_map(|place| held.remove(place)).collect();
    let entries: Vec<String> = arranged.order.iter().filter_map(|place| gpus[*place].id.clone()).collect();
    chosen.variables = variables(*vendor, &entries);
    chosen.messages.push(arranged.message);
    Ok(chosen)
}

fn cannot_lock(why: &io::Error) -> String {
    format!("GPUs cannot be locked, so another launcher on this host may choose the same ones: {why}")
}

/// Whether the user's own list has no such entry, by its text alone: numbers are compared with numbers, ids with ids. A
/// list that names GPUs in another way too may have it.
fn is_ruled_out(list: &str, entry: &str) -> bool {
    let kind = |entry: &str| match entry.parse::<u32>() {
        Ok(_) => Some("a number"),
        Err(_) => ["GPU-", "MIG-"].into_iter().find(|prefix| entry.starts_with(prefix)),
    };
    let is_same = |own: &str| match (own.parse::<u32>(), entry.parse::<u32>()) {
        (Ok(own), Ok(entry)) => own == entry,
        (Err(_), Err(_)) => own.starts_with(entry) || entry.starts_with(own),
        _ => false,
    };
    let mut shown = list.split(',').map(str::trim).take_while(|own| kind(own).is_some());
    shown.all(|own| kind(own) == kind(entry) && !is_same(own))
}

/// The user's own choice.
pub(crate) fn listed(
    host: &dyn Host,
    env: Environment<'_>,
    (gpus, vendor): (&[Gpu], Vendor),
    entries: &[String],
    wanted: usize,
    busy_permille: u32,
) -> Result<Chosen, BadList> {
    if entries.len() < wanted {
        return Err(BadList::TooFew { named: entries.len(), workers: wanted });
    }
    let mut chosen = Chosen::default();
    // Slices, and GPUs of which nothing is known, are not checked beyond their text.
    let own = own_list(env, vendor);
    if gpus.is_empty() || entries.iter().any(|entry| entry.starts_with("MIG-")) {
        if let Some(twice) =
            entries.iter().enumerate().find(|(place, entry)| entries[..*place].contains(entry))
        {
            return Err(BadList::Twice { entry: twice.1.clone() });
        }
        if let Some((variable, list)) = &own
            && let Some(entry) = entries.iter().find(|entry| is_ruled_out(list, entry))
        {
            return Err(BadList::NotAllowed { entry: entry.clone(), variable, list: list.clone() });
        }
        if gpus.is_empty() {
            let unchecked = "used without a check: this node's GPUs are unknown (dlrover-diag gpus says why)";
            chosen.messages.push(unchecked.to_owned());
        }
        chosen.variables = variables(vendor, entries);
        return Ok(chosen);
    }
    let mut places: Vec<usize> = Vec::new();
    for entry in entries {
        let place = match allowed(Some(entry), &ids(gpus)) {
            Allowed::These(place) => place.first().copied(),
            _ => None,
        };
        let place = place.ok_or_else(|| BadList::Unknown { entry: entry.clone(), size: gpus.len() })?;
        if places.contains(&place) {
            return Err(BadList::Twice { entry: entry.clone() });
        }
        if let Some((variable, list)) = &own
            && matches!(allowed(Some(list), &ids(gpus)), Allowed::These(these) if !these.contains(&place))
        {
            return Err(BadList::NotAllowed { entry: entry.clone(), variable, list: list.clone() });
        }
        // A list ends at one that the driver does not open, and hides all behind it.
        if let Some(why) = why_unusable(&gpus[place].known) {
            return Err(BadList::Unusable { entry: entry.clone(), why });
        }
        places.push(place);
    }
    let _choice_lock = host.lock_gpu_choice(env);
    match Locks::take(host, env, places.iter().map(|place| (*place, gpus[*place].lock.as_str()))) {
        Ok(locks) => chosen.locks = locks,
        Err(LockError::HeldElsewhere { place }) => return Err(BadList::Taken { entry: place.to_string() }),
        Err(LockError::Failed(why)) => chosen.messages.push(cannot_lock(&why)),
    }
    for place in &places {
        if is_busy(&gpus[*place].known, busy_permille) {
            chosen.messages.push(format!(
                "GPU {place} is in use: other processes hold more than {} % of its memory",
                f64::from(busy_permille) / 10.0
            ));
        }
    }
    let entries: Vec<String> = places.iter().filter_map(|place| gpus[*place].id.clone()).collect();
    chosen.variables = variables(vendor, &entries);
    Ok(chosen)
}
