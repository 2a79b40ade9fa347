//! Every number in the evidence on times, from the report's JSON alone, by the formulas of `docs/network-check.md`, "How
//! times are judged". Nothing of the check itself is used here but what it wrote.

use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::{
    Policy,
    rehearsal::{Cluster, rehearse},
};

/// In nanoseconds.
fn time(value: &Value) -> Option<f64> {
    Some(value["secs"].as_f64()? * 1e9 + value["nanos"].as_f64()?)
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().expect("a list")
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The mean of the values from half to twice their middle, of how many, and how many are left out; the limit above is
/// raised twice, to twice the mean.
fn trimmed(values: &[f64], middle: f64) -> (f64, usize, usize) {
    let limit = limit(values, middle);
    let kept = within(values, middle / 2.0, limit);
    (mean(&kept), kept.len(), values.len() - kept.len())
}

fn within(values: &[f64], least: f64, limit: f64) -> Vec<f64> {
    values.iter().copied().filter(|value| *value >= least && *value <= limit).collect()
}

fn limit(values: &[f64], middle: f64) -> f64 {
    let raised = |limit: f64| limit.max(2.0 * mean(&within(values, middle / 2.0, limit)));
    raised(raised(2.0 * middle))
}

fn same(value: f64, told: f64) -> bool {
    (value - told).abs() <= 1e-6 * value.abs() + 1.0
}

/// As the report prints times.
fn millis(nanos: f64) -> String {
    if nanos < 100_000.0 { format!("{:.6} ms", nanos / 1e6) } else { format!("{:.1} ms", nanos / 1e6) }
}

fn assert_told(what: &str, (value, counted, left_out): (f64, usize, usize), baseline: &Value, told: &Value) {
    let told_of = |name: &str| told[name].as_u64().expect("a count") as usize;
    assert!(time(baseline).is_some_and(|told| same(value, told)), "{what}: {value} {told}");
    assert_eq!((counted, left_out), (told_of("counted"), told_of("left_out")), "{what}: {told}");
}

/// Node by node: the ratio of its compute time is that of what is listed.
fn computing(outcome: &Value) -> u32 {
    let nodes = list(outcome, "nodes");
    let firsts: Vec<Option<(&Value, f64)>> = nodes
        .iter()
        .map(|node| {
            Some((
                &node["compute"]["kind"],
                time(list(node.get("compute")?.as_object().map(|_| &node["compute"])?, "samples").first()?)?,
            ))
        })
        .collect();
    let mut said = 0;
    for (number, node) in nodes.iter().enumerate() {
        let Some((kind, _)) = firsts[number] else { continue };
        let others = firsts.iter().enumerate().filter(|(other, _)| *other != number);
        let others: Vec<(usize, f64)> =
            others.filter_map(|(other, it)| it.filter(|it| it.0 == kind).map(|it| (other, it.1))).collect();
        let mut values: Vec<f64> = others.iter().map(|(_, value)| *value).collect();
        values.sort_by(f64::total_cmp);
        let compute = &node["compute"];
        let disagree = values.len() == 2 && values[1] > 2.0 * values[0];
        if values.len() < 2 || disagree {
            assert!(compute["baseline"].is_null() && node["compute_permille"].is_null(), "{node}");
            assert_ne!(node["verdict"], "straggler-compute");
            continue;
        }
        let middle = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
        let found = trimmed(&values, middle);
        assert_told(&format!("node {number}"), found, &compute["baseline"], compute);
        let samples: Vec<f64> = list(compute, "samples").iter().filter_map(time).collect();
        let shortest = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let ratio = shortest / found.0;
        assert!((ratio * 1000.0 - node["compute_permille"].as_f64().unwrap()).abs() <= 0.51, "{node}");
        if node["verdict"] == "straggler-compute" {
            assert!(ratio > 2.0);
            let limit = limit(&values, middle);
            let is_out = |value: f64| value < middle / 2.0 || value > limit;
            let out: Vec<String> = others
                .iter()
                .filter(|(_, value)| is_out(*value))
                .map(|(other, value)| format!("node {other} ({})", millis(*value)))
                .collect();
            let named = out.get(..8).unwrap_or(&out).join(", ");
            let left_out = match out.len() {
                0 => String::new(),
                1..=8 => format!("; outliers left out: {named}"),
                more => format!("; outliers left out: {named} and {} more", more - 8),
            };
            let kind = &kind["Cublas"]["model"].as_str().expect("only this kind in these clusters");
            let expected = format!(
                "{ratio:.2} times the baseline compute time in each of {0} samples: at least {1} against {2}, \
                 for matrix products by cuBLAS on {kind}; the baseline is the mean of {3} node{4} that ran the same computation{left_out}",
                samples.len(),
                millis(shortest),
                millis(found.0),
                found.1,
                if found.1 == 1 { "" } else { "s" },
            );
            assert_eq!(node["evidence"][0]["words"], expected);
            said += 1;
        }
    }
    said
}

/// A test that did not fail.
#[derive(Clone)]
struct Timed<'a> {
    members: BTreeSet<u64>,
    across: bool,
    comm: f64,
    told: &'a Value,
}

/// What a node takes in these tests; `None` where it was in none.
fn pace<'a>(node: u64, tests: impl Iterator<Item = &'a Timed<'a>>) -> Option<f64> {
    let mut times: Vec<f64> = tests.filter(|it| it.members.contains(&node)).map(|it| it.comm).collect();
    times.sort_by(f64::total_cmp);
    let last = (1..times.len()).find(|count| times[*count] > 2.0 * mean(&times[..*count]));
    (!times.is_empty()).then(|| mean(&times[..last.unwrap_or(times.len())]))
}

/// The trimmed mean of the paces of the others of a test in these tests.
fn held(it: &Timed<'_>, tests: &[Timed<'_>], asked: &BTreeSet<u64>) -> Option<(f64, usize, usize)> {
    let says_nothing =
        |other: &Timed<'_>| !other.members.is_disjoint(&it.members) && other.comm * 2.0 > it.comm;
    let counts = |node: &&u64| {
        let mut own = tests.iter().filter(|other| other.members.contains(*node));
        !it.members.contains(*node) && !own.clone().all(says_nothing) && own.next().is_some()
    };
    let mut paces: Vec<f64> =
        asked.iter().filter(counts).filter_map(|node| pace(*node, tests.iter())).collect();
    paces.sort_by(f64::total_cmp);
    let middle = *paces.get(paces.len().checked_sub(1)? / 2)?;
    Some(trimmed(&paces, middle))
}

fn all_of<'a>(tests: impl Iterator<Item = &'a Timed<'a>>) -> BTreeSet<u64> {
    tests.flat_map(|it| it.members.iter().copied()).collect()
}

/// Test by test, with the evidence on those that were slow.
fn transfers(outcome: &Value) -> u32 {
    let rounds = list(outcome, "rounds");
    let timed = |told| -> Option<Timed<'_>> {
        let comm = Some(told)
            .filter(|told: &&Value| told["result"] != "fail")
            .and_then(|told| time(&told["comm"]))?;
        let members = list(told, "members").iter().filter_map(Value::as_u64).collect();
        Some(Timed { members, across: told["across"].as_bool()?, comm, told })
    };
    let tests: Vec<Timed<'_>> =
        rounds.iter().flat_map(|round| list(round, "tests")).filter_map(timed).collect();
    let between: Vec<Timed<'_>> = tests.iter().filter(|it| it.across).cloned().collect();
    let (all_paces, far) = (all_of(tests.iter()), all_of(between.iter()));
    let near = all_of(tests.iter().filter(|it| !it.across));
    let mut lowest: BTreeMap<u64, f64> = BTreeMap::new();
    for it in &tests {
        let enough = |(_, counted, left_out): &(f64, usize, usize)| counted + left_out >= 6;
        let all = || held(it, &tests, &all_paces);
        let (found, is_of_all) = if it.across {
            match held(it, &between, &far) {
                Some(own) if enough(&own) => (Some(own), false),
                Some(own) => all()
                    .filter(|all| all.0.round() > own.0.round())
                    .map_or((Some(own), false), |all| (Some(all), true)),
                None => (None, false),
            }
        } else {
            match held(it, &tests, &near).filter(enough) {
                Some(own) => (Some(own), false),
                None => (all(), true),
            }
        };
        let baseline = &it.told["baseline"];
        let Some(found) = found.filter(|found| found.0 > 0.0) else {
            assert!(baseline.is_null() && it.told["ratio_permille"].is_null(), "{}", it.told);
            continue;
        };
        assert_told("a test", found, &baseline["time"], baseline);
        assert_eq!(baseline["of_all"], is_of_all, "{}", it.told);
        let ratio = it.comm / found.0;
        assert!((ratio * 1000.0 - it.told["ratio_permille"].as_f64().unwrap()).abs() <= 0.51, "{}", it.told);
        let was_cut = !list(it.told, "reasons").is_empty();
        assert_eq!(it.told["result"] == "slow", ratio > 2.0 || was_cut, "{}", it.told);
        for member in &it.members {
            let own = lowest.entry(*member).or_insert(ratio);
            *own = ratio.min(*own);
        }
    }
    let mut said = 0;
    for (number, node) in (0_u64..).zip(list(outcome, "nodes")) {
        let told = node["comm_permille"].as_f64();
        let found = lowest.get(&number).map(|ratio| ratio * 1000.0);
        assert!(told.zip(found).map_or(told.is_none() && found.is_none(), |(a, b)| (a - b).abs() <= 0.51));
        for evidence in list(node, "evidence") {
            let message = evidence["words"].as_str().expect("words");
            if message.starts_with("took ") {
                sentence(number, message, evidence, &rounds[evidence["round"].as_u64().unwrap() as usize]);
                said += 1;
            }
        }
    }
    said
}

/// The evidence on a test matches its record.
fn sentence(number: u64, message: &str, evidence: &Value, round: &Value) {
    let mut members: BTreeSet<u64> = list(evidence, "partners").iter().filter_map(Value::as_u64).collect();
    members.insert(number);
    let is_it = |test: &&Value| {
        list(test, "members").iter().filter_map(Value::as_u64).collect::<BTreeSet<u64>>() == members
    };
    let test = list(round, "tests").iter().find(is_it).expect("the test that it is said of");
    let comm = time(&test["comm"]).expect("it did not fail");
    assert!(message.starts_with(&format!("took {} with node ", millis(comm))), "{message}");
    let baseline = &test["baseline"];
    let Some(mean) = time(&baseline["time"]) else {
        assert!(!message.contains("times the baseline"), "{message}");
        return;
    };
    let class = match (baseline["of_all"] == true, test["across"] == true) {
        (true, _) => "in all tests",
        (false, true) => "between racks",
        (false, false) => "within racks",
    };
    let many = |count: &Value, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let left_out = match baseline["left_out"].as_u64() {
        Some(0) | None => String::new(),
        Some(_) => format!(", outliers left out: {}", many(&baseline["left_out"], "node")),
    };
    let expected = format!(
        ": {:.2} times the baseline {class}: {}, the mean of {}{left_out}",
        comm / mean,
        millis(mean),
        many(&baseline["counted"], "other node")
    );
    let rest = message.split_once(&expected).unwrap_or_else(|| panic!("{message}: {expected}")).1;
    let doubt = "; this test alone is not enough evidence";
    assert!(["", doubt].contains(&rest) || rest.starts_with("; timed out after "), "{message}");
}

#[test]
fn every_number_follows_from_what_is_listed() {
    let (mut of_computing, mut of_transfers) = (0, 0);
    for seed in 0..1500 {
        let mut rng = Rng::new(seed, 77);
        let nodes = 2 + rng.below(40) as u32;
        let mut any =
            |count: usize| -> Vec<u32> { (0..count).map(|_| rng.below(nodes as usize) as u32).collect() };
        let slow = |nodes: Vec<u32>, factor: f64| nodes.into_iter().map(|node| (node, factor)).collect();
        let cluster = Cluster {
            seed,
            noise: [0.0, 0.05, 0.3][seed as usize % 3],
            slow_compute: slow(any(seed as usize / 3 % 12), 2.6),
            slow_nic: slow(any(seed as usize / 5 % 4), [4.1, 900.0][seed as usize % 2]),
            faulty: any(seed as usize / 7 % 3).into_iter().collect(),
            local_fault: any(seed as usize / 11 % 2).into_iter().collect(),
            lost: any(seed as usize / 13 % 2).into_iter().collect(),
            ..Cluster::healthy(nodes, 1 + seed as u32 % (nodes / 2).max(1))
        };
        let policy =
            Policy { exclude_straggler: seed % 4 != 0, taint_guard_permille: 1000, ..Policy::new(seed) };
        let outcome = serde_json::to_value(rehearse(&cluster, policy)).unwrap();
        of_computing += computing(&outcome);
        of_transfers += transfers(&outcome);
    }
    assert!(of_computing > 1000 && of_transfers > 1000, "{of_computing} and {of_transfers} sentences");
}
