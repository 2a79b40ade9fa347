//! The report of one rehearsal.

use serde_json::json;

use diagnosis::network_check::rehearsal::rehearse;

use super::{
    super::{read, settings::Mode},
    *,
};

fn said(line: &str) -> (String, serde_json::Value) {
    let Mode::Once(settings) = read(line).unwrap().mode else { panic!("{line}") };
    let outcome = rehearse(&settings.cluster, settings.policy.clone());
    let document = serde_json::from_str(&super::json(&settings, &outcome)).unwrap();
    (table(&settings, &outcome), document)
}

#[test]
fn faults_that_were_not_found_are_reported() {
    for (line, told) in [
        ("--nodes 64 --racks 4 --dead-link 5:20", "not found: link 5-20: never tested\n"),
        ("--nodes 8 --flaky 3:0", "not found: node 3 (flaky): it passed all its tests ("),
        (
            "--nodes 8 --slow-nic 3:9",
            "not found: node 3 (slow network interface): only --exclude-straggler looks for it",
        ),
        (
            "--nodes 3 --slow-nic 1:9 --exclude-straggler",
            "(slow network interface): at least 4 nodes are needed to find a slow interface",
        ),
        (
            "--nodes 8 --slow-compute 2:1.5",
            "not found: node 2 (slow to compute): it took 1.50 times as long as",
        ),
        ("--nodes 2 --faulty 0", "not found: node 0 (faulty): inconclusive: not enough is known"),
        ("--nodes 8 --dead-uplink 0", "not found: rack 0 (cut off): never tested with another rack"),
    ] {
        let (text, document) = said(line);
        assert!(text.contains(told), "{line}: {text}");
        assert_eq!(document["missed"].as_array().unwrap().len(), 1, "{line}: {document}");
    }
    let (text, document) =
        said("--nodes 16 --racks 4 --faulty 3,9 --local-fault 4 --lost 5 --slow-compute 7:3");
    assert!(!text.contains("not found"), "{text}");
    assert_eq!(document["missed"], json!([]));
    let (_, document) = said("--nodes 64 --racks 4 --dead-link 5:20");
    let missed =
        json!([{"option": "dead-link", "numbers": [5, 20], "reason": "never-tested", "why": "never tested"}]);
    assert_eq!(document["missed"], missed);
}

#[test]
fn the_job_after_the_check_is_reported() {
    for (line, told) in [
        ("--nodes 4", "4 nodes are healthy, 0 are not\n"),
        ("--nodes 4", "the job: continues with 4 nodes\n"),
        (
            "--nodes 8 --faulty 1",
            "the job: continues with 7 nodes, if --nnodes allows so few; 1 node excluded\n",
        ),
        ("--nodes 8 --faulty 1", "7 nodes are healthy, 1 is not\n"),
        (
            "--nodes 6 --faulty 1,2,3",
            "the job: would fail with exit code 203 (more faulty nodes than --taint-guard allows); no node \
             is excluded\n",
        ),
        (
            "--nodes 2 --faulty 0",
            "the job: would fail with exit code 202 (inconclusive, and --on-inconclusive=fail)",
        ),
        ("--nodes 1 --faulty 0", "1 node is not tested: a single node has no peer to test with"),
        ("--nodes 1 --faulty 0", "simulated: 1 node in 1 rack, seed 0\n"),
        ("--nodes 1 --faulty 0", "not found: node 0 (faulty): never tested\n"),
        ("--nodes 1 --local-fault 0", "the job: waits for other nodes; 1 node excluded\n"),
    ] {
        let (text, _) = said(line);
        assert!(text.contains(told), "{line}: {text}");
    }
    let (text, document) = said("--nodes 6 --local-fault 1,2,3");
    assert!(!text.contains("nodes excluded"), "{text}");
    assert_eq!(document["mass_failure"], true);
}

#[test]
fn findings_are_in_table_and_document() {
    use diagnosis::network_check::{Ambiguity, Cut, NetworkElement, NodeVerdict, PartialUplink};

    let line = "--nodes 16 --racks 4 --pod-size 2 --dead-pod 0 --liar 3 --dies 4@1 --partial-uplink 3:0.5 \
                 --dead-uplink 2@9 --transient 0.5 --on-bad-path fail";
    let Mode::Once(settings) = read(line).unwrap().mode else { panic!() };
    let mut outcome = rehearse(&settings.cluster, settings.policy.clone());
    for node in &mut outcome.nodes {
        (node.verdict, node.tainted, node.excluded) = (NodeVerdict::Healthy, false, false);
    }
    for node in [0, 1, 2, 12] {
        (outcome.nodes[node].verdict, outcome.nodes[node].excluded) = (NodeVerdict::Unreachable, true);
    }
    outcome.guard.mass_failure = false;
    (outcome.links, outcome.rack_pairs, outcome.uplinks) = (Vec::new(), Vec::new(), Vec::new());
    outcome.leaves = vec![1];
    outcome.pods = vec![0];
    outcome.partial_uplinks = vec![PartialUplink { rack: 3, dead: 2, tested: 4 }];
    outcome.ambiguous = vec![Ambiguity {
        candidates: vec![NetworkElement::Node(9), NetworkElement::Link(9, 10), NetworkElement::Uplink(2)],
    }];
    outcome.cut = Some(Cut { left_out: vec![0, 1, 2, 12], message: "pod 0 reaches itself only".to_owned() });
    let text = table(&settings, &outcome);
    for line in [
        "simulated: 16 nodes in 4 racks and 2 pods, seed 0\n",
        "1 that breaks later, 1 with false reports, 1 rack cut off later, 1 rack with some of its uplinks \
         down, 1 pod cut off, each \
         test fails \
         with probability 0.5; noise 0\n",
        "rack 1: none of its nodes can be reached, not even from within the rack\n",
        "pod 0: every path out of it is down\n",
        "rack 3: some of its uplinks are down; 2 of 4 pairs with other racks failed\n",
        "ambiguous: node 9 or link 9-10 or uplink of rack 2\n",
        "cut: pod 0 reaches itself only\n",
        "excluded, since the simulated fault cuts them off: nodes 0 to 2, 12\n",
        "named, though it works: switch of rack 1\n",
        "called ambiguous, though all of these work: node 9 or link 9-10 or uplink of rack 2\n",
        "the job: would fail with exit code 202 (a path is down, and --on-bad-path=fail); no node is excluded\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let document: serde_json::Value = serde_json::from_str(&super::json(&settings, &outcome)).unwrap();
    let candidates = json!([{"candidates": [{"node": 9}, {"link": [9, 10]}, {"uplink": 2}]}]);
    for (name, value) in [
        ("leaves", json!([1])),
        ("pods", json!([0])),
        ("partial_uplinks", json!([{"rack": 3, "dead": 2, "tested": 4}])),
        ("ambiguous", candidates),
        ("cut", json!({"left_out": [0, 1, 2, 12], "words": "pod 0 reaches itself only"})),
        ("healthy_tainted", json!(0)),
        ("healthy_excluded", json!(0)),
        ("starts_over_cut", json!(0)),
        ("wrong_names", json!([[{"leaf": 1}], [{"node": 9}, {"link": [9, 10]}, {"uplink": 2}]])),
    ] {
        assert_eq!(document[name], value, "{name}");
    }
    assert_eq!(document["job"]["exit_code"], 202);
    assert_eq!(document["tests"].as_array().unwrap().len(), outcome.rounds.len());
    assert_eq!(document["findings"].as_array().unwrap().len(), 4);
}

#[test]
fn the_tables_are_pleasant_to_read() {
    let lines = [
        "--nodes 8 --racks 2",
        "--nodes 16 --racks 4 --faulty 3,9 --local-fault 4 --dead-link 5:10 --slow-compute 7:3",
        "--nodes 16 --racks 4 --dead-uplink 2 --liar 1",
        "--nodes 16 --racks 4 --faulty random --repeat 20",
        "--sweep 2",
    ];
    let tables = lines.map(|line| {
        let asked = read(line).unwrap();
        format!("$ dlrover-diag rehearse {line}\n{}", super::super::said(&asked))
    });
    insta::assert_snapshot!(tables.join("\n"));
}
