//! Hosts of their own: network namespaces, each joined by two networks to a hub. The machine's own network is never
//! touched; with the processes that hold them the namespaces are gone, and with those what they were joined by.
//!
//! | network | hub | host N, counted from 0 | its interface | the hub's end of it |
//! |---|---|---|---|---|
//! | control | 10.77.0.254 | 10.77.0.N+1 | `control` | `cN` |
//! | data | 10.78.0.254 | 10.78.0.N+1 | `data` | `dN` |
//!
//! A [`Fault`] breaks a host's data path and leaves its control path as it is.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
};

/// An address without a host.
const NO_HOST: &str = "02:00:00:00:00:99";

/// A network namespace, and the process that holds it.
#[derive(Debug)]
pub(crate) struct Namespace {
    holder: Child,
}

impl Namespace {
    pub(crate) fn new() -> Result<Self, String> {
        let mut command = Command::new("unshare");
        // It ends with its standard input, should the test be killed.
        command.args(["--net", "sh", "-c", "echo here; exec cat"]);
        let holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut this = Self { holder: holder.map_err(|error| format!("no unshare: {error}"))? };
        let mut line = String::new();
        let stdout = this.holder.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).map_err(|error| error.to_string())?;
        if line.is_empty() {
            return Err("network namespaces cannot be made here (not root?)".to_owned());
        }
        Ok(this)
    }

    /// The process that holds it.
    pub(crate) fn holder(&self) -> u32 {
        self.holder.id()
    }

    /// What enters it.
    pub(crate) fn entering(&self) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", self.holder.id())]
    }

    /// Processes inside of it beside the one that holds it.
    fn left(&self) -> Vec<u32> {
        let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let Some(own) = namespace(self.holder.id()) else { return Vec::new() };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
        pids.filter(|pid| *pid != self.holder.id() && namespace(*pid).as_ref() == Some(&own)).collect()
    }

    /// Lines for `ip` or `tc`, inside of it.
    pub(crate) fn batch(&self, program: &str, lines: &[String]) -> Result<(), String> {
        let [nsenter, flag] = self.entering();
        let mut command = Command::new(nsenter);
        command.args([&flag, program, "-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("no nsenter: {error}"))?;
        let told = child.stdin.take().expect("it is piped").write_all(lines.join("\n").as_bytes());
        let done = child.wait_with_output().map_err(|error| error.to_string())?;
        if told.is_ok() && done.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&done.stderr).trim().replace('\n', "; ");
        Err(format!("{program}, of `{}`: {why}", lines.join("; ")))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let left = if std::thread::panicking() { Vec::new() } else { self.left() };
        let _gone = self.holder.kill();
        let _gone = self.holder.wait();
        assert_eq!(left, [0; 0], "processes that would keep the namespace");
    }
}

/// What breaks a data path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// What the host sends is lost silently.
    Mute,
    /// What the others send it is lost silently.
    Deaf,
    /// The host itself refuses to send.
    Blackhole,
}

/// The hub, and hosts around it.
#[derive(Debug)]
pub(crate) struct Network {
    hub: Namespace,
    hosts: Vec<Namespace>,
}

impl Network {
    /// `None`, with words for a person, where namespaces cannot be made.
    pub(crate) fn of(count: usize) -> Option<Self> {
        Self::try_of(count)
            .inspect_err(|reason| {
                // Past cargo's capture. A closed stderr must not fail the case.
                let _ = writeln!(std::io::stderr(), "skipped: {reason}");
            })
            .ok()
    }

    fn try_of(count: usize) -> Result<Self, String> {
        let hub = Namespace::new()?;
        let hosts: Vec<Namespace> = (0..count).map(|_| Namespace::new()).collect::<Result<_, _>>()?;
        let mut lines = vec!["link set lo up".to_owned()];
        for (bridge, net) in [("bridge-c", 77), ("bridge-d", 78)] {
            lines.push(format!("link add {bridge} type bridge"));
            lines.push(format!("addr add 10.{net}.0.254/24 dev {bridge}"));
            lines.push(format!("link set {bridge} up"));
        }
        for (number, host) in hosts.iter().enumerate() {
            let pid = host.holder.id();
            for (end, far, bridge) in [("c", "control", "bridge-c"), ("d", "data", "bridge-d")] {
                lines.push(format!("link add {end}{number} type veth peer name {far} netns {pid}"));
                lines.push(format!("link set {end}{number} master {bridge} up"));
            }
        }
        hub.batch("ip", &lines)?;
        for (number, host) in hosts.iter().enumerate() {
            let mut lines = vec!["link set lo up".to_owned()];
            for (name, net) in [("control", 77), ("data", 78)] {
                lines.push(format!("addr add 10.{net}.0.{}/24 dev {name}", number + 1));
                lines.push(format!("link set {name} up"));
            }
            host.batch("ip", &lines).expect("the namespace is ours");
        }
        Ok(Self { hub, hosts })
    }

    pub(crate) fn len(&self) -> usize {
        self.hosts.len()
    }

    /// What enters the hub.
    pub(crate) fn entering_hub(&self) -> [String; 2] {
        self.hub.entering()
    }

    /// What enters a host.
    pub(crate) fn entering(&self, host: usize) -> [String; 2] {
        self.hosts[host].entering()
    }

    /// Plugs a host's control network in or out, at the hub.
    pub(crate) fn set_control(&self, host: usize, state: &str) {
        self.hub.batch("ip", &[format!("link set c{host} {state}")]).expect("the link is ours");
    }

    /// What a host sends to another one on the control network is lost silently; the other direction stays as
    /// it is.
    pub(crate) fn lose_control(&self, from: usize, to: usize) {
        let address = control_address(to);
        let line = format!("neigh replace {address} lladdr {NO_HOST} dev control nud permanent");
        self.hosts[from].batch("ip", &[line]).expect("the neighbours are ours");
    }

    /// It comes through again.
    pub(crate) fn restore_control(&self, from: usize, to: usize) {
        let line = format!("neigh del {} dev control", control_address(to));
        self.hosts[from].batch("ip", &[line]).expect("the neighbours are ours");
    }

    /// Breaks the data path between a host and all others.
    pub(crate) fn break_host(&self, host: usize, fault: Fault) {
        for other in (0..self.len()).filter(|other| *other != host) {
            self.break_way(host, other, fault);
        }
    }

    /// Breaks the data path between two hosts, for both.
    pub(crate) fn cut(&self, a: usize, b: usize) {
        self.break_way(a, b, Fault::Mute);
        self.break_way(a, b, Fault::Deaf);
    }

    fn break_way(&self, host: usize, other: usize, fault: Fault) {
        let to_no_host = |peer: usize| {
            let address = data_address(peer);
            format!("neigh replace {address} lladdr {NO_HOST} dev data nud permanent")
        };
        let (at, line) = match fault {
            Fault::Mute => (host, to_no_host(other)),
            Fault::Deaf => (other, to_no_host(host)),
            Fault::Blackhole => (host, format!("route add blackhole {}/32", data_address(other))),
        };
        self.hosts[at].batch("ip", &[line]).expect("the neighbours are ours");
    }

    /// Lets a host send and receive no faster than this on its data network.
    pub(crate) fn limit(&self, host: usize, bytes_per_second: u64) {
        let rate = bytes_per_second.saturating_mul(8);
        self.shape(host, &format!("rate {rate}bit burst 64kb latency 100ms"));
    }

    /// Packets of more than 700 bytes vanish between a host and the data network, as where one switch is set to
    /// smaller frames than all others: connections are answered, and what is sent then is lost.
    pub(crate) fn lose_large_packets(&self, host: usize) {
        self.shape(host, "rate 10gbit burst 700b limit 1mb");
    }

    fn shape(&self, host: usize, bucket: &str) {
        let lines = |device: &str| vec![format!("qdisc add dev {device} root tbf {bucket}")];
        self.hosts[host].batch("tc", &lines("data")).expect("the link is ours");
        self.hub.batch("tc", &lines(&format!("d{host}"))).expect("the link is ours");
    }
}

/// Where workers and probes of a host are reached.
pub(crate) fn data_address(host: usize) -> String {
    format!("10.78.0.{}", host + 1)
}

/// Where launchers and the master of a host are reached.
pub(crate) fn control_address(host: usize) -> String {
    format!("10.77.0.{}", host + 1)
}
