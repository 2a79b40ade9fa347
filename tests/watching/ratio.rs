//! The effective training ratio of a scripted run beside what the workers' processes say.

use std::{fs, thread::sleep, time::Duration};

use support::{
    cluster::{Cluster, kill_node},
    free_port, programs,
    seen::Dump,
};

use crate::status;

/// Seconds since the host started.
fn now() -> f64 {
    let uptime = fs::read_to_string("/proc/uptime").expect("the clock of the host");
    uptime.split(' ').next().and_then(|text| text.parse().ok()).expect("seconds")
}

/// When the first of these processes started, in the same seconds; the kernel tells it to 10 ms.
fn started(world: &[Dump]) -> f64 {
    let start = |dump: &Dump| -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", dump.pid)).expect("it runs");
        let fields = stat.rsplit_once(") ").expect("a name in brackets").1;
        fields.split(' ').nth(19).and_then(|ticks| ticks.parse().ok()).map_or(0.0, |ticks: f64| ticks / 100.0)
    };
    world.iter().map(start).fold(f64::INFINITY, f64::min)
}

/// Timings belong to no check, so this one is run by hand; docs/measured.md has what it printed.
#[test]
#[ignore = "a tool, not a check: cargo test -p dlrover-tests --test watching ratio -- --ignored --nocapture"]
fn ratio() {
    let port = free_port();
    let mut job = Cluster::with_master(programs!(), &[&format!("--http={port}"), "--reconnect-grace=0.5"]);
    let steps = ["dump", "1@0 await fail", "1@0 exit 3", "await go"];
    let node = |rank: u8| {
        job.ranked(rank).flags(["--nnodes=2", "--max-restarts=1", "--network-check"]).steps(&steps)
    };
    // The time before the first node joins is no job's.
    let first = node(0).start();
    job.wait("the first node", || {
        (status(port)["nodes"].as_array().is_some_and(|it| it.len() == 1)).then_some(())
    });
    let began = now();
    sleep(Duration::from_secs(3));
    let second = node(1).start();
    let mut trained = 0.0;
    let world = job.await_world(2, 0);
    let start = started(&world);
    sleep(Duration::from_secs(12));
    job.touch("fail");
    world.iter().for_each(|worker| job.await_death(worker));
    trained += now() - start;
    let world = job.await_world(2, 1);
    let start = started(&world);
    sleep(Duration::from_secs(8));
    kill_node(second);
    trained += now() - start;
    sleep(Duration::from_secs(4));
    let second = node(1).start();
    let world = job.await_world(2, 2);
    let start = started(&world);
    sleep(Duration::from_secs(6));
    let told = status(port);
    let (trained, all) = (trained + now() - start, now() - began);
    let told_ratio = told["totals"]["effective_training_ratio"].as_f64().unwrap();
    println!("status: {:#}", told["totals"]);
    println!(
        "workers' processes: {trained:.2} s of {all:.2} s = {:.4}; status: {told_ratio:.4}; difference {:+.2} %",
        trained / all,
        (told_ratio / (trained / all) - 1.0) * 100.0
    );
    job.ends_well([first, second]);
}
