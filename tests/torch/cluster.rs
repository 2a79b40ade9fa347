//! Real PyTorch on two nodes of two workers: DDP over gloo that outlives a node, and torchrun's own lines.

use std::{
    ffi::OsString,
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use nix::sys::signal::Signal;

use support::{
    cluster::{Cluster, kill_node},
    free_port,
    launch::{Launch, Running},
    programs, trainer,
};

use crate::python;

/// `torch_ddp.py` on two workers of this line's node.
fn ddp(line: Launch, python: &OsString) -> Launch {
    let line = line.script(trainer("torch_ddp.py")).env("PYTHON_EXEC", python).env("OMP_NUM_THREADS", "1");
    line.flags(["--nnodes=2", "--nproc-per-node=2"])
}

/// What rank 0 says at the end of a training that went well.
const TRAINED: &str = "all 4 ranks hold the same weights";

/// One of them says it, on whichever node rank 0 is; the loss went down.
fn trained(job: &Cluster, nodes: impl IntoIterator<Item = Running>) {
    let outcomes = job.finish(nodes, 0);
    let of_rank_0 = outcomes.iter().find(|outcome| outcome.stdout.contains(TRAINED));
    let output = &of_rank_0.unwrap_or_else(|| panic!("no node trained: {outcomes:#?}")).stdout;
    let losses =
        output.lines().filter_map(|line| line.split_once("loss ")?.1.split(' ').next()?.parse().ok());
    let losses: Vec<f32> = losses.collect();
    assert!(losses.len() >= 2 && losses.last() < losses.first(), "the loss goes down: {outcomes:#?}");
}

#[test]
fn ddp_on_two_nodes_survives_the_loss_of_one() {
    let Some(python) = python() else { return };
    let mut job = Cluster::with_master(programs!(), &["--reconnect-grace=0.5"]);
    let checkpoint = job.dir().join("checkpoint.pt");
    let args = ["--steps=400".to_owned(), format!("--checkpoint={}", checkpoint.display())];
    let start = |job: &Cluster, rank| ddp(job.ranked(rank), &python).args(&args).start();
    let [first, second] = [0, 1].map(|rank| start(&job, rank));
    job.wait("a checkpoint", || checkpoint.exists().then_some(()));
    kill_node(second);
    let replacement = start(&job, 1);
    job.wait("training that goes on", || {
        let output = std::fs::read_to_string(first.dir().join("stdout")).ok()?;
        output.contains("resumed from").then_some(())
    });
    trained(&job, [first, replacement]);
    let _master = job.finish_master().expect_code(0);
}

#[test]
fn ddp_on_unchanged_c10d_commands_survives_the_loss_of_a_worker() {
    let Some(python) = python() else { return };
    let job = Cluster::of_lines(programs!());
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let line = ["--rdzv-backend=c10d", &endpoint, "--rdzv-id=same", "--max-restarts=1"];
    let checkpoint = format!("--checkpoint={}", job.dir().join("checkpoint.pt").display());
    let args = ["--steps=60", "--die-at=25", "--die-rank=3", &checkpoint];
    let nodes = [(); 2].map(|()| ddp(job.line(), &python).flags(line).args(args).start());
    trained(&job, nodes);
}

/// A line of a meeting of two at `port`.
fn c10d(port: u16) -> [String; 5] {
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{port}");
    ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=mixed", &endpoint]
        .map(str::to_owned)
}

/// The real torchrun, ended with this.
struct Torchrun(Child);

impl Torchrun {
    fn start(python: &OsString, port: u16) -> Self {
        let mut torchrun = Command::new(python);
        torchrun.args(["-m", "torch.distributed.run"]).args(c10d(port)).arg(trainer("probe.py"));
        Self(torchrun.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("torch's own launcher"))
    }
}

impl Drop for Torchrun {
    fn drop(&mut self) {
        // It has no workers: the rendezvous is never complete.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn a_torchrun_that_connects_is_named() {
    let Some(python) = python() else { return };
    let (job, port) = (Cluster::of_lines(programs!()), free_port());
    let node = job.line().flags(c10d(port)).script(trainer("probe.py")).start();
    let _serves = job.await_output(&node, "serves the job master");
    let _torchrun = Torchrun::start(&python, port);
    let _named = job.await_output(&node, "speaks torchrun's rendezvous");
    node.signal(Signal::SIGTERM);
    let _ended = node.finish();
}

#[test]
fn a_torchrun_that_serves_the_rendezvous_is_named() {
    let Some(python) = python() else { return };
    let (job, port) = (Cluster::of_lines(programs!()), free_port());
    let _torchrun = Torchrun::start(&python, port);
    job.wait("torchrun's port", || TcpStream::connect(("127.0.0.1", port)).ok());
    let node = job.line().flags(c10d(port)).script(trainer("probe.py")).start();
    let _named = job.await_output(&node, "speaks torchrun's rendezvous");
    node.signal(Signal::SIGTERM);
    let _ended = node.finish();
}

#[test]
fn ddp_trains_with_unchanged_static_commands() {
    let Some(python) = python() else { return };
    let job = Cluster::of_lines(programs!());
    let port = free_port().to_string();
    let nodes = ["0", "1"].map(|rank| {
        let line = ["--node-rank", rank, "--master-addr=127.0.0.1", "--master-port", &port];
        ddp(job.line(), &python).flags(line).args(["--steps=40"]).start()
    });
    trained(&job, nodes);
}

#[test]
fn nodes_check_each_other_with_torch_and_train() {
    let Some(python) = python() else { return };
    let mut job = Cluster::with_master(programs!(), &[]);
    let program = trainer("../../examples/checks/torch_check.py");
    let command = format!("--check-command='{}' '{}'", python.display(), program.display());
    let nodes = [0, 1].map(|rank| {
        let line = ddp(job.ranked(rank), &python).flags(["--network-check", &command]);
        line.env("DLROVER_CHECK_MIB", "4").args(["--steps=40"]).start()
    });
    trained(&job, nodes);
    let output = job.finish_master().expect_code(0).stderr;
    assert!(output.contains("network check 0: 2 of 2 nodes healthy after 1 round"), "{output}");
}
