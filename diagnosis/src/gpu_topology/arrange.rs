//! The devices that workers see: the chosen ones first, as a ring, then all others that are free.

use super::{BadMatrix, CannotChoose, GpuSet, MAX_GPUS, Matrix, Objective, choose};
use crate::counted::counted;

/// What to choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuRequest {
    pub objective: Objective,
    /// The number of workers.
    pub wanted: usize,
    /// Show no others.
    pub only: bool,
}

/// What the user's own list of visible devices allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// There is no list.
    All,
    /// The GPUs that a list names, by their numbers in the matrix, in its order. Empty when it shows none.
    These(Vec<usize>),
    /// Slices of devices (MIG), or ids that no device here has. The list is kept as it is.
    Untouched { entry: String },
}

/// A list of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arranged {
    /// By their numbers in the matrix: the chosen ones as a ring, then, unless only these are wanted, all others that
    /// are free, in the order in which the user has them.
    pub order: Vec<usize>,
    /// How many of it are chosen.
    pub chosen: usize,
    /// The choice and its reason, on one line.
    pub message: String,
}

/// Why there is no list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CannotArrange {
    /// Too few are left.
    #[error("{why}{}", left_out(*.busy, *.taken))]
    Choose {
        /// How many are missing.
        why: CannotChoose,
        /// Excluded, because other processes use them.
        busy: GpuSet,
        /// Excluded, because other launchers have chosen them.
        taken: GpuSet,
    },
    /// The table is invalid.
    #[error(transparent)]
    Matrix(#[from] BadMatrix),
}

/// Reads the user's own list (`CUDA_VISIBLE_DEVICES`) as the driver does: numbers, or prefixes of ids; up to the
/// first entry that matches no device; a duplicate empties the list. `ids` are the devices' own, in the order of the
/// matrix; `None` is a device that is too broken to report its id, and counts as the one that the list misses.
#[must_use]
pub fn allowed(list: Option<&str>, ids: &[Option<String>]) -> Allowed {
    let Some(list) = list else { return Allowed::All };
    let mut these = Vec::new();
    for entry in list.split(',').map(str::trim) {
        if entry.starts_with("MIG-") {
            return Allowed::Untouched { entry: shown(entry) };
        }
        let device = named(entry).and_then(|named| match named {
            Named::Number(number) => (number < ids.len()).then_some(number),
            Named::Id(id) => ids
                .iter()
                .position(|it| it.as_deref().is_some_and(|it| it.starts_with(id)))
                .or_else(|| (0..ids.len()).find(|it| ids[*it].is_none() && !these.contains(it))),
        });
        let Some(device) = device else { break };
        if these.contains(&device) {
            return Allowed::These(Vec::new());
        }
        these.push(device);
    }
    Allowed::These(these)
}

/// The number of entries that name a device and show none: the first without a match, and all after it. An entry that
/// names none (`-1`, `NoDevFiles`) ends a list on purpose.
#[must_use]
pub fn absent(list: Option<&str>, ids: &[Option<String>]) -> usize {
    match (list, allowed(list, ids)) {
        (Some(list), Allowed::These(these)) => {
            let entries = list.split(',').map(str::trim);
            let behind = entries.skip(these.len()).take_while(|entry| named(entry).is_some()).count();
            // A duplicate empties the list, and misses none.
            if these.is_empty() && is_shown(list, ids) { 0 } else { behind }
        }
        _ => 0,
    }
}

/// Whether the first entry names a device of this host.
fn is_shown(list: &str, ids: &[Option<String>]) -> bool {
    let first = list.split(',').next();
    matches!(allowed(first, ids), Allowed::These(these) if !these.is_empty())
}

/// The device of an entry.
enum Named<'a> {
    Number(usize),
    Id(&'a str),
}

fn named(entry: &str) -> Option<Named<'_>> {
    match entry.parse() {
        Ok(number) => Some(Named::Number(number)),
        Err(_) => entry.starts_with("GPU-").then_some(Named::Id(entry)),
    }
}

fn shown(entry: &str) -> String {
    entry.chars().take(60).collect()
}

/// Chooses among the allowed devices, without those that are busy or taken by another launcher.
///
/// # Errors
///
/// When too few are left.
pub fn arrange(
    matrix: &Matrix,
    request: GpuRequest,
    allowed: &[usize],
    busy: GpuSet,
    taken: GpuSet,
) -> Result<Arranged, CannotArrange> {
    let allowed_set: GpuSet = allowed.iter().copied().collect::<GpuSet>().and(GpuSet::first(matrix.size()));
    let (busy, taken) = (busy.and(allowed_set), taken.and(allowed_set).without(busy));
    let free = allowed_set.without(busy).without(taken);
    let choice = choose(matrix, free, request.wanted, request.objective)
        .map_err(|why| CannotArrange::Choose { why, busy, taken })?;
    let mut order = choice.ring.clone();
    if !request.only {
        let others = allowed.iter().filter(|gpu| free.contains(**gpu) && !choice.set.contains(**gpu));
        order.extend(others.take(MAX_GPUS));
    }
    let many = if choice.ring.len() == 1 { "" } else { "s" };
    let mut message = format!(
        "GPU{many} {} chosen from {} free{}",
        in_a_row(&choice.ring),
        free.len(),
        left_out(busy, taken)
    );
    if choice.ring.len() > 1 {
        message.push_str(&format!(": {}", worth(matrix, &choice)));
    }
    if !choice.is_proven {
        message.push_str("; the search was cut short: a better set may exist");
    }
    Ok(Arranged { chosen: choice.ring.len(), order, message })
}

/// The score of a choice, as text.
fn worth(matrix: &Matrix, choice: &super::Choice) -> String {
    let rings = match choice.score.capacity_links {
        links if links > 0 && matrix.is_switched() => format!("{} each", counted(links, "link")),
        _ if choice.ring.len() == 2 && choice.score.capacity_links > 0 => {
            counted(choice.score.capacity_links, "direct link")
        }
        0 if matrix.is_measured() => "as measured".to_owned(),
        0 => "no ring of direct links".to_owned(),
        rings => format!("{} of direct links", counted(rings, "ring")),
    };
    let gain = choice.gain_over_first();
    let than_first = match choice.first == choice.set {
        true => "the same GPUs as by default".to_owned(),
        false => format!("{gain:.2} times the modelled bandwidth of the first free GPUs ({})", choice.first),
    };
    format!("{rings}, about {:.1} GB/s, {than_first}", f64::from(choice.score.ring_mbps) / 1000.0)
}

fn left_out(busy: GpuSet, taken: GpuSet) -> String {
    // A number alone would be read as a count.
    let part = |set: GpuSet, why: &str| {
        let many = if set.len() == 1 { "" } else { "s" };
        (!set.is_empty()).then(|| format!("GPU{many} {set} {why}"))
    };
    let by =
        if taken.len() == 1 { "taken by another launcher" } else { "taken by one or more other launchers" };
    let parts: Vec<String> = [part(busy, "busy"), part(taken, by)].into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!(" (left out: {})", parts.join(", ")) }
}

fn in_a_row(gpus: &[usize]) -> String {
    gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> Vec<Option<String>> {
        (0..4).map(|gpu| Some(format!("GPU-{gpu}f3a"))).collect()
    }

    #[test]
    fn entries_without_a_device_are_counted() {
        for (list, missing) in [
            ("0,1", 0),
            ("0,9", 1),
            ("0,9,1", 2),
            ("GPU-9,GPU-0", 2),
            ("1,-1,2", 0),
            ("1,1", 0),
            ("1,1,9", 0),
            ("", 0),
            ("NoDevFiles", 0),
            ("MIG-a,9", 0),
        ] {
            assert_eq!(absent(Some(list), &ids()), missing, "{list}");
        }
        assert_eq!(absent(None, &ids()), 0);
    }

    #[test]
    fn a_device_without_an_id_is_the_missing_one() {
        let mut ids = ids();
        ids[2] = None;
        let these = |list| allowed(Some(list), &ids);
        assert_eq!(these("GPU-3,GPU-2f3a,GPU-0"), Allowed::These(vec![3, 2, 0]));
        assert_eq!(these("GPU-0,GPU-2f3a,GPU-9"), Allowed::These(vec![0, 2]));
        assert_eq!((these("2"), these("GPU-0,9")), (Allowed::These(vec![2]), Allowed::These(vec![0])));
    }

    #[test]
    fn a_list_is_read_as_the_driver_reads_it() {
        for (list, these) in [
            ("0,1", vec![0, 1]),
            ("3, 0", vec![3, 0]),
            ("1,-1,2", vec![1]),
            ("0,9,1", vec![0]),
            ("1,1", vec![]),
            ("", vec![]),
            ("GPU-2,GPU-0f3a", vec![2, 0]),
            ("NoDevFiles", vec![]),
        ] {
            assert_eq!(allowed(Some(list), &ids()), Allowed::These(these), "{list}");
        }
        assert_eq!(allowed(None, &ids()), Allowed::All);
        let slice = "MIG-5c88c16e-7f49-4f1a-8f3a-c1a2b3c4d5e6";
        assert_eq!(allowed(Some(slice), &ids()), Allowed::Untouched { entry: slice.into() });
    }
}
