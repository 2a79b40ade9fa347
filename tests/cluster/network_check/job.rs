//! A job with a network check, each node on a host of its own.

use std::{ops::Deref, path::PathBuf};

use support::{
    cluster::Cluster,
    launch::{Launch, Outcome, Running},
    programs,
    seen::Dump,
};

use super::report::Report;
use crate::hosts::{Network, data_address};

/// Where nodes find the master.
const MASTER: &str = "10.77.0.254:50001";

/// A master at the hub, and the line that all nodes have in common.
#[derive(Debug)]
pub(super) struct Job<'a> {
    network: &'a Network,
    cluster: Cluster,
    flags: Vec<String>,
}

impl<'a> Job<'a> {
    /// A job with a network check and these flags.
    pub(super) fn on(network: &'a Network, flags: &[&str]) -> Self {
        Self::with_master(network, &[], flags)
    }

    /// The same with flags for the master.
    pub(super) fn with_master(network: &'a Network, master: &[&str], flags: &[&str]) -> Self {
        let flags = ["--network-check"].iter().chain(flags).map(|&flag| flag.to_owned()).collect();
        let mut job = Self { network, cluster: Cluster::of_lines(programs!()), flags };
        job.start_master(master);
        job
    }

    fn start_master(&mut self, flags: &[&str]) {
        let [program, flag] = self.network.entering_hub();
        let report = format!("--taint-report={}", self.report_file().display());
        let line = self.cluster.master_line_in(&[&program, &flag]);
        let line = line.flags(["--port=50001", &report]).flags(flags);
        self.cluster.start_master(line);
    }

    /// Kills the master and starts another with these flags.
    pub(super) fn restart_master(&mut self, flags: &[&str]) {
        self.cluster.kill_master();
        self.start_master(flags);
    }

    /// The line of the node on this host, which asks for the host's number as its rank.
    pub(super) fn line_of(&self, host: usize) -> Launch {
        self.line_as(host, host)
    }

    /// The line of the node on this host, which asks for this rank.
    pub(super) fn line_as(&self, host: usize, rank: usize) -> Launch {
        let [program, flag] = self.network.entering(host);
        let address = data_address(host);
        let line = self.cluster.line_in(&[&program, &flag], &address);
        let line = line.env("DLROVER_MASTER_ADDR", MASTER).env("NODE_RANK", rank.to_string());
        let line = line.env("PLACE", (host + 1).to_string());
        line.flags([format!("--local-addr={address}")]).flags(&self.flags)
    }

    /// Starts a node on every host.
    pub(super) fn start(&self) -> Vec<Running> {
        (0..self.network.len()).map(|host| self.line_of(host).start()).collect()
    }

    /// Where the document lies.
    fn report_file(&self) -> PathBuf {
        self.cluster.dir().join("report.json")
    }

    /// What this check of the job came to, once it is written. A later one must not have begun.
    pub(super) fn report(&self, check: u32) -> Report {
        let file = self.report_file();
        let read = || Report::read(&std::fs::read_to_string(&file).ok()?).filter(|it| it.epoch >= check);
        let report = self.cluster.wait(&format!("the report of check {check}"), read);
        assert_eq!(report.epoch, check, "{report:#?}");
        report
    }

    /// All nodes train: the workers of the first round, by rank.
    pub(super) fn first_world(&self, size: u32) -> Vec<Dump> {
        self.cluster.await_world(size, 0)
    }

    /// These nodes leave for this reason, one that the check has given.
    #[track_caller]
    pub(super) fn leave(&self, nodes: impl IntoIterator<Item = Running>, code: i32) -> Vec<Outcome> {
        self.cluster.finish(nodes, code)
    }

    /// The workers may end; these nodes succeed, and so does the master. Returns its end.
    #[track_caller]
    pub(super) fn ends_well(mut self, nodes: impl IntoIterator<Item = Running>) -> Outcome {
        self.cluster.go();
        let _outcomes = self.cluster.finish(nodes, 0);
        self.cluster.finish_master().expect_code(0)
    }

    /// All nodes leave with this code, no worker has run, and the job has failed. Gives what nodes and master said.
    #[track_caller]
    pub(super) fn fails(mut self, nodes: impl IntoIterator<Item = Running>, code: i32) -> Vec<Outcome> {
        let mut outcomes = self.cluster.finish(nodes, code);
        assert_eq!(self.cluster.ran(), [], "{}", self.cluster.all_output());
        outcomes.push(self.cluster.finish_master().expect_code(1));
        outcomes
    }
}

impl Deref for Job<'_> {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

/// Takes the node on this host out of the list.
pub(super) fn take(nodes: &mut Vec<Running>, host: usize) -> Running {
    nodes.remove(host)
}
