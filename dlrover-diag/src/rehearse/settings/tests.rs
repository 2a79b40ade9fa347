//! What is read of the command line.

use std::collections::BTreeSet;

use super::{super::read as request, *};

fn read(line: &str) -> Result<Settings, Wrong> {
    match request(line)?.mode {
        Mode::Once(settings) => Ok(settings),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn a_whole_line_is_read() {
    let line = "--nodes 16 --racks 4 --faulty 3,9 --faulty 2 --local-fault 4 --lost 5 --dead-link 9:5 \
                --dead-rack-pair 0:3 --slow-nic 12:4.0 --slow-link 3:1:5 --slow-compute 7:2.5 --flaky 8:0.5 --noise 0.2 --seed 7 \
                --pod-size 2 --dead-pod 1 --dies 1@0,0@3 --dead-uplink 1,2@1 --partial-uplink 3:0.5 --liar 10 \
                --transient 0.01 --taint-flaky now --on-bad-path proceed \
                --exclude-straggler --max-rounds 8 --json";
    let settings = read(line).unwrap();
    let cluster = Cluster {
        nodes: 16,
        racks: 4,
        seed: 7,
        noise: 0.2,
        faulty: [2, 3, 9].into(),
        local_fault: [4].into(),
        lost: [5].into(),
        dead_links: [(5, 9)].into(),
        dead_rack_pairs: [(0, 3)].into(),
        dead_uplinks: [1].into(),
        uplink_dies: [(2, 1)].into(),
        partial_uplinks: [(3, 0.5)].into(),
        pod_size: 2,
        dead_pods: [1].into(),
        dies: [(0, 3), (1, 0)].into(),
        liars: [10].into(),
        transient: 0.01,
        slow_nic: [(12, 4.0)].into(),
        slow_links: [((1, 3), 5.0)].into(),
        slow_compute: [(7, 2.5)].into(),
        other_kind: BTreeSet::new(),
        flaky: [(8, 0.5)].into(),
    };
    assert_eq!(settings.cluster, cluster);
    let policy = Policy {
        exclude_straggler: true,
        taint_flaky: Tainting::Now,
        on_bad_path: OnBadPath::Proceed,
        ..Policy::new(7)
    };
    assert_eq!(settings.policy, policy);
    assert!(request(line).unwrap().json);
    assert_eq!(read("--nodes 1").unwrap().cluster, Cluster::healthy(1, 1));
}

#[test]
fn what_makes_no_sense_is_named_with_its_range() {
    let node_and = "must be NODE:X, where NODE is 0 to 3 or random and X is above 0, at most 1000000";
    for (line, said) in [
        ("--nodes 0", "--nodes 0: must be 1 to 65536"),
        ("--nodes 99999999999", "--nodes 99999999999: must be 1 to 65536"),
        ("--nodes 4 --racks 5", "--racks 5: must be 1 to 4"),
        ("--nodes 4 --faulty 1,4", "--faulty 4: must be a node from 0 to 3, or random:COUNT"),
        ("--nodes 4 --lost -1", "--lost -1: must be a node from 0 to 3, or random:COUNT"),
        (
            "--nodes 4 --dead-link 2:2",
            "--dead-link 2:2: must be A:B, where A and B are two different nodes, 0 to 3, or random:COUNT",
        ),
        (
            "--nodes 4 --dead-link 2",
            "--dead-link 2: must be A:B, where A and B are two different nodes, 0 to 3, or random:COUNT",
        ),
        ("--nodes 4 --slow-nic 2:0", &*format!("--slow-nic 2:0: {node_and}")),
        ("--nodes 4 --slow-nic 2:-1", &*format!("--slow-nic 2:-1: {node_and}")),
        (
            "--nodes 4 --flaky 2:nan",
            "--flaky 2:nan: must be NODE:P, where NODE is 0 to 3 or random and P is from 0 to 1",
        ),
        (
            "--nodes 4 --dies 1",
            "--dies 1: must be NODE@ROUND, where NODE is 0 to 3 or random:COUNT and ROUND is 0 to 4294967294",
        ),
        (
            "--nodes 4 --racks 2 --dead-uplink 2@0",
            "--dead-uplink 2@0: must be RACK or RACK@ROUND, where RACK is 0 to 1 or random:COUNT and ROUND is 0 \
             to 4294967294",
        ),
        (
            "--nodes 4 --racks 2 --partial-uplink 1:2",
            "--partial-uplink 1:2: must be RACK:SHARE, where RACK is 0 to 1 or random and SHARE is from 0 to 1",
        ),
        ("--nodes 4 --racks 2 --pod-size 3", "--pod-size 3: must be 1 to 2"),
        ("--nodes 4 --racks 2 --dead-pod 0", "--dead-pod 0: requires --pod-size, the racks in a pod"),
        (
            "--nodes 4 --racks 4 --pod-size 3 --dead-pod 2",
            "--dead-pod 2: must be a pod from 0 to 1, or random:COUNT",
        ),
        ("--nodes 4 --transient 1.5", "--transient 1.5: must be 0 to 1"),
        ("--nodes 4 --liar x", "--liar x: must be a node from 0 to 3, or random:COUNT"),
        ("--nodes 4 --taint-flaky Now", "--taint-flaky Now: must be now, confirmed or never"),
        ("--nodes 4 --on-bad-path x", "--on-bad-path x: must be exclude, fail or proceed"),
        ("--nodes 4 --repeat 0", "--repeat 0: must be 1 to 1000000000"),
        ("--sweep -1", "--sweep -1: must be 1 to 1000000000"),
        ("--nodes 4 --faulty random:0", "--faulty random:0: must be a node from 0 to 3, or random:COUNT"),
        (
            "--nodes 4 --liar 0 --faulty random:2 --lost random:2",
            "--lost random:2: must be random:COUNT with COUNT 1 to 1, as many as are left to choose from",
        ),
        (
            "--nodes 4 --dead-uplink random,random",
            "--dead-uplink random: nothing is left to choose at random; leave the option out, or simulate \
             more nodes or racks (--nodes, --racks)",
        ),
        (
            "--nodes 4 --dead-rack-pair random",
            "--dead-rack-pair random: nothing is left to choose at random; leave the option out, or simulate \
             more nodes or racks (--nodes, --racks)",
        ),
        ("--nodes 4 --noise inf", "--noise inf: must be 0 to 2"),
        ("--nodes 4 --seed -1", "--seed -1: must be 0 to 18446744073709551615"),
        ("--nodes 4 --straggler-ratio 1", "--straggler-ratio 1: must be above 1, at most 1000000"),
        ("--nodes 4 --max-rounds 0", "--max-rounds 0: must be 1 to 4294967295"),
    ] {
        assert_eq!(read(line).unwrap_err().to_string(), said);
    }
}

#[test]
fn the_seed_chooses_what_is_random() {
    let line = "--nodes 64 --racks 8 --pod-size 2 --faulty random:3,5 --local-fault random --lost random --liar random \
                --dies random:2@1 --flaky random:0.5 --slow-nic random:4 --slow-compute random:3 --dead-link random:2 \
                --slow-link random:5 --dead-rack-pair random --dead-uplink random,random:2@0 \
                --partial-uplink random:0.25 --dead-pod random";
    let of_seed = |seed: u64| read(&format!("{line} --seed {seed}")).unwrap().cluster;
    let cluster = of_seed(7);
    assert_eq!(cluster, of_seed(7));
    let broken = (0..64).filter(|node| cluster.is_broken(*node, true)).count();
    assert_eq!((cluster.faulty.len(), broken), (4, 12));
    let racks = (0..8).filter(|rack| cluster.is_rack_broken(*rack)).count();
    assert_eq!((cluster.dead_uplinks.len(), cluster.uplink_dies.len(), racks), (1, 2, 4));
    let paths = [cluster.dead_links.len(), cluster.slow_links.len(), cluster.dead_rack_pairs.len()];
    assert_eq!((paths, cluster.dead_pods.len()), ([2, 1, 1], 1));
    let others: BTreeSet<Vec<u32>> = (0..20).map(|seed| of_seed(seed).faulty.into_iter().collect()).collect();
    assert!(others.len() > 15, "{others:?}");
    // All that there are.
    assert_eq!(read("--nodes 4 --faulty random:4").unwrap().cluster.faulty.len(), 4);
    assert_eq!(read("--nodes 4 --dead-link random:6").unwrap().cluster.dead_links.len(), 6);
}

#[test]
fn a_rehearsal_is_made_again_by_its_line() {
    for line in [
        "--nodes 16",
        "--nodes 16 --racks 4 --faulty 3,9 --local-fault 4 --lost 5 --dead-link 9:5 --dead-rack-pair 0:3 --slow-nic 12:4 \
         --slow-link 3:1:5 --slow-compute 7:2.5 --flaky 8:0.5 --noise 0.2 --seed 7 --exclude-straggler --max-rounds 9 \
         --pod-size 2 --dead-pod 1 --dies 1@0,0@3 --dead-uplink 1,2@1 --partial-uplink 3:0.5 --liar 10 --transient 0.01 \
         --taint-flaky now --on-bad-path fail --straggler-ratio 2.5 --taint-guard 1",
        "--nodes 16 --racks 3 --taint-flaky never --on-bad-path proceed --seed 18446744073709551615",
    ] {
        let settings = read(line).unwrap();
        let again = super::line(&settings);
        assert_eq!(read(again.strip_prefix("dlrover-diag rehearse ").unwrap()).unwrap(), settings, "{again}");
    }
}

#[test]
fn many_are_asked_for() {
    let Mode::Repeat { template, seed: 5, runs: 10_000 } =
        request("--nodes 8 --faulty random --seed 5 --repeat 10000").unwrap().mode
    else {
        panic!()
    };
    assert_eq!(template.settings(9), read("--nodes 8 --faulty random --seed 9").unwrap());
    let Mode::Sweep { policy, runs: 3, are_pairs: false } = request("--sweep 3 --seed 5").unwrap().mode
    else {
        panic!()
    };
    assert_eq!(policy, Policy { taint_guard_permille: 1000, ..Policy::new(5) });
    let Mode::Sweep { policy, runs: 3, are_pairs: true } =
        request("--sweep-pairs 3 --taint-guard 0.3").unwrap().mode
    else {
        panic!()
    };
    assert_eq!(policy.taint_guard_permille, 300);
    for line in ["--sweep 3 --nodes 4", "--sweep 3 --sweep-pairs 3", "--sweep 3 --liar 1", "--json"] {
        assert!(crate::parse(&format!("rehearse {line}")).is_err(), "{line}");
    }
}
