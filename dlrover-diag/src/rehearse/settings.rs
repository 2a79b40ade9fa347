//! What `dlrover-diag rehearse` is asked for, checked.

mod fault;
mod line;
mod reader;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use clap::{ArgMatches, parser::ValueSource};
use diagnosis::network_check::{
    OnBadPath, Policy, Tainting,
    rehearsal::{Chance, Cluster},
};

pub(super) use self::line::line;
use self::{
    fault::{Pool, Put, Which},
    reader::{FACTOR, Fault, PROBABILITY, Reader, SHARE},
};

/// Nodes that are imagined at most.
const MOST_NODES: u32 = 65_536;
/// Rehearsals that are made at most, of one cluster or of one kind.
const MOST_RUNS: u64 = 1_000_000_000;
const RUNS: &str = "1 to 1000000000";

/// An option that makes no sense.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Wrong {
    #[error("--{option} {value}: must be {range}")]
    Value {
        option: &'static str,
        /// As it was given.
        value: String,
        range: String,
    },
    #[error("--{option} {value}: needs --{needs}")]
    Alone { option: &'static str, value: String, needs: &'static str },
}

impl Wrong {
    fn value(option: &'static str, value: String, range: impl Into<String>) -> Self {
        Self::Value { option, value, range: range.into() }
    }
}

/// What is asked for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) what: What,
    pub(super) json: bool,
}

/// Which rehearsals.
#[derive(Debug)]
pub(super) enum What {
    Once(Settings),
    Repeat { template: Template, seed: u64, runs: u64 },
    Sweep { policy: Policy, runs: u64, are_pairs: bool },
}

/// One rehearsal.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) cluster: Cluster,
    pub(super) policy: Policy,
}

/// A rehearsal of which the seed draws some of the faults.
#[derive(Debug)]
pub(super) struct Template {
    /// With what is not random.
    cluster: Cluster,
    draws: Vec<(Put, u32)>,
    policy: Policy,
}

impl Template {
    /// The rehearsal of one seed.
    pub(super) fn settings(&self, seed: u64) -> Settings {
        let mut cluster = Cluster { seed, ..self.cluster.clone() };
        let mut chance = Chance::new(seed);
        for (put, count) in &self.draws {
            for _ in 0..*count {
                put.insert_random(&mut cluster, &mut chance);
            }
        }
        Settings { cluster, policy: Policy { seed, ..self.policy.clone() } }
    }

    /// Nodes and racks.
    pub(super) fn size(&self) -> (u32, u32) {
        (self.cluster.nodes, self.cluster.racks)
    }
}

impl Asked {
    /// Reads it.
    ///
    /// # Errors
    /// The first option that makes no sense, with its value and what may stand there.
    pub(super) fn read(arguments: &ArgMatches) -> Result<Self, Wrong> {
        let read = Reader(arguments);
        let seed = read.one("seed", "0 to 18446744073709551615", |_: &u64| true)?;
        let runs = |option| read.perhaps(option, RUNS, |runs: &u64| (1..=MOST_RUNS).contains(runs));
        let json = arguments.get_flag("json");
        for (option, are_pairs) in [("sweep", false), ("sweep-pairs", true)] {
            if let Some(runs) = runs(option)? {
                let mut policy = policy(&read, seed)?;
                if arguments.value_source("taint-guard") != Some(ValueSource::CommandLine) {
                    policy.taint_guard_permille = 1000;
                }
                return Ok(Self { what: What::Sweep { policy, runs, are_pairs }, json });
            }
        }
        let template = template(&read, seed)?;
        let what = match runs("repeat")? {
            Some(runs) => What::Repeat { template, seed, runs },
            None => What::Once(template.settings(seed)),
        };
        Ok(Self { what, json })
    }
}

fn policy(read: &Reader<'_>, seed: u64) -> Result<Policy, Wrong> {
    let ratio =
        read.one("straggler-ratio", "above 1, at most 1000000", |it: &f64| *it > 1.0 && *it <= 1e6)?;
    let guard = read.one("taint-guard", "0 to 1", |share: &f64| (0.0..=1.0).contains(share))?;
    let tainting = [("now", Tainting::Now), ("confirmed", Tainting::Confirmed), ("never", Tainting::Never)];
    let bad_path =
        [("exclude", OnBadPath::Exclude), ("fail", OnBadPath::Fail), ("proceed", OnBadPath::Proceed)];
    Ok(Policy {
        max_rounds: read.one("max-rounds", "1 to 4294967295", |rounds: &u32| *rounds > 0)?,
        exclude_straggler: read.0.get_flag("exclude-straggler"),
        straggler_permille: permille(ratio),
        taint_guard_permille: permille(guard),
        taint_flaky: read.word("taint-flaky", "now, confirmed or never", &tainting)?,
        on_bad_path: read.word("on-bad-path", "exclude, fail or proceed", &bad_path)?,
        ..Policy::new(seed)
    })
}

fn template(read: &Reader<'_>, seed: u64) -> Result<Template, Wrong> {
    let nodes = read.one("nodes", "1 to 65536", |nodes: &u32| (1..=MOST_NODES).contains(nodes))?;
    let racks = read.one("racks", &format!("1 to {nodes}"), |racks: &u32| (1..=nodes).contains(racks))?;
    let pod_size =
        read.perhaps("pod-size", &format!("1 to {racks}"), |size: &u32| (1..=racks).contains(size))?;
    let share = |number: &f64| (0.0..=1.0).contains(number);
    let mut cluster = Cluster {
        seed,
        noise: read.one("noise", "0 to 2", |noise: &f64| (0.0..=2.0).contains(noise))?,
        transient: read.one("transient", "0 to 1", share)?,
        pod_size: pod_size.unwrap_or(0),
        ..Cluster::healthy(nodes, racks)
    };
    let mut draws = Vec::new();
    let faults = faults(read, &cluster)?;
    for fault in &faults {
        match fault.which {
            Which::One(number) => fault.put.insert(&mut cluster, (number, number)),
            Which::Two(a, b) => fault.put.insert(&mut cluster, (a, b)),
            Which::Random(count) => draws.push((fault.put, count)),
        }
    }
    are_enough(&faults, &cluster)?;
    Ok(Template { cluster, draws, policy: policy(read, seed)? })
}

/// All that breaks, in the order of the options.
fn faults(read: &Reader<'_>, cluster: &Cluster) -> Result<Vec<Fault>, Wrong> {
    let (nodes, racks) = (cluster.nodes, cluster.racks);
    let (node, rack) = (("node", nodes), ("rack", racks));
    let pods = match (cluster.pod_size, read.0.get_many::<String>("dead-pod")) {
        (0, Some(mut values)) => {
            let value = values.next().cloned().unwrap_or_default();
            return Err(Wrong::Alone { option: "dead-pod", value, needs: "pod-size, the racks in a pod" });
        }
        (0, None) => Vec::new(),
        (size, _) => read.numbers("dead-pod", "pods", racks.div_ceil(size), Put::DeadPod)?,
    };
    let all = [
        read.numbers("faulty", "nodes", nodes, Put::Faulty)?,
        read.numbers("local-fault", "nodes", nodes, Put::LocalFault)?,
        read.numbers("lost", "nodes", nodes, Put::Lost)?,
        read.after_round("dies", node, None, Put::Dies)?,
        read.pairs("dead-link", "nodes", nodes, Put::DeadLink)?,
        read.pairs("dead-rack-pair", "racks", racks, Put::DeadRackPair)?,
        read.after_round("dead-uplink", rack, Some(Put::DeadUplink), Put::UplinkDies)?,
        read.factors("partial-uplink", rack, SHARE, Put::PartialUplink)?,
        pods,
        read.factors("slow-nic", node, FACTOR, Put::SlowNic)?,
        read.slow_links(nodes)?,
        read.factors("slow-compute", node, FACTOR, Put::SlowCompute)?,
        read.factors("flaky", node, PROBABILITY, Put::Flaky)?,
        read.numbers("liar", "nodes", nodes, Put::Liar)?,
    ];
    Ok(all.into_iter().flatten().collect())
}

/// Whether there is something to draw for each `random`; what was drawn is not drawn again.
fn are_enough(faults: &[Fault], cluster: &Cluster) -> Result<(), Wrong> {
    let mut left: BTreeMap<Pool, u64> = BTreeMap::new();
    for fault in faults {
        let Which::Random(count) = fault.which else { continue };
        let pool = fault.put.pool();
        let left = left.entry(pool).or_insert_with(|| pool.left(cluster));
        *left = match left.checked_sub(u64::from(count)) {
            Some(rest) => rest,
            None => {
                let range = match *left {
                    0 => "something else: nothing is left to choose from".to_owned(),
                    left => {
                        format!("random:COUNT with COUNT 1 to {left}, as many as are left to choose from")
                    }
                };
                return Err(Wrong::value(fault.option, fault.value.clone(), range));
            }
        };
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 10^9, checked before")]
fn permille(ratio: f64) -> u32 {
    (ratio * 1000.0).round() as u32
}
