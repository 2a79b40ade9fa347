//! Ways between hosts are cut, in one direction or both: two generations of workers never run at once, and a dead
//! master ends no workers.
//!
//! Each host is a network namespace; the master is on the last. `--heartbeat-timeout=1` makes a lease of six beats: 6
//! s.

use support::{
    cluster::{Cluster, alive},
    launch::{Launch, Running},
    programs,
    seen::Dump,
};

use crate::hosts::{Network, control_address};

/// A job, its hosts, and the directory of a master that remembers.
struct Job {
    cluster: Cluster,
    network: Network,
    nodes: Vec<Running>,
    state: tempfile::TempDir,
}

impl Job {
    fn of(nodes: usize, least: usize) -> Option<Self> {
        let network = Network::of(nodes + 1)?;
        let state = tempfile::tempdir().expect("a temporary directory");
        let mut job = Self { cluster: Cluster::of_lines(programs!()), network, nodes: Vec::new(), state };
        let line = job.master_line();
        job.cluster.start_master(line);
        for host in 0..nodes {
            let [program, flag] = job.network.entering(host);
            let line = job.cluster.line_in(&[&program, &flag], &control_address(host));
            let line = line.env("DLROVER_MASTER_ADDR", format!("{}:50001", control_address(nodes)));
            let line = line.env("NODE_RANK", host.to_string()).env("PLACE", (host + 1).to_string());
            let nnodes = format!("--nnodes={least}:{nodes}");
            job.nodes.push(line.flags([&*nnodes, "--rdzv-conf=lastcall_timeout=60"]).start());
        }
        Some(job)
    }

    /// The master's host.
    fn master(&self) -> usize {
        self.network.len() - 1
    }

    fn master_line(&self) -> Launch {
        let [program, flag] = self.network.entering(self.master());
        let state = format!("--state-dir={}", self.state.path().display());
        let line = self.cluster.master_line_in(&[&program, &flag]);
        line.flags(["--port=50001", "--heartbeat-timeout=1", &state])
    }

    /// A world that has begun. None of the world before it may be left then.
    fn world(&self, size: u32, round: u32, before: &[Dump]) -> Vec<Dump> {
        let first = self.cluster.dump(0, round);
        let left: Vec<i32> = before.iter().map(|worker| worker.pid).filter(|pid| alive(*pid)).collect();
        assert_eq!(left, [0; 0], "two generations run: {first:#?}\n{}", self.cluster.all_output());
        self.cluster.await_world(size, round)
    }

    /// Every way between those and these, in both directions.
    fn ways(these: &[usize], those: &[usize]) -> Vec<(usize, usize)> {
        these.iter().flat_map(|a| those.iter().flat_map(move |b| [(*a, *b), (*b, *a)])).collect()
    }

    fn cut(&self, ways: &[(usize, usize)]) {
        ways.iter().for_each(|(from, to)| self.network.lose_control(*from, *to));
    }

    fn heal(&self, ways: &[(usize, usize)]) {
        ways.iter().for_each(|(from, to)| self.network.restore_control(*from, *to));
    }

    fn ends_well(mut self) {
        self.cluster.ends_well(self.nodes);
    }
}

const KILLED: &str = "its workers are killed before the job continues without it";
const CONSIDERED_DEAD: &str = "the job master is presumed lost: ";

#[test]
fn a_node_cut_off_in_one_direction_stops_its_workers_before_the_next_round() {
    let Some(job) = Job::of(3, 2) else { return };
    let mut world = job.world(3, 0, &[]);
    let master = job.master();
    for (time, way) in (0..).zip([(2, master), (master, 2)]) {
        job.cut(&[way]);
        // Its peers still have the master, and it reaches them.
        job.cluster.wait("a node that ends its workers", || {
            (job.nodes[2].stderr().matches(KILLED).count() > time).then_some(())
        });
        assert!(job.nodes[2].stderr().contains("another node of the round still reaches the master"));
        let round = u32::try_from(time).expect("a few") * 2 + 1;
        world = job.world(2, round, &world);
        job.heal(&[way]);
        world = job.world(3, round + 1, &world);
    }
    job.ends_well();
}

#[test]
fn of_a_job_that_is_partitioned_the_part_with_the_master_continues() {
    let Some(job) = Job::of(4, 2) else { return };
    let world = job.world(4, 0, &[]);
    let ways = Job::ways(&[2, 3], &[0, 1, job.master()]);
    job.cut(&ways);
    let half = job.world(2, 1, &world);
    for node in &job.nodes[2..] {
        let output = job.cluster.await_output(node, KILLED);
        assert!(output.contains("only 2 of 4 nodes reported the master lost"), "{output}");
    }
    job.heal(&ways);
    let _all = job.world(4, 2, &half);
    job.ends_well();
}

#[test]
fn a_majority_that_loses_the_master_continues_and_the_rest_wait() {
    let Some(job) = Job::of(3, 1) else { return };
    let world = job.world(3, 0, &[]);
    let ways = Job::ways(&[1, 2], &[0, job.master()]);
    job.cut(&ways);
    for node in &job.nodes[1..] {
        let _said = job.cluster.await_output(node, CONSIDERED_DEAD);
    }
    // The remaining node could continue alone, and must not.
    let output = job.cluster.await_output(&job.nodes[0], ", which may still run workers. ");
    assert!(output.contains(" s of 600 s for node rank"), "{output}");
    assert!(world[1..].iter().all(|worker| alive(worker.pid)), "{}", job.cluster.all_output());
    job.heal(&ways);
    let _all = job.world(3, 1, &world);
    job.ends_well();
}

#[test]
fn a_master_that_cannot_send_counts_as_dead_and_starts_no_second_round() {
    let Some(job) = Job::of(3, 1) else { return };
    let world = job.world(3, 0, &[]);
    let ways: Vec<(usize, usize)> = (0..3).map(|node| (job.master(), node)).collect();
    job.cut(&ways);
    for node in &job.nodes {
        let _said = job.cluster.await_output(node, CONSIDERED_DEAD);
    }
    // It has given them all up.
    let _said = job.cluster.await_master_log("was lost: no heartbeat for 6 s");
    assert!(world.iter().all(|worker| alive(worker.pid)), "{}", job.cluster.all_output());
    job.heal(&ways);
    let _all = job.world(3, 1, &world);
    job.ends_well();
}

#[test]
fn a_dead_master_ends_no_workers_and_a_restarted_one_finds_them() {
    let Some(mut job) = Job::of(3, 1) else { return };
    let world = job.world(3, 0, &[]);
    let master = job.master();
    job.network.set_control(master, "down");
    job.cluster.kill_master();
    for node in &job.nodes {
        let _said = job.cluster.await_output(node, CONSIDERED_DEAD);
    }
    // Twice as long as a lease; how much longer does not matter.
    std::thread::sleep(std::time::Duration::from_secs(12));
    assert!(world.iter().all(|worker| alive(worker.pid)), "{}", job.cluster.all_output());
    job.network.set_control(master, "up");
    let line = job.master_line();
    job.cluster.start_master(line);
    for node in &job.nodes {
        let _back = job.cluster.await_output(node, "reconnected to the job master");
    }
    assert!(world.iter().all(|worker| alive(worker.pid)), "{}", job.cluster.all_output());
    let ran = job.cluster.ran();
    assert_eq!(ran, [(0, 0), (0, 1), (0, 2)], "no worker was restarted");
    job.ends_well();
}
