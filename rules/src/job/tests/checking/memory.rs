//! What one check saw of a machine is remembered by the next: `lost` and `flaky` taint when they are seen again.

use super::*;

fn with(taint_flaky: Tainting) -> Terms {
    Terms { check: Some(CheckTerms { taint_flaky, ..check() }), ..terms(3, 4) }
}

/// A launcher of this life, on the machine of the first letter.
fn life(ring: &Ring, name: &str, rank: Option<u32>) -> JoinRequest {
    let machine = &name[..1];
    let request = ring.request(machine, None);
    JoinRequest { node_id: id(name), wish: rank.map(NodeRank), ..request }
}

/// `d` goes away in the running check, and the check ends.
fn lose(ring: &mut Ring, name: &str) {
    ring.orders.retain(|(node, _)| node.0 != name);
    ring.send(Event::NodeLost { node: id(name), cause: DISCONNECTED });
    finish(ring);
}

fn finish(ring: &mut Ring) {
    let before = ring.reports.len();
    while ring.reports.len() == before {
        ring.work();
        let effects = if ring.reports.len() == before { ring.test.due() } else { Vec::new() };
        ring.take(effects);
    }
}

fn of_four(taint_flaky: Tainting) -> Ring {
    let mut ring = Ring::new(Policy { restart_count: 9, ..policy() }, with(taint_flaky), &[]);
    for name in ["a", "b", "c", "d"] {
        let request = life(&ring, name, None);
        ring.send(Event::Joined(request));
    }
    ring
}

/// A later launcher joins those that train, and all four are checked.
fn check_again_with(ring: &mut Ring, name: &str) {
    let round = ring.host().unwrap().1;
    let host = ring.host().unwrap().0.to_owned();
    let _assignments = ring.test.hosted(&host, round);
    let request = life(ring, name, None);
    ring.send(Event::Joined(request));
    for member in ["a", "b", "c"] {
        let request = ring.request(member, Some(round));
        ring.send(Event::Joined(request));
    }
    assert_eq!(ring.orders.len(), 4);
}

/// The verdict on the one node that is not healthy, and whether it is tainted.
fn blamed(ring: &Ring) -> Option<(&'static str, bool)> {
    let outcome = &ring.reports.last().unwrap().outcome;
    let mut bad = outcome.nodes.iter().filter(|node| node.verdict != NodeVerdict::Healthy);
    let first = bad.next().map(|node| (node.verdict.as_str(), node.tainted));
    assert!(bad.all(|node| !node.tainted && !node.excluded));
    first
}

#[test]
fn a_machine_lost_in_two_checks_is_tainted_in_the_second_by_default() {
    for (taint_flaky, first, second) in
        [(Tainting::Now, true, true), (Tainting::Confirmed, false, true), (Tainting::Never, false, false)]
    {
        let mut ring = of_four(taint_flaky);
        lose(&mut ring, "d");
        assert_eq!(blamed(&ring), Some(("lost", first)), "{taint_flaky:?}");
        ring.test.at(60);
        check_again_with(&mut ring, "d2");
        lose(&mut ring, "d2");
        assert_eq!(blamed(&ring), Some(("lost", second)), "{taint_flaky:?}");
    }
}

#[test]
fn another_machine_that_is_lost_is_seen_for_the_first_time() {
    let mut ring = of_four(Tainting::Confirmed);
    lose(&mut ring, "d");
    ring.test.at(60);
    check_again_with(&mut ring, "e");
    lose(&mut ring, "e");
    assert_eq!(blamed(&ring), Some(("lost", false)));
}

#[test]
fn the_kubernetes_node_is_the_machine_where_it_is_known() {
    let on = |name: &str, ring: &Ring| {
        let mut request = ring.request(name, None);
        request.attributes.k8s_node_name = Some("worker-7".into());
        request
    };
    let mut ring = Ring::new(Policy { restart_count: 9, ..policy() }, with(Tainting::Confirmed), &[]);
    for name in ["a", "b", "c"] {
        ring.join(name);
    }
    let request = on("d", &ring);
    ring.send(Event::Joined(request));
    lose(&mut ring, "d");
    assert_eq!(blamed(&ring), Some(("lost", false)));
    ring.test.at(60);
    let _assignments = ring.test.hosted("a", 0);
    let request = on("e", &ring);
    ring.send(Event::Joined(request));
    for member in ["a", "b", "c"] {
        let request = ring.request(member, Some(0));
        ring.send(Event::Joined(request));
    }
    lose(&mut ring, "e");
    assert_eq!(blamed(&ring), Some(("lost", true)));
}

#[test]
fn a_master_that_was_started_again_remembers() {
    let mut ring = of_four(Tainting::Confirmed);
    lose(&mut ring, "d");
    ring.test.at(60);
    // The job as a snapshot has it.
    ring.test.job = serde_json::from_str(&serde_json::to_string(&ring.test.job).unwrap()).unwrap();
    check_again_with(&mut ring, "d2");
    ring.send(Event::Restarted);
    ring.orders.clear();
    for member in ["a", "b", "c", "d2"] {
        let after = (member.len() == 1).then_some(0);
        let request = JoinRequest { after: after.map(Round), ..life(&ring, member, None) };
        ring.send(Event::Joined(request));
    }
    lose(&mut ring, "d2");
    assert_eq!(blamed(&ring), Some(("lost", true)));
}

#[test]
fn a_machine_that_passes_the_next_check_was_not_lost_by_its_own_fault() {
    let mut ring = of_four(Tainting::Confirmed);
    lose(&mut ring, "d");
    ring.test.at(60);
    check_again_with(&mut ring, "d2");
    ring.work();
    assert_eq!((ring.reports.len(), blamed(&ring)), (2, None));
    let effects = ring.test.hosted("a", 1);
    ring.take(effects);
    let _ = ring.test.workers_fail("a", 1, false);
    for member in ["a", "b", "c", "d2"] {
        let request = JoinRequest { after: Some(Round(1)), ..life(&ring, member, None) };
        ring.send(Event::Joined(request));
    }
    lose(&mut ring, "d2");
    assert_eq!(blamed(&ring), Some(("lost", false)));
}

#[test]
fn a_launcher_that_is_started_again_in_place_right_after_the_check_is_no_sighting() {
    for (seconds, is_tainted) in [(1, false), (60, true)] {
        let mut ring = of_four(Tainting::Confirmed);
        lose(&mut ring, "d");
        assert_eq!(blamed(&ring), Some(("lost", false)));
        ring.test.now = ring.test.now + Duration::from_secs(seconds);
        check_again_with(&mut ring, "d2");
        lose(&mut ring, "d2");
        assert_eq!(blamed(&ring), Some(("lost", is_tainted)), "after {seconds} s");
    }
}

/// By its rank, before it was lost; without one, before or after that.
#[test]
fn a_launcher_restarted_on_its_machine_during_the_check_is_named_and_not_tainted() {
    for (rank, is_late) in [(Some(3), false), (None, false), (None, true)] {
        let mut ring = Ring::new(policy(), with(Tainting::Now), &[]);
        for (name, number) in [("a", 0), ("b", 1), ("c", 2), ("d", 3)] {
            let request = life(&ring, name, rank.map(|_| number));
            ring.send(Event::Joined(request));
        }
        ring.orders.retain(|(node, _)| node.0 != "d");
        ring.send(Event::LinkBroken { node: id("d") });
        if is_late {
            ring.send(Event::NodeLost { node: id("d"), cause: DISCONNECTED });
        }
        let request = life(&ring, "d2", rank);
        ring.send(Event::Joined(request));
        if rank.is_none() && !is_late {
            ring.send(Event::NodeLost { node: id("d"), cause: DISCONNECTED });
        }
        finish(&mut ring);
        let found = &ring.reports[0].outcome.nodes[3];
        let lost = NodeVerdict::Lost { reason: "its launcher was started again".to_owned() };
        assert_eq!((&found.verdict, found.tainted), (&lost, false), "{rank:?} {is_late}");
        assert_eq!(found.evidence[0].message, "lost: its launcher was started again");
        // The new one is checked with the others, without earlier findings.
        ring.work();
        assert_eq!((ring.reports.len(), blamed(&ring)), (2, None), "{rank:?} {is_late}");
        assert!(ring.host().is_some());
    }
}
