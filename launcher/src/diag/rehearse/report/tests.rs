//! What is said of one rehearsal.

use serde_json::json;

use rules::network_check::rehearsal::rehearse;

use super::{
    super::{
        arguments::command,
        settings::{Asked, What},
    },
    *,
};

fn said(line: &str) -> (String, serde_json::Value) {
    let words = std::iter::once("rehearse").chain(line.split_whitespace());
    let asked = Asked::read(&command().try_get_matches_from(words).unwrap()).unwrap();
    let What::Once(settings) = asked.what else { panic!("{line}") };
    let outcome = rehearse(&settings.cluster, settings.policy.clone());
    let document = serde_json::from_str(&super::json(&settings, &outcome)).unwrap();
    (table(&settings, &outcome), document)
}

#[test]
fn what_was_not_found_is_told() {
    for (line, told) in [
        ("--nodes 64 --racks 4 --dead-link 5:20", "not found: link 5-20: never tested\n"),
        ("--nodes 8 --flaky 3:0", "not found: node 3 (flaky): it passed all its tests ("),
        (
            "--nodes 8 --slow-nic 3:9",
            "not found: node 3 (slow network card): only --exclude-straggler looks for it",
        ),
        (
            "--nodes 3 --slow-nic 1:9 --exclude-straggler",
            "(slow network card): it takes 4 nodes to tell whose",
        ),
        (
            "--nodes 8 --slow-compute 2:1.5",
            "not found: node 2 (slow to compute): it took 1.50 times as long as",
        ),
        ("--nodes 2 --faulty 0", "not found: node 0 (faulty): inconclusive, not enough is known"),
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
fn what_a_job_would_do_is_told() {
    for (line, told) in [
        ("--nodes 4", "4 nodes are healthy, 0 are not\n"),
        ("--nodes 4", "the job: goes on with 4 nodes\n"),
        (
            "--nodes 8 --faulty 1",
            "the job: goes on with 7 nodes, where --nnodes allows so few; left out: 1\n",
        ),
        ("--nodes 8 --faulty 1", "7 nodes are healthy, 1 is not\n"),
        (
            "--nodes 6 --faulty 1,2,3",
            "the job: would fail with exit code 203 (a mass failure), no node is left out\n",
        ),
        (
            "--nodes 2 --faulty 0",
            "the job: would fail with exit code 202 (inconclusive, and --on-inconclusive=fail)",
        ),
        ("--nodes 1 --faulty 0", "1 node is not tested: one alone has nobody to be tested with"),
        ("--nodes 1 --faulty 0", "imagined: 1 node in 1 rack, seed 0\n"),
        ("--nodes 1 --faulty 0", "not found: node 0 (faulty): never tested\n"),
        ("--nodes 1 --local-fault 0", "the job: waits for other nodes; left out: 1\n"),
    ] {
        let (text, _) = said(line);
        assert!(text.contains(told), "{line}: {text}");
    }
    let (text, document) = said("--nodes 6 --local-fault 1,2,3");
    assert!(!text.contains(", left out"), "{text}");
    assert_eq!(document["mass_failure"], true);
}
