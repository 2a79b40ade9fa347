//! A node looks at its accelerators before it is tested with others. The driver's library is a fake one, the way to it
//! and everything behind it is not.

use std::path::Path;

use nix::sys::signal::Signal;
use support::{cluster::Cluster, fake_library, launch::Launch};

use super::report::Report;
use crate::{cluster, lines};

/// A node with eight accelerators, in this state.
fn with_accelerators(line: Launch, state: &str) -> Launch {
    let library = fake_library::folder(Path::new(env!("CARGO_TARGET_TMPDIR")));
    line.flags(["--network-check", "--nproc-per-node=1"])
        .env("LD_LIBRARY_PATH", library)
        .env("FAKE_NVML", format!("gpus=8;links=dgx1;{state}"))
}

/// One that is alone.
fn node(job: &Cluster, state: &str) -> Launch {
    let report = format!("--taint-report={}", job.dir().join("report.json").display());
    with_accelerators(job.line(), state).flags(["--standalone", &report])
}

fn report(job: &Cluster) -> (Report, serde_json::Value) {
    let text = std::fs::read_to_string(job.dir().join("report.json")).expect("a report");
    (Report::read(&text).expect("a whole one"), serde_json::from_str(&text).expect("JSON"))
}

#[test]
fn a_node_with_a_faulty_accelerator_is_excluded_with_the_reason() {
    for (state, component, reason) in [
        ("lost=3", "GPU 3", "it has fallen off the bus"),
        ("ecc=5:2", "GPU 5", "2 uncorrectable ECC errors in its memory"),
        ("pending=1", "GPU 1", "a memory row remapping is pending"),
        ("closed=7", "GPU 7", "the driver cannot open it"),
    ] {
        let job = lines();
        let outcome = node(&job, state).start().finish().expect_code(201);
        assert!(
            outcome.stderr.contains(&format!("this node is broken: {component}: ")),
            "{}",
            outcome.stderr
        );
        assert!(outcome.stderr.contains(reason), "{}", outcome.stderr);
        let (report, document) = report(&job);
        report.blames(&[(0, "local-fault")]);
        let node = &document["nodes"][0];
        assert_eq!(node["component"], component, "{node:#}");
        assert_eq!(node["inventory"]["gpus"].as_array().map(Vec::len), Some(8), "{node:#}");
        assert_eq!(node["inventory"]["driver"], "535.161.08", "{node:#}");
    }
}

#[test]
fn inaccessible_accelerators_are_no_fault_while_enough_are_left() {
    let job = lines();
    let run = node(&job, "denied=3").start();
    let _world = job.await_world(1, 0);
    job.go();
    let _outcomes = job.finish([run], 0);
    let (report, document) = report(&job);
    report.blames(&[]);
    assert_eq!(document["nodes"][0]["notes"][0], "GPU 3: permission denied");
    let job = lines();
    let all: String = (0..8).map(|gpu| format!("denied={gpu};")).collect();
    let outcome = node(&job, &all).start().finish().expect_code(201);
    let words = "this node has too few accessible accelerators: 1 accelerator needed, 0 accessible: GPU 0: ";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    let (report, document) = self::report(&job);
    assert!(report.nodes[0].excluded && report.nodes[0].taint.is_none(), "{report:#?}");
    assert_eq!(document["nodes"][0]["component"], "gpu-permission");
}

#[test]
fn accelerators_in_use_are_waited_for_and_taint_no_node() {
    let job = lines();
    let busy: String = (0..8).map(|gpu| format!("used={gpu}:61;pid={gpu}:4711;")).collect();
    let outcome = node(&job, &busy).start().finish().expect_code(201);
    assert!(
        outcome.stderr.contains("this node has too few free accelerators: 1 accelerator needed, 0 of 8"),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stderr.contains("by process 4711"), "{}", outcome.stderr);
    let (report, document) = report(&job);
    assert_eq!(report.verdicts(), ["local-fault"]);
    assert!(report.nodes[0].excluded && report.nodes[0].taint.is_none(), "{report:#?}");
    assert_eq!(document["nodes"][0]["component"], "gpu-busy");
}

/// The memory of dead workers comes back a while after they are gone.
#[test]
fn memory_that_is_freed_in_time_is_no_fault() {
    let job = lines();
    let used = job.dir().join("used");
    std::fs::write(&used, "79").unwrap();
    let run = node(&job, "pid=0:4711").env("FAKE_NVML_USED", &used).start();
    let _looked = job.await_file("used.seen");
    std::fs::write(&used, "1").unwrap();
    let _world = job.await_world(1, 0);
    job.go();
    let _outcomes = job.finish([run], 0);
    let (report, _) = report(&job);
    report.blames(&[]);
}

#[test]
fn driver_events_during_the_run_reach_the_console_and_the_master() {
    let mut job = cluster();
    let run = with_accelerators(job.ranked(0), "xid=2:79").flags(["--nnodes=1"]).start();
    let _world = job.await_world(1, 0);
    let output = "GPU 2 (NVIDIA Fake 80GB): the driver reported Xid 79 (the device has fallen off the bus)";
    let _said = job.await_output(&run, output);
    let output = "GPU 2 (NVIDIA Fake 80GB): Xid 79 (the device has fallen off the bus)";
    let _said = job.await_master_log(output);
    job.go();
    let _outcomes = job.ends_well([run]);
}

#[test]
fn the_listener_for_driver_events_ends_with_the_launcher() {
    let job = lines();
    let run = node(&job, "xid=2:79").start();
    let _world = job.await_world(1, 0);
    let _said = job.await_output(&run, "the driver reported Xid 79");
    run.signal(Signal::SIGKILL);
    job.wait("the end of all processes", || run.processes().is_empty().then_some(()));
    let _outcome = run.finish_whatever_is_left();
}
