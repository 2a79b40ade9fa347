//! Links go down: every node in a network namespace of its own, all joined by a bridge in one more. The host's
//! own network is never touched; with the processes that hold them the namespaces are gone.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
};

use support::{cluster::Cluster, programs};

/// A network namespace, and the process that holds it.
struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new() -> Result<Self, String> {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo here; exec sleep 1000"]);
        let holder = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut this = Self { holder: holder.map_err(|error| format!("no unshare: {error}"))? };
        let mut line = String::new();
        let stdout = this.holder.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).map_err(|error| error.to_string())?;
        if line.is_empty() {
            return Err("network namespaces cannot be made here (not root?)".to_owned());
        }
        this.ip("link set lo up")?;
        Ok(this)
    }

    /// What enters it.
    fn entering(&self) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", self.holder.id())]
    }

    /// `ip` inside of it.
    fn ip(&self, words: &str) -> Result<(), String> {
        let [program, flag] = self.entering();
        let done = Command::new(program).arg(flag).arg("ip").args(words.split(' ')).output();
        let done = done.map_err(|error| format!("no nsenter: {error}"))?;
        if done.status.success() {
            return Ok(());
        }
        Err(format!("ip {words}: {}", String::from_utf8_lossy(&done.stderr).trim()))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _gone = self.holder.kill();
        let _gone = self.holder.wait();
    }
}

/// A bridge at 10.77.0.254, and nodes at 10.77.0.1, .2, ... behind links of their own.
struct Network {
    hub: Namespace,
    nodes: Vec<Namespace>,
}

impl Network {
    fn of(count: usize) -> Result<Self, String> {
        let hub = Namespace::new()?;
        for words in ["link add br0 type bridge", "addr add 10.77.0.254/24 dev br0", "link set br0 up"] {
            hub.ip(words)?;
        }
        let mut nodes = Vec::new();
        for number in 1..=count {
            let node = Namespace::new()?;
            let pid = node.holder.id();
            hub.ip(&format!("link add v{number} type veth peer name eth0 netns {pid}"))?;
            hub.ip(&format!("link set v{number} master br0 up"))?;
            node.ip(&format!("addr add 10.77.0.{number}/24 dev eth0"))?;
            node.ip("link set eth0 up")?;
            nodes.push(node);
        }
        Ok(Self { hub, nodes })
    }

    fn set_link(&self, node: usize, state: &str) {
        self.hub.ip(&format!("link set v{} {state}", node + 1)).expect("the link is ours");
    }
}

#[test]
fn a_node_behind_a_dead_link_is_lost_by_its_silence_and_comes_back_as_a_newcomer() {
    let network = match Network::of(3) {
        Ok(network) => network,
        Err(reason) => {
            // Past cargo's capture, for it has no way to say it. A stderr that is closed must not fail the case.
            let _ = writeln!(std::io::stderr(), "skipped: {reason}");
            return;
        }
    };
    let mut job = Cluster::of_lines(programs!());
    let [program, flag] = network.hub.entering();
    let master = job.master_line_in(&[&program, &flag]).flags(["--port=50001", "--heartbeat-timeout=1"]);
    job.start_master(master);
    let line = ["--nnodes=2:3", "--rdzv-conf=lastcall_timeout=0"];
    let start = |number: usize| {
        let [program, flag] = network.nodes[number].entering();
        let node = job.line_in(&[&program, &flag], &format!("10.77.0.{}", number + 1));
        let node = node.env("DLROVER_MASTER_ADDR", "10.77.0.254:50001").env("NODE_RANK", number.to_string());
        // It says of itself where it is; the master sees the same.
        node.flags(line).env("PLACE", (number + 1).to_string()).start()
    };
    let nodes = [start(0), start(1)];
    let both = job.await_world(2, 0);
    assert!(both.iter().all(|worker| worker.var("MASTER_ADDR") == "10.77.0.1"), "{both:#?}");
    let third = start(2);
    let all = job.await_world(3, 1);
    network.set_link(2, "down");
    let _two = job.await_world(2, 2);
    let _said = job.await_master_said("10.77.0.3) is gone: nothing was heard of it for 3 s");
    assert!(support::cluster::alive(all[2].pid), "nobody can reach its workers");
    network.set_link(2, "up");
    let _three = job.await_world(3, 3);
    assert!(!support::cluster::alive(all[2].pid), "it has cleared them away itself");
    job.ends_well(nodes.into_iter().chain([third]));
}
