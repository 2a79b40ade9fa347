//! The output of `dlrover-diag topo`.

use std::{collections::BTreeMap, fmt::Write as _};

use diagnosis::{
    counted::counted,
    gpu_topology::{Choice, GpuSet, Matrix, Ranked, Score, ranking as rank},
};
use serde::Serialize;

/// How many sets of a ranking are shown.
const SHOWN: usize = 10;

/// As `--json` has it.
#[derive(Debug, Serialize)]
struct Document<'a> {
    best: GpuSet,
    ring: &'a [usize],
    capacity_links: u32,
    total_gbps: f64,
    first: GpuSet,
    gain_over_first: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ranking: Option<Vec<Place>>,
}

/// A set of the ranking, the best first.
#[derive(Debug, Serialize)]
struct Place {
    set: GpuSet,
    capacity_links: u32,
    ring_gbps: f64,
    total_gbps: f64,
    numa_nodes: Option<u32>,
}

impl Place {
    fn of(matrix: &Matrix, ranked: &Ranked) -> Self {
        let Ranked { set, score } = ranked;
        Self {
            set: *set,
            capacity_links: score.capacity_links,
            ring_gbps: gbps(score.ring_mbps),
            total_gbps: gbps(score.total_mbps),
            numa_nodes: numa_nodes(matrix, *set, score),
        }
    }
}

/// On how many NUMA nodes a set lies, where that is known of all of it.
fn numa_nodes(matrix: &Matrix, set: GpuSet, score: &Score) -> Option<u32> {
    set.iter().all(|gpu| matrix.numa(gpu).is_some()).then_some(score.numa_nodes.0)
}

pub(super) fn json(matrix: &Matrix, choice: &Choice, ranked: Option<&[Ranked]>) -> String {
    let document = Document {
        best: choice.set,
        ring: &choice.ring,
        capacity_links: choice.score.capacity_links,
        total_gbps: gbps(choice.score.total_mbps),
        first: choice.first,
        gain_over_first: rounded(choice.gain_over_first()),
        ranking: ranked.map(|sets| sets.iter().map(|set| Place::of(matrix, set)).collect()),
    };
    serde_json::to_string(&document).unwrap_or_default() + "\n"
}

fn gbps(mbps: u32) -> f64 {
    f64::from(mbps) / 1000.0
}

/// To thousandths: no figure here is known better.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// The link between two: the tool's name of it, or GB/s where that was measured.
fn link_name(matrix: &Matrix, one: usize, other: usize) -> String {
    match matrix.link(one, other) {
        _ if one == other => "-".to_owned(),
        Some(link) => link.to_string(),
        None => format!("{:.1}", gbps(matrix.mbps(one, other))),
    }
}

/// The links of all pairs, and which GPUs are free.
pub(super) fn table(matrix: &Matrix, free: GpuSet, broken: GpuSet) -> String {
    let has_numa = (0..matrix.size()).any(|gpu| matrix.numa(gpu).is_some());
    let mut text = " ".repeat(6);
    for gpu in 0..matrix.size() {
        text.push_str(&format!("{:>6}", format!("GPU{gpu}")));
    }
    text.push_str(if has_numa { "  NUMA\n" } else { "\n" });
    for one in 0..matrix.size() {
        let _ = write!(text, "{:<6}", format!("GPU{one}"));
        for other in 0..matrix.size() {
            let _ = write!(text, "{:>6}", link_name(matrix, one, other));
        }
        if has_numa {
            let _ = write!(text, "{:>6}", matrix.numa(one).map_or("?".to_owned(), |node| node.to_string()));
        }
        text.push_str(match (free.contains(one), broken.contains(one)) {
            (true, _) => "\n",
            (_, true) => "  broken\n",
            _ => "  busy\n",
        });
    }
    let kind = match matrix.is_switched() {
        true => ", links go to a switch",
        false => "",
    };
    let _ = writeln!(text, "\nGPUs: {}, {} free{kind}", matrix.size(), free.len());
    text
}

/// `2 rings of links, 48.4 GB/s`.
fn capacity(matrix: &Matrix, score: &Score, count: usize) -> String {
    let rings = match (score.capacity_links, count) {
        (links, 2..) if links > 0 && matrix.is_switched() => format!("{} each", counted(links, "link")),
        (_, 1) => return "nothing to connect".to_owned(),
        (0, _) if matrix.is_measured() => "as measured".to_owned(),
        (0, _) => "no ring of links".to_owned(),
        (1, 2) => "1 link".to_owned(),
        (links, 2) => format!("{links} links"),
        (1, _) => "1 ring of links".to_owned(),
        (rings, _) => format!("{rings} rings of links"),
    };
    format!("{rings}, {:.1} GB/s", gbps(score.ring_mbps))
}

/// One choice, with its ring and its gain over the first free GPUs.
pub(super) fn choice(matrix: &Matrix, choice: &Choice) -> String {
    let mut ring = String::new();
    for (place, gpu) in choice.ring.iter().enumerate() {
        let next = choice.ring[(place + 1) % choice.ring.len()];
        let _ = write!(ring, "{gpu} ");
        if choice.ring.len() > 1 {
            let _ = write!(ring, "-{}- ", link_name(matrix, *gpu, next));
        }
    }
    if choice.ring.len() > 1 {
        let _ = write!(ring, "{}", choice.ring[0]);
    }
    let numa = match numa_nodes(matrix, choice.set, &choice.score) {
        None => String::new(),
        Some(1) => ", on 1 NUMA node".to_owned(),
        Some(nodes) => format!(", on {nodes} NUMA nodes"),
    };
    let count = choice.set.len();
    let mut text = format!("best     {}\nring     {}\n", choice.set, ring.trim_end());
    let _ = writeln!(
        text,
        "capacity {}; all pairs {:.1} GB/s{numa}",
        capacity(matrix, &choice.score, count),
        gbps(choice.score.total_mbps)
    );
    match choice.first == choice.set {
        true => text.push_str("first    the same: this is also the default choice\n"),
        false => {
            let gain = choice.gain_over_first();
            let _ = writeln!(
                text,
                "first    {}: {}; the best has {gain:.2} times that bandwidth (modelled)",
                choice.first,
                capacity(matrix, &choice.first_score, count)
            );
        }
    }
    if !choice.is_proven {
        text.push_str("note     the search was cut short: a better set may exist\n");
    }
    text
}

/// A line for each number of GPUs.
pub(super) fn overview(matrix: &Matrix, choices: &[Choice]) -> String {
    if choices.is_empty() {
        return "fewer than 2 GPUs are free: there is nothing to choose\n".to_owned();
    }
    let mut text = format!(
        "{:>4}  {:<24}  {:<34}  gain over the first free GPUs\n",
        "GPUs", "best, as a ring", "capacity"
    );
    for choice in choices {
        let ring: Vec<String> = choice.ring.iter().map(ToString::to_string).collect();
        let capacity = capacity(matrix, &choice.score, choice.set.len());
        let gain = choice.gain_over_first();
        let _ = writeln!(text, "{:>4}  {:<24}  {capacity:<34}  {gain:.2}x", choice.set.len(), ring.join(","));
    }
    text
}

/// The best sets, and how many there are of each capacity.
pub(super) fn ranking(matrix: &Matrix, free: GpuSet, wanted: usize) -> String {
    let ranked = rank(matrix, free, wanted);
    let mut by_capacity: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for set in &ranked {
        *by_capacity.entry((set.score.ring_mbps, set.score.capacity_links)).or_default() += 1;
    }
    let by = if matrix.is_measured() { "their slowest link" } else { "their capacity" };
    let mut text = format!("\n{} of {wanted}, by {by}\n", counted(ranked.len(), "set"));
    for ((ring_mbps, capacity_links), count) in by_capacity.iter().rev() {
        let score = Score { ring_mbps: *ring_mbps, capacity_links: *capacity_links, ..Score::default() };
        let _ = writeln!(text, "{count:>6}  {}", capacity(matrix, &score, wanted));
    }
    let _ = writeln!(text, "\nplace  {:<24}  {:<34}  all pairs   NUMA nodes", "set", "capacity");
    for (place, set) in ranked.iter().take(SHOWN).enumerate() {
        let score = &set.score;
        let _ = writeln!(
            text,
            "{:>5}  {:<24}  {:<34}  {:>5.1} GB/s  {}",
            place + 1,
            set.set.to_string(),
            capacity(matrix, score, wanted),
            gbps(score.total_mbps),
            numa_nodes(matrix, set.set, score).map_or("?".to_owned(), |nodes| nodes.to_string())
        );
    }
    if ranked.len() > SHOWN {
        let _ = writeln!(text, "       ... and {} more", ranked.len() - SHOWN);
    }
    text
}

#[cfg(test)]
mod tests {
    use diagnosis::gpu_topology::{Objective, choose};

    use super::{choice, overview, ranking, table, *};

    const TOPO: &str = "\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV2\tSYS\tPHB\t0-31\t0
GPU1\tNV2\t X \tNV1\tSYS\t0-31\t0
GPU2\tSYS\tNV1\t X \tPIX\t32-63\t1
GPU3\tPHB\tSYS\tPIX\t X \t32-63\t1
";

    #[test]
    fn the_tables_are_pleasant_to_read() {
        let matrix = Matrix::parse(TOPO).unwrap();
        let (broken, all) = (GpuSet::from_iter([3]), GpuSet::first(4));
        let best = |wanted| choose(&matrix, all, wanted, Objective::Topology).unwrap();
        insta::assert_snapshot!(
            [
                table(&matrix, all.without(broken), broken),
                overview(&matrix, &[best(2), best(3), best(4)]),
                choice(&matrix, &best(2)),
                choice(&matrix, &best(3)),
                ranking(&matrix, all, 2),
            ]
            .join("----\n")
        );
    }
}
