//! `examples/slurm/job.sbatch`, as SLURM runs it.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU32, Ordering},
};

use support::launch::Launch;

use crate::{Place, example, expect_ranks_by, read, trained};

/// The value of an `#SBATCH` line.
fn directive(name: &str) -> String {
    let text = read(&example("slurm/job.sbatch"));
    let mut values = text
        .lines()
        .filter_map(|line| line.strip_prefix("#SBATCH --")?.strip_prefix(name)?.strip_prefix('='));
    values.next_back().unwrap_or_else(|| panic!("no #SBATCH --{name}")).to_owned()
}

/// A number of a job, no other test's, whose port is free: the script adds the last four digits to 20000.
fn job_id() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let is_free = |id: &u32| {
        let port = u16::try_from(20000 + id % 10000).expect("below 30000");
        TcpListener::bind(("127.0.0.1", port)).is_ok()
    };
    let mut ids = (0..10000).map(|_| std::process::id() + NEXT.fetch_add(1, Ordering::Relaxed));
    ids.find(is_free).expect("a free port")
}

/// The batch script on the first node, with the variables that it has there.
fn batch(place: &Place, nodes: &str, args: &[&str]) -> Launch {
    let script = example("slurm/job.sbatch");
    let script = script.to_str().expect("a plain path");
    assert_eq!(directive("ntasks-per-node"), "1", "one launcher on each node");
    place
        .line(["bash", script].into_iter().chain(args.iter().copied()))
        .env("SLURM_JOB_ID", job_id().to_string())
        .env("SLURM_JOB_NAME", directive("job-name"))
        .env("SLURM_JOB_NODELIST", format!("node-[1-{nodes}]"))
        .env("SLURM_JOB_NUM_NODES", nodes)
        .env("SLURM_CPUS_PER_TASK", directive("cpus-per-task"))
}

#[test]
fn all_nodes_train() {
    let place = Place::new();
    // As `sbatch --nodes=4`: so many nodes are in their order by their ranks only, not by chance.
    let run = batch(&place, "4", &["train.py", "--steps", "20"]).start();
    trained([run], 8);
    place.expect_one_round(4);
    expect_ranks_by(&place, "SLURM_NODEID", str::to_owned);
}

#[test]
fn a_worker_that_dies_is_restarted() {
    let place = Place::new();
    let run = batch(&place, &directive("nodes"), &["train.py", "--steps", "40", "--die-at", "15"]).start();
    trained([run], 4);
    let workers = place.workers();
    let restarted: Vec<_> =
        workers.values().filter(|worker| worker["TORCHELASTIC_RESTART_COUNT"] == "1").collect();
    assert_eq!((workers.len(), restarted.len()), (8, 2), "two rounds, and one node that has used a restart");
}

#[test]
fn a_script_that_fails_fails_the_job() {
    let place = Place::new();
    let end = batch(&place, &directive("nodes"), &["train.py", "--steps", "0"]).finish().expect_code(1);
    assert!(end.stderr.contains("there is nothing to train"), "{end:#?}");
}
