//! Random clusters with everything that can break in them: how often each promise is kept. Some of each kind in every
//! run of the tests; as many as asked for, with an example of each broken promise, by
//!
//! `DLROVER_CHECK_RUNS=10000 cargo test --release -p rules survey -- --ignored --nocapture`

use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{
        Outcome, Policy,
        rehearsal::{Cluster, rehearse},
    },
    clusters::{excluded, tainted},
};

/// What is broken in the clusters of a kind.
struct Kind {
    name: &'static str,
    /// The share of nodes that are broken outright: none, or up to 1 / this.
    broken: Option<u32>,
    /// What else.
    spoil: fn(&mut Cluster, &mut Rng),
    /// Some nodes or links are slow, and looked for.
    is_slow: bool,
    /// Every promise is kept in each of the runs that every test run makes; else it cannot always be, as a healthy node
    /// of which the first two tests both meet something bad looks like a broken one.
    is_kept: bool,
}

const KINDS: &[Kind] = &[
    kind("nodes", Some(2), |_, _| {}).kept(),
    kind("a link", None, |it, rng| links(it, rng, 1)).kept(),
    kind("nodes, a link", Some(3), |it, rng| links(it, rng, 1)).kept(),
    kind("two racks", None, |it, rng| rack_pairs(it, rng, 1)).kept(),
    kind("nodes, two racks", Some(8), |it, rng| rack_pairs(it, rng, 1)).kept(),
    kind("twice two racks", None, |it, rng| rack_pairs(it, rng, 2)),
    kind("a flaky one", None, |it, rng| flaky(it, rng, 1, 0.5)),
    kind("a slow card", Some(8), |it, rng| slow(it, rng, 1, 0.1)).slow().kept(),
    kind("a slow link", Some(8), slow_link).slow().kept(),
    kind("nodes, a flaky one", Some(8), |it, rng| flaky(it, rng, 1, 0.5)),
    kind("3 slow cards, .2", Some(8), |it, rng| slow(it, rng, 3, 0.2)).slow(),
    kind("3 slow cards, .3", None, |it, rng| slow(it, rng, 3, 0.3)).slow(),
    kind("noise .5", None, |it, rng| slow(it, rng, 0, 0.5)).slow(),
    kind("2 links", None, |it, rng| links(it, rng, 2)),
    kind("nodes, 2 links", Some(4), |it, rng| links(it, rng, 2)),
    kind("2 links of one", None, |it, rng| links_of_one(it, rng, 2)),
    kind("3 links of one", None, |it, rng| links_of_one(it, rng, 3)),
    kind("nodes, 3 times racks", Some(8), |it, rng| rack_pairs(it, rng, 3)),
    kind("nodes, 3 flaky", Some(8), |it, rng| flaky(it, rng, 3, 0.5)),
    kind("3 hardly flaky", None, |it, rng| flaky(it, rng, 3, 0.2)),
    kind("one of each", Some(8), one_of_each).slow(),
];

const fn kind(name: &'static str, broken: Option<u32>, spoil: fn(&mut Cluster, &mut Rng)) -> Kind {
    Kind { name, broken, spoil, is_slow: false, is_kept: false }
}

impl Kind {
    const fn slow(self) -> Self {
        Self { is_slow: true, ..self }
    }

    const fn kept(self) -> Self {
        Self { is_kept: true, ..self }
    }

    fn cluster(&self, rng: &mut Rng, least: u32) -> Cluster {
        let most = [12, 64, 64, 256][rng.below(4)].max(least);
        let nodes = least + any(rng, most - least + 1);
        let racks = [1, 1, 2, 3, 4, 8, 16][rng.below(7)].clamp(1, nodes / 2);
        let mut cluster = Cluster { seed: rng.next(), ..Cluster::healthy(nodes, racks) };
        let mut names: Vec<u32> = (0..nodes).collect();
        rng.shuffle(&mut names);
        // Below the share, so below a half at most.
        let broken = self.broken.map_or(0, |part| any(rng, (nodes - 1) / part + 1));
        cluster.faulty = names.into_iter().take(broken as usize).collect();
        (self.spoil)(&mut cluster, rng);
        cluster
    }
}

fn any(rng: &mut Rng, count: u32) -> u32 {
    rng.below(count as usize) as u32
}

fn two(rng: &mut Rng, count: u32) -> Option<(u32, u32)> {
    let (a, b) = (any(rng, count), any(rng, count));
    (a != b).then_some((a.min(b), a.max(b)))
}

fn links(cluster: &mut Cluster, rng: &mut Rng, count: u32) {
    cluster.dead_links = (0..count).filter_map(|_| two(rng, cluster.nodes)).collect();
}

fn links_of_one(cluster: &mut Cluster, rng: &mut Rng, count: u32) {
    let node = any(rng, cluster.nodes);
    let others = (0..count).map(|_| any(rng, cluster.nodes)).filter(|other| *other != node);
    cluster.dead_links = others.map(|other| (node.min(other), node.max(other))).collect();
}

fn rack_pairs(cluster: &mut Cluster, rng: &mut Rng, count: u32) {
    cluster.dead_rack_pairs = (0..count).filter_map(|_| two(rng, cluster.racks)).collect();
}

fn flaky(cluster: &mut Cluster, rng: &mut Rng, count: u32, chance: f64) {
    cluster.flaky = (0..count).map(|_| (any(rng, cluster.nodes), chance)).collect();
}

fn slow(cluster: &mut Cluster, rng: &mut Rng, count: u32, noise: f64) {
    cluster.slow_nic = (0..count).map(|_| (any(rng, cluster.nodes), 4.0)).collect();
    cluster.noise = noise;
}

fn slow_link(cluster: &mut Cluster, rng: &mut Rng) {
    cluster.slow_links = two(rng, cluster.nodes).map(|ends| (ends, 4.0)).into_iter().collect();
    cluster.noise = 0.1;
}

fn one_of_each(cluster: &mut Cluster, rng: &mut Rng) {
    links(cluster, rng, 1);
    rack_pairs(cluster, rng, 1);
    flaky(cluster, rng, 1, 0.5);
    slow(cluster, rng, 1, 0.2);
    cluster.slow_compute = [(any(rng, cluster.nodes), 3.0)].into();
    cluster.lost = [any(rng, cluster.nodes)].into();
    cluster.local_fault = [any(rng, cluster.nodes)].into();
}

/// The promises that a check broke.
fn broken(kind: &Kind, cluster: &Cluster, outcome: &Outcome) -> Vec<(&'static str, String)> {
    let mut unfit: BTreeSet<u32> = cluster.faulty.union(&cluster.lost).copied().collect();
    unfit.extend(cluster.flaky.keys());
    if kind.is_slow {
        unfit.extend(cluster.slow_nic.keys());
    }
    // A path to a rack of one node is distinguished from that node by another round.
    let is_alone =
        (0..cluster.racks).any(|rack| (0..cluster.nodes).filter(|it| cluster.rack(*it) == rack).count() == 1);
    let of_one = u32::from(is_alone && !cluster.dead_rack_pairs.is_empty());
    let bound = most_rounds(kind, cluster.nodes, unfit.len() as u32).saturating_add(of_one);
    unfit.extend(cluster.local_fault.iter().chain(cluster.slow_compute.keys()));
    let tainted = tainted(outcome);
    let blamed: Vec<u32> = tainted.difference(&unfit).copied().collect();
    // All of a rack, or its only one, may be its switch instead: left out, and not tainted.
    let mut missed: Vec<u32> = cluster.faulty.difference(&excluded(outcome)).copied().collect();
    if kind.is_kept {
        missed.extend(cluster.slow_nic.keys().filter(|card| !excluded(outcome).contains(card)));
    }
    // A flaky node's links fail and pass like flaky links.
    let is_wrong_link = |(a, b): &(u32, u32)| {
        let is_slow = cluster.slow_links.contains_key(&(*a, *b));
        !cluster.is_cut(*a, *b) && !is_slow && ![a, b].iter().any(|end| cluster.flaky.contains_key(end))
    };
    let links: Vec<(u32, u32)> = outcome.links.iter().map(|link| link.nodes).filter(is_wrong_link).collect();
    let is_wrong_path = |(a, b): &(u32, u32)| !cluster.dead_rack_pairs.contains(&(*a, *b));
    let paths = outcome.rack_pairs.iter().map(|pair| pair.racks).filter(is_wrong_path);
    let paths: Vec<(u32, u32)> = paths.collect();
    let rounds = outcome.rounds.len() as u32;
    // Two good nodes can prove each other, and every other needs two witnesses; one link may be between them.
    let is_findable = cluster.nodes as usize >= unfit.len() + 3;
    let promises = [
        ("healthy blamed", (!blamed.is_empty()).then(|| format!("{blamed:?}"))),
        ("broken missed", (!missed.is_empty() && is_findable).then(|| format!("{missed:?}"))),
        ("over bound", (rounds > bound).then(|| format!("{rounds} > {bound}"))),
        ("wrong link", (!links.is_empty()).then(|| format!("{links:?}"))),
        ("wrong racks", (!paths.is_empty()).then(|| format!("{paths:?}"))),
    ];
    promises.into_iter().filter_map(|(promise, how)| Some((promise, how?))).collect()
}

/// Section 4.5 of the study: by broken nodes, one more for an odd number of nodes, three more for what is wrong with
/// paths and times. The study's table has one more yet for five nodes.
fn most_rounds(kind: &Kind, nodes: u32, broken: u32) -> u32 {
    let even = match broken {
        0 => 1,
        _ if broken * 4 <= nodes => 3,
        _ if broken * 3 <= nodes => 4,
        _ if broken * 2 < nodes => 2 + (2 * broken).div_ceil(nodes - 2 * broken),
        _ => return u32::MAX,
    };
    let of_paths = if kind.name == "nodes" { 0 } else { 3 };
    even + nodes % 2 + u32::from(nodes == 5 && broken > 0) + of_paths
}

/// The runs of one kind: how often each promise was broken, and the first example of it.
fn runs(kind: &Kind, number: u64, runs: u32, least: u32) -> (BTreeMap<&'static str, (u32, String)>, f64) {
    let mut tally: BTreeMap<&str, (u32, String)> = BTreeMap::new();
    let mut rounds = 0;
    for run in 0..runs {
        let cluster = kind.cluster(&mut Rng::new(u64::from(run), number), least);
        let policy = Policy {
            max_rounds: 32,
            taint_guard_permille: 1000,
            exclude_straggler: kind.is_slow,
            ..Policy::new(cluster.seed)
        };
        let outcome = rehearse(&cluster, policy);
        rounds += outcome.rounds.len();
        for (promise, how) in broken(kind, &cluster, &outcome) {
            let example = || (0, format!("{how} in {cluster:?}"));
            tally.entry(promise).or_insert_with(example).0 += 1;
        }
    }
    (tally, rounds as f64 / f64::from(runs))
}

#[test]
fn what_is_always_kept_is_kept() {
    for (number, kind) in (0..).zip(KINDS).filter(|(_, kind)| kind.is_kept) {
        let (tally, _) = runs(kind, number, 200, 4);
        assert!(tally.is_empty(), "{}: {tally:#?}", kind.name);
    }
}

#[test]
#[ignore = "a tool, not a check: its first lines say how it is used"]
fn survey() {
    #[expect(clippy::disallowed_methods, reason = "a tool, not a check")]
    let asked = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let count = asked("DLROVER_CHECK_RUNS").unwrap_or(2000);
    let least = asked("DLROVER_CHECK_LEAST").unwrap_or(4).max(4);
    println!("{count} runs of each kind, {least} to 256 nodes; runs that broke a promise:");
    for (number, kind) in (0..).zip(KINDS) {
        let (tally, rounds) = runs(kind, number, count, least);
        let broken: Vec<String> =
            tally.iter().map(|(promise, (times, _))| format!("{promise} {times}")).collect();
        println!("{:22} {rounds:5.2} rounds  {}", kind.name, broken.join(", "));
        for (promise, (_, example)) in tally.iter().filter(|_| asked("DLROVER_CHECK_EXAMPLES") == Some(1)) {
            println!("    {promise}: {example}");
        }
    }
}
