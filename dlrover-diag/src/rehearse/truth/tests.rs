//! The outcome of each check is edited by hand, so that these tests do not depend on the decisions.

use diagnosis::network_check::{
    Ambiguity, Cut, LinkFault, LinkKind, NetworkElement, NodeVerdict, PartialUplink, RackPairFault,
    rehearsal::rehearse,
};
use serde_json::json;

use super::{
    super::{read, settings::Mode},
    *,
};

fn settings(line: &str) -> Settings {
    match read(line).unwrap().mode {
        Mode::Once(settings) => settings,
        other => panic!("{line}: {other:?}"),
    }
}

/// The tests of a check, with all nodes healthy and nothing named.
fn blank(line: &str) -> (Settings, Outcome) {
    let settings = settings(line);
    let mut outcome = rehearse(&settings.cluster, settings.policy.clone());
    for node in &mut outcome.nodes {
        (node.verdict, node.tainted, node.excluded) = (NodeVerdict::Healthy, false, false);
        node.evidence.clear();
    }
    outcome.links.clear();
    outcome.rack_pairs.clear();
    outcome.uplinks.clear();
    outcome.leaves.clear();
    outcome.pods.clear();
    outcome.partial_uplinks.clear();
    outcome.ambiguous.clear();
    outcome.cut = None;
    outcome.guard.mass_failure = false;
    (settings, outcome)
}

fn leave_out(outcome: &mut Outcome, nodes: impl IntoIterator<Item = u32>) {
    for node in nodes {
        let node = outcome.nodes.get_mut(node as usize).unwrap();
        (node.verdict, node.excluded) = (NodeVerdict::Unreachable, true);
    }
}

fn either(candidates: &[NetworkElement]) -> Ambiguity {
    Ambiguity { candidates: candidates.to_vec() }
}

#[test]
fn what_is_named_is_found() {
    let pair = |racks| RackPairFault { racks, pairs: Vec::new() };
    type Name = fn(&mut Outcome);
    let cases: &[(&str, Name)] = &[
        ("--nodes 8 --faulty 3", |it| {
            it.ambiguous.push(either(&[NetworkElement::Node(3), NetworkElement::Link(2, 3)]))
        }),
        ("--nodes 8 --racks 4 --faulty 3", |it| it.leaves.push(1)),
        ("--nodes 8 --faulty 3", |it| it.nodes[3].excluded = true),
        ("--nodes 8 --racks 2 --faulty 3", |it| it.nodes[3].verdict = NodeVerdict::Flaky),
        ("--nodes 9 --liar 3", |it| it.nodes[3].verdict = NodeVerdict::Fault),
        ("--nodes 8 --racks 4 --pod-size 2 --faulty 3", |it| it.pods.push(0)),
        ("--nodes 8 --racks 4 --dead-uplink 1", |it| it.uplinks.push(1)),
        ("--nodes 8 --racks 4 --dead-uplink 1", |it| {
            it.ambiguous.push(either(&[NetworkElement::Uplink(1), NetworkElement::Leaf(1)]));
        }),
        // The other end of the only path is the same.
        ("--nodes 8 --racks 2 --dead-uplink 1", |it| it.uplinks.push(0)),
        ("--nodes 8 --racks 4 --pod-size 2 --dead-uplink 1", |it| it.pods.push(0)),
        ("--nodes 8 --racks 4 --pod-size 2 --dead-pod 1", |it| it.pods.push(1)),
        ("--nodes 8 --racks 4 --pod-size 2 --dead-pod 1", |it| it.uplinks.extend([2, 3])),
        ("--nodes 8 --racks 4 --dead-link 0:7", |it| it.uplinks.push(3)),
        ("--nodes 8 --racks 4 --dead-link 0:7", |it| {
            it.partial_uplinks.push(PartialUplink { rack: 0, dead: 1, tested: 4 })
        }),
        ("--nodes 2 --racks 2 --dead-rack-pair 0:1", |it| {
            it.links.push(LinkFault { nodes: (0, 1), kind: LinkKind::Dead });
        }),
    ];
    for (line, name) in cases {
        let (settings, mut outcome) = blank(line);
        assert_eq!(Truth::of(&settings, &outcome).missed.len(), 1, "{line}");
        name(&mut outcome);
        assert_eq!(Truth::of(&settings, &outcome).missed, [], "{line}");
    }
    let (settings, mut outcome) = blank("--nodes 16 --racks 4 --dead-rack-pair 0:1 --dead-uplink 3");
    outcome.rack_pairs.push(pair((0, 1)));
    let missed = Truth::of(&settings, &outcome).missed;
    assert_eq!(missed.len(), 1);
    assert_eq!(missed[0].reason, Reason::Shown);
    outcome.rack_pairs.extend([pair((0, 3)), pair((1, 3)), pair((2, 3))]);
    assert_eq!(Truth::of(&settings, &outcome).missed, []);
}

#[test]
fn what_was_never_tested_while_it_was_broken_is_told() {
    for (line, told) in [
        ("--nodes 8 --dies 3@0", "node 3 (breaks after round 0): tested 1 time, always before it broke"),
        ("--nodes 8 --faulty 1 --dies 3@7", "node 3 (breaks after round 7): tested "),
        (
            "--nodes 8 --racks 4 --dead-uplink 1@0",
            "rack 1 (cut off after round 0): tested 2 times, always before",
        ),
        (
            "--nodes 8 --racks 1 --dead-uplink 0@0",
            "rack 0 (cut off after round 0): never tested with another rack",
        ),
        (
            "--nodes 8 --racks 1 --partial-uplink 0:0.5",
            "rack 0 (some of its uplinks down): never tested with another",
        ),
        (
            "--nodes 8 --racks 4 --partial-uplink 2:0",
            "rack 2 (some of its uplinks down): the 2 pairs tested with other racks used",
        ),
        ("--nodes 8 --racks 4 --pod-size 4 --faulty 0,1,2,3,4,5 --dead-pod 0", "pod 0 (cut off): "),
    ] {
        let settings = settings(line);
        let outcome = rehearse(&settings.cluster, settings.policy.clone());
        let missed: Vec<String> =
            Truth::of(&settings, &outcome).missed.iter().map(Missed::to_string).collect();
        assert!(missed.iter().any(|it| it.contains(told)), "{line}: {missed:?}");
    }
    let (settings, outcome) = blank("--nodes 8 --dies 3@0");
    let document = serde_json::to_value(Truth::of(&settings, &outcome).missed).unwrap();
    let why = "tested 1 time, always before it broke";
    let expected =
        json!([{"option": "dies", "numbers": [3], "after_round": 0, "reason": "broke-later", "why": why}]);
    assert_eq!(document, expected);
}

#[test]
fn a_broken_node_that_is_called_unreachable_escapes_unless_it_is_cut_off() {
    for (line, missed) in [
        ("--nodes 8 --racks 2 --faulty 3", &["node 3 (faulty): reported as unreachable, but reachable"][..]),
        ("--nodes 8 --racks 4 --faulty 3 --dead-uplink 1", &["rack 1 (cut off): tested"]),
    ] {
        let (settings, mut outcome) = blank(line);
        leave_out(&mut outcome, [2, 3]);
        let words: Vec<String> =
            Truth::of(&settings, &outcome).missed.iter().map(Missed::to_string).collect();
        assert_eq!(words.len(), missed.len(), "{line}: {words:?}");
        assert!(words.iter().zip(missed).all(|(word, told)| word.contains(told)), "{line}: {words:?}");
    }
}

#[test]
fn a_link_to_a_broken_node_is_hidden() {
    let seen = (0..8).filter_map(|other| {
        let (settings, outcome) = blank(&format!("--nodes 9 --faulty 8 --dead-link {other}:8"));
        let missed = Truth::of(&settings, &outcome).missed;
        missed.iter().map(Missed::reason).find(|reason| *reason == Reason::Hidden)
    });
    assert!(seen.count() > 0);
}

#[test]
fn a_part_is_found_where_all_that_failed_is_named() {
    let (settings, mut outcome) = blank("--nodes 64 --racks 8 --partial-uplink 2:0.5");
    let dead: Vec<(u32, u32)> =
        last_tests(&outcome).into_keys().filter(|(a, b)| settings.cluster.is_cut_in(0, *a, *b)).collect();
    assert!(dead.len() > 1, "{dead:?}");
    let missed = Truth::of(&settings, &outcome).missed;
    assert_eq!((missed.len(), missed[0].reason), (1, Reason::Shown));
    outcome.links = dead.iter().map(|nodes| LinkFault { nodes: *nodes, kind: LinkKind::Dead }).collect();
    assert_eq!(Truth::of(&settings, &outcome).missed, []);
    assert_eq!(Truth::of(&settings, &outcome).wrong, [] as [Vec<NetworkElement>; 0]);
    outcome.links.clear();
    outcome.partial_uplinks.push(PartialUplink { rack: 2, dead: 3, tested: 8 });
    assert_eq!(Truth::of(&settings, &outcome).missed, []);
    assert_eq!(Truth::of(&settings, &outcome).wrong, [] as [Vec<NetworkElement>; 0]);
}

#[test]
fn healthy_nodes_that_are_blamed_are_told() {
    let (settings, mut outcome) = blank("--nodes 16 --racks 4 --dead-uplink 1 --faulty 9 --liar 10");
    leave_out(&mut outcome, 4..8);
    for node in [2, 9] {
        (outcome.nodes[node].verdict, outcome.nodes[node].tainted) = (NodeVerdict::Fault, true);
        outcome.nodes[node].excluded = true;
    }
    (outcome.nodes[3].verdict, outcome.nodes[3].excluded) = (NodeVerdict::Flaky, true);
    outcome.cut = Some(Cut { left_out: vec![4, 5, 6, 7], message: "rack 1 reaches itself only".into() });
    let truth = Truth::of(&settings, &outcome);
    assert_eq!((truth.healthy_tainted(), truth.healthy_excluded(), truth.cut_off()), (1, 2, 4));
    let words: Vec<String> = truth.blamed.iter().map(Blamed::to_string).collect();
    let expected = [
        "found at fault, though it is healthy: node 2: fault, tainted",
        "excluded, though it is healthy: node 3: flaky, not tainted",
        "excluded, since the simulated fault cuts it off: node 4: unreachable",
    ];
    assert_eq!(words[..3], expected);
    let expected = json!({
        "node": 4,
        "tainted": false,
        "excluded": true,
        "verdict": "unreachable",
        "cut_off": true,
        "why": "unreachable: rack 1 reaches itself only",
    });
    assert_eq!(serde_json::to_value(&truth.blamed[2]).unwrap(), expected);
    // A slow node is not healthy where it is looked for.
    for (line, blamed) in
        [("--nodes 8 --slow-nic 1:4", 1), ("--nodes 8 --slow-nic 1:4 --exclude-straggler", 0)]
    {
        let (settings, mut outcome) = blank(line);
        leave_out(&mut outcome, [1]);
        assert_eq!(Truth::of(&settings, &outcome).blamed.len(), blamed, "{line}");
    }
}

#[test]
fn what_works_is_named_wrongly() {
    let (settings, mut outcome) =
        blank("--nodes 16 --racks 4 --pod-size 2 --dead-rack-pair 0:1 --faulty 12,13,14,15");
    outcome.links.push(LinkFault { nodes: (0, 5), kind: LinkKind::Dead });
    outcome.links.push(LinkFault { nodes: (0, 9), kind: LinkKind::Dead });
    outcome.links.push(LinkFault { nodes: (1, 9), kind: LinkKind::Flaky });
    outcome.links.push(LinkFault { nodes: (2, 9), kind: LinkKind::Slow });
    outcome.rack_pairs.push(RackPairFault { racks: (0, 1), pairs: vec![(0, 4)] });
    outcome.rack_pairs.push(RackPairFault { racks: (0, 2), pairs: vec![(0, 8)] });
    outcome.uplinks.extend([0, 3]);
    outcome.leaves.extend([2, 3]);
    outcome.pods.extend([0, 1]);
    outcome.ambiguous.push(either(&[NetworkElement::Node(0), NetworkElement::Node(12)]));
    outcome.ambiguous.push(either(&[NetworkElement::Node(0), NetworkElement::Uplink(1)]));
    outcome.partial_uplinks.push(PartialUplink { rack: 0, dead: 1, tested: 2 });
    let wrong = Truth::of(&settings, &outcome).wrong;
    let one = |element| vec![element];
    let expected = [
        one(NetworkElement::Link(0, 9)),
        one(NetworkElement::Link(1, 9)),
        one(NetworkElement::Link(2, 9)),
        one(NetworkElement::RackPair(0, 2)),
        one(NetworkElement::Uplink(0)),
        one(NetworkElement::Leaf(2)),
        one(NetworkElement::Pod(0)),
        one(NetworkElement::Pod(1)),
        one(NetworkElement::PartialUplink(0)),
        vec![NetworkElement::Node(0), NetworkElement::Uplink(1)],
    ];
    assert_eq!(wrong, expected);
}

#[test]
fn a_job_over_a_known_cut_is_counted() {
    let (settings, mut outcome) = blank("--nodes 16 --racks 2 --dead-uplink 0");
    // The tests that failed: each of the first round, and what was tested later.
    let failed = Truth::of(&settings, &outcome).over_cut;
    assert!((8..64).contains(&failed), "{failed}");
    outcome.uplinks.push(0);
    assert_eq!(Truth::of(&settings, &outcome).over_cut, 64);
    leave_out(&mut outcome, 0..7);
    assert_eq!(Truth::of(&settings, &outcome).over_cut, 8);
    leave_out(&mut outcome, [7]);
    assert_eq!(Truth::of(&settings, &outcome).over_cut, 0);
    // A job that fails trains over nothing.
    let (settings, mut outcome) = blank("--nodes 16 --racks 2 --dead-uplink 0 --on-bad-path fail");
    assert_eq!(Truth::of(&settings, &outcome).over_cut, failed);
    outcome.cut = Some(Cut { left_out: (0..8).collect(), message: "cut".into() });
    assert_eq!(Truth::of(&settings, &outcome).over_cut, 0);
}

#[test]
fn rounds_have_a_bound() {
    for (line, bound) in [
        ("--nodes 9", Some(1)),
        ("--nodes 8 --faulty 1,2", Some(3)),
        ("--nodes 9 --faulty 1,2", Some(4)),
        ("--nodes 9 --faulty 1,2,3", Some(5)),
        ("--nodes 8 --faulty 1,2,3", Some(5)),
        ("--nodes 8 --faulty 1,2,3,4", None),
        ("--nodes 8 --dead-link 1:2", Some(4)),
        ("--nodes 8 --faulty 1 --dead-link 1:2", Some(6)),
        ("--nodes 8 --racks 8 --faulty 1", Some(4)),
        ("--nodes 8 --local-fault 1", Some(1)),
        ("--nodes 8 --slow-nic 1:4", Some(1)),
        ("--nodes 8 --slow-nic 1:4 --exclude-straggler", Some(6)),
    ] {
        let (settings, outcome) = blank(line);
        assert_eq!(Truth::of(&settings, &outcome).bound, bound, "{line}");
    }
}
