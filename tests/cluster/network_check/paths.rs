//! Hosts that nobody reaches on the data network, while the master hears them all.

use super::job::{Job, take};
use crate::hosts::{Fault, Network, data_address};

/// One host of `count` is broken: it is named, leaves and says why and with whom; the others train.
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
        let said = outcome.stderr;
        assert!(said.contains("error: excluded by the network check (fault): "), "{said}");
        assert!(said.contains("\n  Look first at its network interface, cable and driver"), "{said}");
        for witness in &witnesses {
            let address = data_address(*witness);
            let seen = format!(
                "failed with node {witness}, which is proven good: cannot connect to peer {address}:"
            );
            assert!(said.contains(&seen), "{said}");
            assert!(said.contains(&format!(", {address})")), "{said}");
        }
        assert_eq!(said.matches(words).count(), witnesses.len(), "{said}");
    }
    let name = format!("{}) (fault)", data_address(bad));
    for node in &nodes {
        let said = job.await_said(node, "network check passed");
        assert!(said.contains("; left out: ") && said.contains(&name), "{said}");
    }
    let _end = job.ends_well(nodes);
}

#[test]
fn of_four_the_one_that_is_not_heard_is_named_and_nobody_else() {
    one_of(4, 2, Fault::Mute, "it does not answer");
}

#[test]
fn of_five_the_one_that_nobody_reaches_is_named_and_nobody_else() {
    one_of(5, 4, Fault::Deaf, "it does not answer");
}

#[test]
fn of_four_the_one_that_refuses_to_send_is_named_and_nobody_else() {
    one_of(4, 0, Fault::Blackhole, "there is a blackhole route");
}

#[test]
fn of_four_the_one_that_is_answered_and_gets_no_large_packets_is_named_and_nobody_else() {
    let Some(network) = Network::of(4) else { return };
    network.lose_large_packets(1);
    let job = Job::on(&network, &["--nnodes=3:4"]);
    let mut nodes = job.start();
    let report = job.report(0);
    report.blames(&[(1, "fault")]);
    for piece in &report.nodes[1].evidence {
        // It was connected, so it is the deadline that ends the test.
        let is_cut =
            piece.words.contains(": cut short after ") || piece.words.contains(": no byte moved within ");
        assert!(is_cut, "{report:#?}");
    }
    let left = take(&mut nodes, 1);
    let _world = job.first_world(3);
    let _said = job.leave([left], 201);
    let _end = job.ends_well(nodes);
}

#[test]
fn two_of_six_are_named_and_nobody_else() {
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
fn four_of_six_are_no_matter_of_nodes() {
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
        let said = &outcome.stderr;
        assert!(
            said.contains("found fault with 4 of 6 nodes, more than the 2 that --taint-guard allows"),
            "{said}"
        );
        assert!(said.contains("look first at what they share, a switch, a driver, the"), "{said}");
    }
}
