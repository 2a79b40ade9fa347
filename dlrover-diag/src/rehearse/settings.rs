//! What `dlrover-diag rehearse` is asked for, checked.

mod fault;
mod line;
mod reader;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use diagnosis::network_check::{
    OnBadPath, Policy, Tainting,
    rehearsal::{Cluster, ClusterRng},
};

pub(super) use self::line::line;
use launcher::resolve::permille;

use self::{
    fault::{FaultKind, Pool, Which},
    reader::{
        FACTOR, Fault, PROBABILITY, SHARE, after_round, factors, name, numbers, one, pairs, slow_links,
    },
};
use super::arguments::{Arguments, Check, Faults};

/// Nodes that are simulated at most.
const MAX_NODES: u32 = 65_536;
/// Rehearsals that are made at most, of one cluster or of one kind.
const MAX_RUNS: u64 = 1_000_000_000;
const RUNS: &str = "1 to 1000000000";

/// An option that makes no sense.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Wrong {
    #[error(
        "--{option} {value}: nothing is left to choose at random; leave the option out, or simulate \
            more nodes or racks (--nodes, --racks)"
    )]
    NothingLeft {
        option: &'static str,
        /// As it was given.
        value: String,
    },
    #[error("--{option} {value}: must be {range}")]
    Value {
        option: &'static str,
        /// As it was given.
        value: String,
        range: String,
    },
    #[error("--{option} {value}: requires --{needs}")]
    Alone { option: &'static str, value: String, needs: &'static str },
}

impl Wrong {
    fn value(option: &'static str, value: String, range: impl Into<String>) -> Self {
        Self::Value { option, value, range: range.into() }
    }
}

/// What is asked for.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) mode: Mode,
    pub(super) json: bool,
}

/// Which rehearsals.
#[derive(Debug)]
pub(super) enum Mode {
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
    draws: Vec<(FaultKind, u32)>,
    policy: Policy,
}

impl Template {
    /// The rehearsal of one seed.
    pub(super) fn settings(&self, seed: u64) -> Settings {
        let mut cluster = Cluster { seed, ..self.cluster.clone() };
        let mut rng = ClusterRng::new(seed);
        for (kind, count) in &self.draws {
            for _ in 0..*count {
                kind.insert_random(&mut cluster, &mut rng);
            }
        }
        Settings { cluster, policy: Policy { seed, ..self.policy.clone() } }
    }

    /// Nodes and racks.
    pub(super) fn size(&self) -> (u32, u32) {
        (self.cluster.nodes, self.cluster.racks)
    }
}

impl Request {
    /// Reads it.
    ///
    /// # Errors
    /// The first option that makes no sense, with its value and what may stand there.
    pub(super) fn read(arguments: &Arguments) -> Result<Self, Wrong> {
        let Arguments { check, runs, json, .. } = arguments;
        let seed = one(("seed", &check.seed), "0 to 18446744073709551615", |_: &u64| true)?;
        let count =
            |option, value: &str| one((option, value), RUNS, |runs: &u64| (1..=MAX_RUNS).contains(runs));
        for (option, value, are_pairs) in
            [("sweep", &runs.sweep, false), ("sweep-pairs", &runs.sweep_pairs, true)]
        {
            if let Some(value) = value {
                let policy = policy(check, "1", seed)?;
                let mode = Mode::Sweep { policy, runs: count(option, value)?, are_pairs };
                return Ok(Self { mode, json: *json });
            }
        }
        let template = template(arguments, seed)?;
        let mode = match &runs.repeat {
            Some(value) => Mode::Repeat { template, seed, runs: count("repeat", value)? },
            None => Mode::Once(template.settings(seed)),
        };
        Ok(Self { mode, json: *json })
    }
}

fn policy(check: &Check, taint_guard: &str, seed: u64) -> Result<Policy, Wrong> {
    let ratio = one(("straggler-ratio", &check.straggler_ratio), "above 1, at most 1000000", |it: &f64| {
        *it > 1.0 && *it <= 1e6
    })?;
    let guard = check.taint_guard.as_deref().unwrap_or(taint_guard);
    let guard = one(("taint-guard", guard), "0 to 1", |share: &f64| (0.0..=1.0).contains(share))?;
    let tainting = [("now", Tainting::Now), ("confirmed", Tainting::Confirmed), ("never", Tainting::Never)];
    let bad_path =
        [("exclude", OnBadPath::Exclude), ("fail", OnBadPath::Fail), ("proceed", OnBadPath::Proceed)];
    Ok(Policy {
        max_rounds: one(("max-rounds", &check.max_rounds), "1 to 4294967295", |rounds: &u32| *rounds > 0)?,
        exclude_straggler: check.exclude_straggler,
        straggler_permille: permille(ratio),
        taint_guard_permille: permille(guard),
        taint_flaky: name(("taint-flaky", &check.taint_flaky), "now, confirmed or never", &tainting)?,
        on_bad_path: name(("on-bad-path", &check.on_bad_path), "exclude, fail or proceed", &bad_path)?,
        ..Policy::new(seed)
    })
}

fn template(arguments: &Arguments, seed: u64) -> Result<Template, Wrong> {
    let size = &arguments.cluster;
    let nodes = size.nodes.as_deref().unwrap_or_default();
    let nodes = one(("nodes", nodes), "1 to 65536", |nodes: &u32| (1..=MAX_NODES).contains(nodes))?;
    let up_to = |most: u32| move |number: &u32| (1..=most).contains(number);
    let racks = one(("racks", &size.racks), &format!("1 to {nodes}"), up_to(nodes))?;
    let pod_size = size.pod_size.as_ref();
    let pod_size = pod_size.map(|size| one(("pod-size", size), &format!("1 to {racks}"), up_to(racks)));
    let transient = ("transient", arguments.faults.transient.as_str());
    let mut cluster = Cluster {
        seed,
        noise: one(("noise", &size.noise), "0 to 2", |noise: &f64| (0.0..=2.0).contains(noise))?,
        transient: one(transient, "0 to 1", |share: &f64| (0.0..=1.0).contains(share))?,
        pod_size: pod_size.transpose()?.unwrap_or(0),
        ..Cluster::healthy(nodes, racks)
    };
    let mut draws = Vec::new();
    let faults = faults(&arguments.faults, &cluster)?;
    for fault in &faults {
        match fault.which {
            Which::One(number) => fault.kind.insert(&mut cluster, (number, number)),
            Which::Two(a, b) => fault.kind.insert(&mut cluster, (a, b)),
            Which::Random(count) => draws.push((fault.kind, count)),
        }
    }
    are_enough(&faults, &cluster)?;
    Ok(Template { cluster, draws, policy: policy(&arguments.check, "0.3", seed)? })
}

/// All that breaks, in the order of the options.
fn faults(given: &Faults, cluster: &Cluster) -> Result<Vec<Fault>, Wrong> {
    let (nodes, racks) = (cluster.nodes, cluster.racks);
    let (node, rack) = (("node", nodes), ("rack", racks));
    let pods = match (cluster.pod_size, given.dead_pod.first()) {
        (0, Some(value)) => {
            let needs = "pod-size, the racks in a pod";
            return Err(Wrong::Alone { option: "dead-pod", value: value.clone(), needs });
        }
        (0, None) => Vec::new(),
        (size, _) => numbers(("dead-pod", &given.dead_pod), "pod", racks.div_ceil(size), FaultKind::DeadPod)?,
    };
    let uplinks = ("dead-uplink", &given.dead_uplink[..]);
    let all = [
        numbers(("faulty", &given.faulty), "node", nodes, FaultKind::Faulty)?,
        numbers(("local-fault", &given.local_fault), "node", nodes, FaultKind::LocalFault)?,
        numbers(("lost", &given.lost), "node", nodes, FaultKind::Lost)?,
        after_round(("dies", &given.dies), node, None, FaultKind::Dies)?,
        pairs(("dead-link", &given.dead_link), "nodes", nodes, FaultKind::DeadLink)?,
        pairs(("dead-rack-pair", &given.dead_rack_pair), "racks", racks, FaultKind::DeadRackPair)?,
        after_round(uplinks, rack, Some(FaultKind::DeadUplink), FaultKind::UplinkDies)?,
        factors(("partial-uplink", &given.partial_uplink), rack, SHARE, FaultKind::PartialUplink)?,
        pods,
        factors(("slow-nic", &given.slow_nic), node, FACTOR, FaultKind::SlowNic)?,
        slow_links(("slow-link", &given.slow_link), nodes)?,
        factors(("slow-compute", &given.slow_compute), node, FACTOR, FaultKind::SlowCompute)?,
        factors(("flaky", &given.flaky), node, PROBABILITY, FaultKind::Flaky)?,
        numbers(("liar", &given.liar), "node", nodes, FaultKind::Liar)?,
    ];
    Ok(all.into_iter().flatten().collect())
}

/// Whether there is something to draw for each `random`; what was drawn is not drawn again.
fn are_enough(faults: &[Fault], cluster: &Cluster) -> Result<(), Wrong> {
    let mut left: BTreeMap<Pool, u64> = BTreeMap::new();
    for fault in faults {
        let Which::Random(count) = fault.which else { continue };
        let pool = fault.kind.pool();
        let left = left.entry(pool).or_insert_with(|| pool.left(cluster));
        *left = match left.checked_sub(u64::from(count)) {
            Some(rest) => rest,
            None => {
                let (option, value) = (fault.option, fault.value.clone());
                if *left == 0 {
                    return Err(Wrong::NothingLeft { option, value });
                }
                let range =
                    format!("random:COUNT with COUNT 1 to {left}, as many as are left to choose from");
                return Err(Wrong::value(option, value, range));
            }
        };
    }
    Ok(())
}
