//! Hosts that no other reaches on the data network, while the master reaches them all.

use super::job::{Job, take};
use crate::hosts::{Fault, Network, data_address};

/// One host of `count` is broken: it is named, leaves, and reports why and after which tests; the others train.
fn one_of(count: usize, bad: usize, fault: Fault, words: &str) {
    let Some(network) = Network::of(count) else { return };
    network.break_host(bad, fault);
    let job = Job::on(&network, &[&format!("--nnodes={}:{count}", count - 1)]);
    let mut nodes = job.start();
    let report = job.report(0);
    report.blames(&[(bad, "fault")]);
    assert_eq!(report.links, [], "{report:#?}");
    let witnesses = report.witnesses_against(bad);
    assert!(witnesses.len() >= 2, "{report:#?}");
    let left = take(&mut nodes, bad);
    let world = job.first_world(u32::try_from(count - 1).expect("a few"));
    assert!(world.iter().all(|worker| worker.var("PLACE") != (bad + 1).to_string()), "{world:#?}");
    for outcome in job.leave([left], 201) {
        let output = outcome.stderr;
        assert!(output.contains("error: excluded by the network check (fault): "), "{output}");
        assert!(output.contains("\n  Check first: this node's network interface, cable, driver"), "{output}");
        for witness in &witnesses {
            let address = data_address(*witness);
            assert!(output.contains(&format!("failed with node number {witness} (")), "{output}");
            let seen = format!(", {address}), which is verified: cannot connect to peer {address}:");
            assert!(output.contains(&seen), "{output}");
        }
        assert_eq!(output.matches(words).count(), witnesses.len(), "{output}");
    }
    let name = format!("{}) (fault)", data_address(bad));
    for node in &nodes {
        let output = job.await_output(node, "network check passed");
        assert!(output.contains("; excluded: ") && output.contains(&name), "{output}");
    }
    let _end = job.ends_well(nodes);
}

#[test]
fn of_four_only_the_host_that_is_not_received_is_named() {
    one_of(4, 2, Fault::Mute, "timed out");
}

#[test]
fn of_five_only_the_host_that_is_not_reached_is_named() {
    one_of(5, 4, Fault::Deaf, "timed out");
}

#[test]
fn of_four_only_the_host_that_refuses_to_send_is_named() {
    one_of(4, 0, Fault::Blackhole, "there is a blackhole route");
}

#[test]
fn of_four_only_the_host_that_gets_no_large_packets_is_named() {
    let Some(network) = Network::of(4) else { return };
    network.lose_large_packets(1);
    let job = Job::on(&network, &["--nnodes=3:4"]);
    let mut nodes = job.start();
    let report = job.report(0);
    report.blames(&[(1, "fault")]);
    for piece in &report.nodes[1].evidence {
        // It was connected, so it is the deadline that ends the test.
        let is_cut = piece.words.contains(": timed out after ")
            || piece.words.contains(": no bytes transferred within ");
        assert!(is_cut, "{report:#?}");
    }
    let left = take(&mut nodes, 1);
    let _world = job.first_world(3);
    let _said = job.leave([left], 201);
    let _end = job.ends_well(nodes);
}

#[test]
fn of_six_only_the_two_broken_hosts_are_named() {
    let Some(network) = Network::of(6) else { return };
    network.break_host(1, Fault::Mute);
    network.break_host(4, Fault::Deaf);
    let job = Job::on(&network, &["--nnodes=4:6"]);
    let mut nodes = job.start();
    let report = job.report(0);
    report.blames(&[(1, "fault"), (4, "fault")]);
    assert_eq!(report.links, [], "{report:#?}");
    for bad in [1, 4] {
        assert!(report.witnesses_against(bad).len() >= 2, "{report:#?}");
    }
    let left = [take(&mut nodes, 4), take(&mut nodes, 1)];
    let _world = job.first_world(4);
    let _said = job.leave(left, 201);
    let _end = job.ends_well(nodes);
}

#[test]
fn four_of_six_broken_hosts_are_a_mass_failure() {
    let Some(network) = Network::of(6) else { return };
    for bad in [0, 2, 3, 5] {
        network.break_host(bad, Fault::Mute);
    }
    let job = Job::on(&network, &["--nnodes=2:6"]);
    let nodes = job.start();
    let report = job.report(0);
    assert!(report.guard.mass_failure, "{report:#?}");
    assert_eq!(report.guard.taints, 4, "{report:#?}");
    assert!(report.nodes.iter().all(|node| node.taint.is_none()), "{report:#?}");
    assert_eq!(report.verdicts(), ["fault", "healthy", "fault", "fault", "healthy", "fault"], "{report:#?}");
    for outcome in job.fails(nodes, 203).iter().take(6) {
        let output = &outcome.stderr;
        assert!(output.contains("found 4 of 6 nodes at fault (limit: 2)"), "{output}");
        assert!(output.contains("check first what they share, such as a switch, a driver, the"), "{output}");
    }
}
