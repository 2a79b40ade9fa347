//! Paths between hosts that are fit: two that do not reach each other, and a switch that has lost its way out.

use std::fs;

use super::job::Job;
use crate::hosts::{Network, data_address};

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

#[test]
fn hosts_under_a_switch_that_has_lost_its_way_out_are_left_out_and_not_tainted() {
    let Some(network) = Network::of(7) else { return };
    let (inside, outside) = ([4, 5, 6], [0, 1, 2, 3]);
    for a in inside {
        outside.iter().for_each(|b| network.cut(a, *b));
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let topology = folder.path().join("topology");
    let line = |host: usize| format!("asw-{} psw-0 {}\n", host / 4, data_address(host));
    fs::write(&topology, (0..7).map(line).collect::<String>()).expect("a file in our own folder");
    let job = Job::with_master(
        &network,
        &[&format!("--topology-config={}", topology.display())],
        &["--nnodes=4:7"],
    );
    let mut nodes = job.start();
    let report = job.report(0);
    assert_eq!(report.uplinks, ["asw-1"], "{report:#?}");
    for (number, node) in report.nodes.iter().enumerate() {
        let is_inside = number >= 4;
        let expected = if is_inside { "unreachable" } else { "healthy" };
        assert_eq!((&*node.verdict, node.excluded), (expected, is_inside), "{report:#?}");
        assert!(node.taint.is_none(), "{report:#?}");
    }
    let left = nodes.split_off(4);
    let _world = job.first_world(4);
    for outcome in job.leave(left, 201) {
        let said = outcome.stderr;
        assert!(said.contains("keeps this node out of the job (unreachable): "), "{said}");
        assert!(said.contains("; look first at the uplink of the switch it hangs under"), "{said}");
    }
    let _end = job.ends_well(nodes);
}
