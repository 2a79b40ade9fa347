//! Two hosts that do not reach each other, and everybody else reaches both.

use super::job::Job;
use crate::hosts::Network;

#[test]
fn a_cut_between_two_good_hosts_is_a_link_and_taints_nobody() {
    let Some(network) = Network::of(4) else { return };
    // Who is tested with whom is up to the job's name and the number of the check.
    let flags = ["--nnodes=4", "--rdzv-id=the-same"];
    let run = || {
        let job = Job::on(&network, &flags);
        let nodes = job.start();
        let report = job.report(0);
        report.blames(&[]);
        let _world = job.first_world(4);
        let _end = job.ends_well(nodes);
        report
    };
    let whole = run();
    assert_eq!((whole.rounds.len(), whole.links.len()), (1, 0), "{whole:#?}");
    let pairs = whole.first_pairs();
    let mut cut = pairs[0];
    network.cut(cut[0], cut[1]);
    let report = run();
    assert_eq!((&report.seed, report.first_pairs()), (&whole.seed, pairs), "{report:#?}");
    cut.sort_unstable();
    let links: Vec<_> = report.links.iter().map(|link| (link.nodes, &*link.kind)).collect();
    assert_eq!(links, [(cut, "dead")], "{report:#?}");
}
