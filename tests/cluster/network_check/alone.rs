//! One node has nobody to be tested with.

use super::report::Report;
use crate::lines;

#[test]
fn a_node_alone_is_checked_by_itself_and_says_that_the_network_was_not() {
    let job = lines();
    let file = job.dir().join("report.json");
    let flags = ["--standalone".to_owned(), "--network-check".to_owned()];
    let node = job.line().flags(flags).flags([format!("--taint-report={}", file.display())]).start();
    let _world = job.await_world(1, 0);
    let report = job.wait("the report", || Report::read(&std::fs::read_to_string(&file).ok()?));
    report.blames(&[]);
    assert!(report.network_untested && report.rounds.is_empty(), "{report:#?}");
    let said = job.await_said(&node, "this node is fit; the network was not tested, which takes two nodes");
    assert!(said.contains("network check: this node computes and talks to itself ("), "{said}");
    job.go();
    let _outcomes = job.finish([node], 0);
}
