//! Paths between hosts that are healthy: two that do not reach each other, and a switch that has lost its uplinks.

use std::fs;

use tempfile::TempDir;

use super::job::Job;
use crate::hosts::{Network, data_address};

/// Hosts that reach each other and no others.
fn cut_off(network: &Network, inside: &[usize]) {
    for a in inside {
        let outside = (0..network.len()).filter(|host| !inside.contains(host));
        outside.for_each(|b| network.cut(*a, b));
    }
}

/// The master's option for hosts under these switches, and the directory of the file that it names.
fn under(switches: &[u32]) -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("topology");
    let line = |(host, switch): (usize, &u32)| format!("asw-{switch} psw-0 {}\n", data_address(host));
    fs::write(&file, switches.iter().enumerate().map(line).collect::<String>()).expect("our own directory");
    let option = format!("--topology-config={}", file.display());
    (folder, option)
}

#[test]
fn a_cut_between_two_healthy_hosts_is_a_link_and_taints_no_node() {
    let Some(network) = Network::of(4) else { return };
    // Which nodes are tested together follows from the job's name and the number of the check.
    let flags = ["--nnodes=4", "--rdzv-id=the-same", "--on-bad-path=proceed"];
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
fn a_cut_between_two_switches_is_a_path_and_taints_no_node() {
    let Some(network) = Network::of(4) else { return };
    cut_off(&network, &[2, 3]);
    let (_folder, topology) = under(&[0, 0, 1, 1]);
    let job = Job::with_master(&network, &[&topology], &["--nnodes=4", "--on-bad-path=proceed"]);
    let nodes = job.start();
    let report = job.report(0);
    report.blames(&[]);
    let paths: Vec<_> = report.rack_pairs.iter().map(|path| path.racks.clone()).collect();
    assert_eq!(paths, [["asw-0", "asw-1"]], "{report:#?}");
    assert_eq!((&report.links[..], &report.uplinks[..]), (&[][..], &[][..]), "{report:#?}");
    let _said = job.await_master_log("path asw-0 - asw-1: down; no node is tainted for it");
    let _world = job.first_world(4);
    let _end = job.ends_well(nodes);
}

#[test]
fn hosts_under_a_switch_without_an_uplink_are_excluded_and_not_tainted() {
    let Some(network) = Network::of(7) else { return };
    cut_off(&network, &[4, 5, 6]);
    let (_folder, topology) = under(&[0, 0, 1, 1, 2, 2, 2]);
    let job = Job::with_master(&network, &[&topology], &["--nnodes=4:7"]);
    let mut nodes = job.start();
    let report = job.report(0);
    assert_eq!(
        (&report.uplinks[..], &report.rack_pairs[..]),
        (&["asw-2".to_owned()][..], &[][..]),
        "{report:#?}"
    );
    for (number, node) in report.nodes.iter().enumerate() {
        let is_inside = number >= 4;
        let expected = if is_inside { "unreachable" } else { "healthy" };
        assert_eq!((&*node.verdict, node.excluded), (expected, is_inside), "{report:#?}");
        assert!(node.taint.is_none(), "{report:#?}");
    }
    let left = nodes.split_off(4);
    let _world = job.first_world(4);
    for outcome in job.leave(left, 201) {
        let output = outcome.stderr;
        assert!(output.contains("excluded by the network check (unreachable): "), "{output}");
        assert!(output.contains("\n  Check first: the uplink of this node's switch"), "{output}");
    }
    let _end = job.ends_well(nodes);
}
