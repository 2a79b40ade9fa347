//! The topology file orders the ranks.

use super::*;

fn policy_with_file() -> Policy {
    Policy { has_topology: true, ..policy() }
}

/// The letters under each switch, `s0` first.
fn file(switches: &[&str]) -> Topology {
    let lines = switches.iter().enumerate().flat_map(|(switch, names)| {
        names.chars().map(move |name| format!("s{switch} p {}\n", address(&name.to_string())))
    });
    Topology::parse(&lines.collect::<String>()).unwrap()
}

fn read(test: &mut Test, switches: &[&str]) -> Vec<Effect> {
    test.send(Event::TopologyRead(Ok(file(switches))))
}

/// Names with their switch.
fn placed_under(round: u32, nodes: &[(&str, Option<&str>)]) -> Vec<Effect> {
    placed_under_at(round, nodes, false)
}

fn placed_under_at(round: u32, nodes: &[(&str, Option<&str>)], fresh_port: bool) -> Vec<Effect> {
    let listed = nodes.iter().map(|(name, switch)| (address(name), host(name), switch.map(str::to_owned)));
    let round = Round(round);
    vec![
        Effect::Log(Log::Placed { round, nodes: listed.collect() }),
        Effect::Push { node: id(nodes[0].0), push: Push::Host { round, fresh_port } },
    ]
}

/// Assignments in which the named nodes must restore from disk.
fn assignments_with(round: u32, names: &[&str], from_disk: &[&str]) -> Vec<Effect> {
    let mut world = world(round, names);
    for member in &mut world.members {
        member.restore_from_disk = from_disk.contains(&&*member.node_id.0);
    }
    let assignments = world.assignments();
    assignments
        .map(|(member, assignment)| Effect::Push {
            node: member.node_id.clone(),
            push: Push::Assigned(assignment),
        })
        .collect()
}

fn rejoin_all(test: &mut Test, names: &[&str], after: u32) -> Vec<Effect> {
    names.iter().flat_map(|name| test.rejoin(name, after)).collect()
}

#[test]
fn nodes_under_one_switch_get_adjacent_ranks_and_restore_from_disk_when_theirs_changed() {
    let mut test = Test::new(policy_with_file(), terms(4, 4));
    for name in ["a", "b", "c"] {
        assert_eq!(test.join(name), []);
    }
    assert_eq!(test.join("d"), [Effect::ReadTopology]);
    assert_eq!(test.job.deadline(), Some(Moment::START + TOPOLOGY_TIMEOUT));
    let (x, y) = (Some("s0"), Some("s1"));
    assert_eq!(read(&mut test, &["ac", "bd"]), placed_under(0, &[("a", x), ("c", x), ("b", y), ("d", y)]));
    assert_eq!(test.hosted("a", 0), assignments_with(0, &["a", "c", "b", "d"], &["b", "c"]));

    // The same order again moves no node.
    let _regroup = test.workers_fail("a", 0, false);
    assert_eq!(rejoin_all(&mut test, &["a", "b", "c", "d"], 0), [Effect::ReadTopology]);
    assert_eq!(read(&mut test, &["ac", "bd"]), placed_under(1, &[("a", x), ("c", x), ("b", y), ("d", y)]));
    assert_eq!(test.hosted("a", 1), assignments_with(1, &["a", "c", "b", "d"], &[]));

    // Another file moves some; the file is read again for each round.
    let _regroup = test.workers_fail("a", 1, false);
    assert_eq!(rejoin_all(&mut test, &["a", "b", "c", "d"], 1), [Effect::ReadTopology]);
    assert_eq!(read(&mut test, &["ab", "cd"]), placed_under(2, &[("a", x), ("b", x), ("c", y), ("d", y)]));
    assert_eq!(test.hosted("a", 2), assignments_with(2, &["a", "b", "c", "d"], &["b", "c"]));
}

#[test]
fn a_node_that_moved_up_because_another_left_restores_from_disk() {
    let mut test = Test::new(policy_with_file(), terms(2, 3));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.join("b"), []);
    assert_eq!(test.join("c"), [Effect::ReadTopology]);
    let x = Some("s0");
    assert_eq!(read(&mut test, &["abc"]), placed_under(0, &[("a", x), ("b", x), ("c", x)]));
    assert_eq!(test.hosted("a", 0), assignments(0, &["a", "b", "c"]));
    let _regroup = test.leave("b");
    assert_eq!(rejoin_all(&mut test, &["a", "c"], 0), [Effect::ReadTopology]);
    assert_eq!(read(&mut test, &["abc"]), placed_under_at(1, &[("a", x), ("c", x)], true));
    assert_eq!(test.hosted("a", 1), assignments_with(1, &["a", "c"], &["c"]));
}

#[test]
fn nodes_that_the_file_does_not_list_come_last_and_are_warned_of() {
    let mut test = Test::new(policy_with_file(), terms(3, 3));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.join("b"), []);
    assert_eq!(test.join("c"), [Effect::ReadTopology]);
    let warning = Log::Unlisted { addresses: vec![address("a")] };
    assert_eq!(
        warning.to_string(),
        "warning: addresses that the topology file does not list, ordered last: 10.0.0.1"
    );
    assert_eq!(
        read(&mut test, &["bc"]),
        all([
            vec![Effect::Log(warning)],
            placed_under(0, &[("b", Some("s0")), ("c", Some("s0")), ("a", None)])
        ])
    );
}

#[test]
fn the_file_lists_a_node_under_its_node_ip() {
    let mut test = Test::new(policy_with_file(), terms(2, 2));
    let elsewhere = |name: &str, ip: &str, terms: &Terms| {
        Event::Joined(JoinRequest { node_ip: Some(ip.into()), ..request(name, terms) })
    };
    let (a, b) = (elsewhere("a", "10.0.0.9", &test.terms), elsewhere("b", "10.0.0.8", &test.terms));
    assert_eq!(test.send(a), []);
    assert_eq!(test.send(b), [Effect::ReadTopology]);
    let placed = test.send(Event::TopologyRead(Ok(Topology::parse("x p 10.0.0.8").unwrap())));
    let nodes = vec![
        ("10.0.0.8".to_owned(), host("b"), Some("x".to_owned())),
        ("10.0.0.9".to_owned(), host("a"), None),
    ];
    let log = Log::Placed { round: Round(0), nodes };
    assert_eq!(
        log.to_string(),
        "round 0: 2 nodes\n  node rank 0: 10.0.0.8 host-b x\n  node rank 1: 10.0.0.9 host-a"
    );
    assert_eq!(
        placed,
        [
            Effect::Log(Log::Unlisted { addresses: vec!["10.0.0.9".into()] }),
            Effect::Log(log),
            Effect::Push { node: id("b"), push: Push::Host { round: Round(0), fresh_port: false } }
        ]
    );
}

#[test]
fn a_bad_file_keeps_the_last_good_one_and_an_empty_one_changes_nothing() {
    let bad = || Event::TopologyRead(Err("line 1 has 2 columns".into()));
    let unusable = || Effect::Log(Log::TopologyUnusable { reason: "line 1 has 2 columns".into() });
    let mut test = Test::new(policy_with_file(), terms(2, 2));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.join("b"), [Effect::ReadTopology]);
    assert_eq!(test.send(bad()), all([vec![unusable()], placed(0, &["a", "b"])]), "none was good yet");
    assert_eq!(test.hosted("a", 0), assignments(0, &["a", "b"]));

    let _regroup = test.workers_fail("a", 0, false);
    assert_eq!(rejoin_all(&mut test, &["a", "b"], 0), [Effect::ReadTopology]);
    let swapped: &[(&str, Option<&str>)] = &[("b", Some("s0")), ("a", None)];
    let unlisted = || Effect::Log(Log::Unlisted { addresses: vec![address("a")] });
    let moved = placed_under_at(1, swapped, true);
    assert_eq!(read(&mut test, &["b"]), all([vec![unlisted()], moved]), "b has served an older round");
    assert_eq!(test.hosted("b", 1), assignments_with(1, &["b", "a"], &["a", "b"]));

    let _regroup = test.workers_fail("a", 1, false);
    assert_eq!(rejoin_all(&mut test, &["a", "b"], 1), [Effect::ReadTopology]);
    assert_eq!(test.send(bad()), all([vec![unusable(), unlisted()], placed_under(2, swapped)]));
    assert_eq!(test.hosted("b", 2), assignments_with(2, &["b", "a"], &[]));

    let _regroup = test.workers_fail("a", 2, false);
    assert_eq!(rejoin_all(&mut test, &["a", "b"], 2), [Effect::ReadTopology]);
    assert_eq!(read(&mut test, &[]), placed(3, &["b", "a"]));
}

#[test]
fn a_file_that_takes_too_long_is_ignored_when_it_arrives() {
    let mut test = Test::new(policy_with_file(), terms(2, 2));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.join("b"), [Effect::ReadTopology]);
    let reason = "the topology file could not be read within 5 s".to_owned();
    assert_eq!(
        test.due(),
        all([vec![Effect::Log(Log::TopologyUnusable { reason })], placed(0, &["a", "b"])])
    );
    assert_eq!(read(&mut test, &["b", "a"]), []);
    assert_eq!(test.hosted("a", 0), assignments(0, &["a", "b"]));
}

#[test]
fn nodes_may_join_and_leave_while_the_file_is_read() {
    let mut test = Test::new(policy_with_file(), terms(2, 2));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.join("b"), [Effect::ReadTopology]);
    assert_eq!(test.join("b"), [], "said again");
    assert_eq!(test.join("c"), []);
    assert_eq!(
        test.leave("a"),
        [forget("a"), gone("a", None, STOPPED, 0), Effect::ReadTopology],
        "the spare is there already"
    );
    assert_eq!(read(&mut test, &["bc"]), placed_under_at(0, &[("b", Some("s0")), ("c", Some("s0"))], true));
}

#[test]
fn a_node_that_is_lost_before_it_had_a_rank_charges_none() {
    let mut test = Test::new(policy_with_file(), terms(2, 2));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.join("b"), [Effect::ReadTopology]);
    for (lost, next) in [("a", "c"), ("b", "d"), ("c", "e")] {
        assert_eq!(test.lose(lost), [hang_up(lost), forget(lost), gone(lost, None, BROKE, 0)]);
        assert_eq!(test.join(next), [Effect::ReadTopology]);
    }
}

#[test]
fn a_single_node_needs_no_file() {
    let mut test = Test::new(policy_with_file(), terms(1, 1));
    assert_eq!(test.join("a"), placed(0, &["a"]));
}

#[test]
fn a_node_is_named_by_the_rank_that_it_has_and_not_by_the_one_that_it_asked_for() {
    let mut test = Test::new(policy(), terms(2, 2));
    assert_eq!(test.join_as("a", 0), []);
    assert_eq!(test.join_as("b", 5), placed(0, &["a", "b"]));
    assert_eq!(test.hosted("a", 0), assignments(0, &["a", "b"]));
    assert_eq!(test.lose("b")[..3], [hang_up("b"), forget("b"), gone("b", Some(1), BROKE, 1)]);
}
