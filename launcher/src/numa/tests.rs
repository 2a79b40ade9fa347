//! CPU binding on a machine of two sockets that does not exist.

use std::ffi::OsString;

use super::*;
use crate::{
    accelerators::Devices,
    environment::Environment,
    testing::{FakeRoot, variables},
};

/// Two sockets of two NUMA nodes of 4 cores with 2 threads each: node n has cores 4n to 4n+3, whose second
/// threads are 16 higher. Two cores share a last-level cache. GPUs 0 to 3 are on nodes 0, 0, 2 and 3.
fn machine() -> FakeRoot {
    let root = FakeRoot::new();
    root.write("sys/devices/system/node/online", "0-3\n");
    for node in 0..4 {
        let first = node * 4;
        let cpus = format!("{first}-{},{}-{}\n", first + 3, first + 16, first + 19);
        root.write(&format!("sys/devices/system/node/node{node}/cpulist"), &cpus);
    }
    for cpu in 0..32 {
        let (core, folder) = (cpu % 16, format!("sys/devices/system/cpu/cpu{cpu}"));
        root.write(&format!("{folder}/topology/physical_package_id"), &format!("{}\n", core / 8));
        root.write(&format!("{folder}/topology/thread_siblings_list"), &format!("{core},{}\n", core + 16));
        let complex = core / 2 * 2;
        let shared = format!("{complex}-{},{}-{}\n", complex + 1, complex + 16, complex + 17);
        for (index, kind, level, list) in [
            (0, "Data", 1, format!("{core}\n")),
            (1, "Instruction", 1, format!("{core}\n")),
            (2, "Unified", 3, shared),
        ] {
            root.write(&format!("{folder}/cache/index{index}/type"), &format!("{kind}\n"));
            root.write(&format!("{folder}/cache/index{index}/level"), &format!("{level}\n"));
            root.write(&format!("{folder}/cache/index{index}/shared_cpu_list"), &list);
        }
    }
    for (gpu, node) in [(0, 0), (1, 0), (2, 2), (3, 3)] {
        root.gpu(gpu, &format!("0000:{gpu}0:00.0"), node);
    }
    root
}

fn bound(
    root: &FakeRoot,
    mode: Mode,
    workers: u32,
    env: &[(&str, &str)],
    allowed: Cpus,
) -> Result<Vec<Vec<usize>>, CannotBind> {
    let env: Vec<(OsString, OsString)> = variables(env);
    bind(mode, workers, &Devices::new(root.path()).visible(Environment(&env)), &allowed, root.path())
}

fn all() -> Cpus {
    (0..32).collect()
}

#[test]
fn node_means_all_cpus_of_the_accelerators_numa_node() {
    let node0 = vec![0, 1, 2, 3, 16, 17, 18, 19];
    let node2 = vec![8, 9, 10, 11, 24, 25, 26, 27];
    assert_eq!(bound(&machine(), Mode::Node, 3, &[], all()), Ok(vec![node0.clone(), node0, node2]));
}

#[test]
fn socket_means_all_cpus_of_all_numa_nodes_of_the_socket() {
    let socket1: Vec<usize> = (8..16).chain(24..32).collect();
    let bound = bound(&machine(), Mode::Socket, 4, &[], all()).expect("a known machine");
    assert_eq!(bound[2], socket1);
    assert_eq!(bound[3], socket1);
    assert_eq!(bound[0], (0..8).chain(16..24).collect::<Vec<_>>());
}

#[test]
fn exclusive_divides_the_physical_cores_of_a_node_among_its_accelerators() {
    let bound = bound(&machine(), Mode::Exclusive, 4, &[], all()).expect("a known machine");
    assert_eq!(bound[0], [0, 1, 16, 17]);
    assert_eq!(bound[1], [2, 3, 18, 19]);
    assert_eq!(bound[2], [8, 9, 10, 11, 24, 25, 26, 27]);
}

#[test]
fn exclusive_gives_the_first_ones_a_core_more_when_they_do_not_divide_evenly() {
    let bound = bound(&machine(), Mode::Exclusive, 2, &[], (0..3).chain(16..19).collect()).expect("3 cores");
    assert_eq!(bound, [vec![0, 1, 16, 17], vec![2, 18]]);
}

#[test]
fn exclusive_is_refused_when_there_are_fewer_cores_than_accelerators() {
    let answer = bound(&machine(), Mode::Exclusive, 2, &[], [0, 16].into());
    assert_eq!(answer, Err(CannotBind::FewerCores { node: 0, cores: 1, accelerators: 2 }));
}

#[test]
fn each_accelerator_gets_another_core_complex_while_they_last() {
    let bound = bound(&machine(), Mode::CoreComplex, 3, &[], all()).expect("a known machine");
    assert_eq!(bound, [vec![0, 1, 16, 17], vec![2, 3, 18, 19], vec![8, 9, 24, 25]]);
}

#[test]
fn the_larger_core_complex_comes_first() {
    let bound = bound(&machine(), Mode::CoreComplex, 1, &[], (1..32).collect()).expect("a known machine");
    assert_eq!(bound, [vec![2, 3, 18, 19]]);
}

#[test]
fn only_cpus_that_we_may_use_are_bound_to() {
    assert_eq!(bound(&machine(), Mode::Node, 1, &[], [1, 9].into()), Ok(vec![vec![1]]));
    assert_eq!(bound(&machine(), Mode::Node, 1, &[], [9].into()), Err(CannotBind::NoCpuAllowed { index: 0 }));
}

#[test]
fn visible_devices_say_which_accelerator_a_worker_has() {
    let bound = bound(&machine(), Mode::Node, 1, &[("CUDA_VISIBLE_DEVICES", "3")], all());
    assert_eq!(bound, Ok(vec![(12..16).chain(28..32).collect()]));
}

#[test]
fn a_machine_of_one_node_that_says_minus_one_has_node_0() {
    let root = machine();
    root.write("sys/bus/pci/devices/0000:00:00.0/numa_node", "-1\n");
    assert!(bound(&root, Mode::Node, 1, &[], all()).is_ok());
}

#[test]
fn without_an_accelerator_for_each_worker_nothing_is_bound() {
    assert_eq!(bound(&FakeRoot::new(), Mode::Node, 1, &[], all()), Err(CannotBind::NoAccelerator));
    let fewer = Err(CannotBind::FewerAccelerators { workers: 5, accelerators: 4 });
    assert_eq!(bound(&machine(), Mode::Node, 5, &[], all()), fewer);
}

#[test]
fn a_description_that_is_missing_or_broken_is_named() {
    let root = machine();
    root.write("sys/devices/system/node/node0/cpulist", "0-99999999999\n");
    let path = root.path().join("sys/devices/system/node/node0/cpulist");
    assert_eq!(bound(&root, Mode::Node, 1, &[], all()), Err(CannotBind::Topology { path }));
}
