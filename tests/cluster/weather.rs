//! Random weather between hosts: packets are lost, late, too large, or get through one way only, while real launchers
//! meet at a real master, which is killed and started again in some of the schedules. When the sky is clear again the
//! job must come to its end, and meanwhile and then [`checks`] must hold.
//!
//! `cargo test` goes through 20 schedules. More of them, and one of them again:
//!
//! ```sh
//! DLROVER_WEATHER_RUNS=500 cargo test -p dlrover-tests --test cluster random_weather -- --nocapture
//! DLROVER_WEATHER_SEED=17 cargo test -p dlrover-tests --test cluster random_weather -- --nocapture
//! ```
//!
//! A seed is a schedule, and what the kernel and the machine make of it differs a little from run to run.
//!
//! * [`plan`]: what a seed stands for; [`relay`]: the way of the packets; [`checks`]: what must hold.

mod checks;
mod plan;
mod relay;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use support::{
    cluster::{Cluster, kill_node},
    launch::{Launch, Running},
    programs,
};

use self::{
    checks::Sight,
    plan::{BlowKind, Master, Plan, Strike},
    relay::{INTERFACE, Relay, address},
};
use crate::hosts::Namespace;

/// Schedules at a time: they mostly wait.
const AT_A_TIME: u64 = 8;

/// After the weather all must be together again within this time. The longest that a launcher waits for anything then
/// is 15 s (`--heartbeat-timeout`), and a busy machine is slow.
const TOGETHER: Duration = Duration::from_secs(60);

/// Where the master listens.
const PORT: u16 = 50001;

#[test]
fn random_weather() {
    if let Err(reason) = hosts_behind_a_relay(1, 0) {
        // Past cargo's capture. A closed stderr must not fail the case.
        let _ = writeln!(std::io::stderr(), "skipped: random weather between hosts: {reason}");
        return;
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = match number("DLROVER_WEATHER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DLROVER_WEATHER_RUNS").unwrap_or(20),
    };
    let next = AtomicU64::new(seeds.start);
    let tally = Mutex::new(Tally::default());
    let failed: Vec<u64> = thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME)
            .map(|_| {
                scope.spawn(|| {
                    let mut failed = Vec::new();
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds.end {
                            return failed;
                        }
                        match tale(&Plan::of(seed)) {
                            Some(tale) if seeds.end == seeds.start + 1 => {
                                println!("{:#?}\n{tale:?}", Plan::of(seed))
                            }
                            Some(tale) => tally.lock().expect("adding does not panic").add(&tale),
                            None => failed.push(seed),
                        }
                    }
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("failures are caught")).collect()
    });
    println!("{seeds:?}: {:?}", tally.into_inner().expect("adding does not panic"));
    assert!(failed.is_empty(), "seeds that failed, of {seeds:?}: {failed:?}; what happened is told above");
}

/// What schedules came to.
#[derive(Debug, Default)]
struct Tally {
    schedules: u64,
    packets_taken: u64,
    master_falls: usize,
    /// Schedules in which workers had to start again, and how often they did in all of them.
    restarted: u64,
    rounds: u64,
    workers: usize,
}

/// What one came to.
#[derive(Debug)]
struct Tale {
    packets_taken: u64,
    master_falls: usize,
    rounds: u64,
    workers: usize,
}

impl Tally {
    fn add(&mut self, tale: &Tale) {
        self.schedules += 1;
        self.packets_taken += tale.packets_taken;
        self.master_falls += tale.master_falls;
        self.restarted += u64::from(tale.rounds > 1);
        self.rounds += tale.rounds;
        self.workers += tale.workers;
    }
}

/// `None`: it went wrong, and all that is known of it has been told.
fn tale(plan: &Plan) -> Option<Tale> {
    // A thread of its own, so that a panic of the harness is reported with its seed too.
    let outcome = thread::scope(|scope| scope.spawn(|| Run::begin(plan).go_through()).join());
    let told = match outcome {
        Ok(tale) => return Some(tale),
        Err(panic) => panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
            .unwrap_or_default(),
    };
    let seed = plan.seed;
    let again = "cargo test -p dlrover-tests --test cluster random_weather -- --nocapture";
    let _ = writeln!(
        std::io::stderr(),
        "=== seed {seed}; again: DLROVER_WEATHER_SEED={seed} {again}\n{plan:#?}\n{told}\n=== end of seed {seed}"
    );
    None
}

/// Hosts that see each other through the relay alone. Fields are dropped in this order: first the relay.
struct Hosts {
    relay: Relay,
    namespaces: Vec<Namespace>,
}

fn hosts_behind_a_relay(count: usize, seed: u64) -> Result<Hosts, String> {
    let namespaces: Vec<Namespace> = (0..count).map(|_| Namespace::new()).collect::<Result<_, _>>()?;
    let holders: Vec<u32> = namespaces.iter().map(Namespace::holder).collect();
    let relay = Relay::between(&holders, seed)?;
    for (host, namespace) in namespaces.iter().enumerate() {
        let lines = [
            "link set lo up".to_owned(),
            format!("addr add {}/24 dev {INTERFACE}", address(host)),
            format!("link set {INTERFACE} up"),
        ];
        namespace.batch("ip", &lines)?;
    }
    Ok(Hosts { relay, namespaces })
}

/// Something that a schedule does, and when.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The weather may be another one from now on.
    Network,
    Start(usize),
    Fail(usize),
    Kill(usize),
    Freeze(usize),
    Thaw(usize),
    KillMaster,
    StartMaster,
}

/// One schedule on its way.
struct Run<'a> {
    plan: &'a Plan,
    // Before the hosts: processes that are left in them are killed first.
    nodes: Vec<Option<Running>>,
    job: Cluster,
    hosts: Hosts,
    folders: Vec<PathBuf>,
    state: PathBuf,
}

impl<'a> Run<'a> {
    fn begin(plan: &'a Plan) -> Self {
        let hosts = hosts_behind_a_relay(plan.hosts(), plan.seed).expect("it could be done a moment ago");
        let job = Cluster::of_lines(programs!());
        let folders: Vec<PathBuf> =
            (0..plan.nodes()).map(|node| job.dir().join(format!("node{node}"))).collect();
        let state = job.dir().join("state");
        for folder in folders.iter().chain([&state]) {
            fs::create_dir(folder).expect("a directory in our own");
        }
        Self { plan, nodes: (0..plan.nodes()).map(|_| None).collect(), job, hosts, folders, state }
    }

    fn go_through(mut self) -> Tale {
        let (plan, folders) = (self.plan, self.folders.clone());
        let mut sight = Sight::new(plan, &folders);
        if plan.master == Master::OfItsOwn {
            self.start_master();
        }
        let start = Instant::now();
        for (at, act) in acts(plan) {
            while let Some(left) = (start + at).checked_duration_since(Instant::now()) {
                self.look(&mut sight);
                // Durations are part of a schedule.
                thread::sleep(left.min(Duration::from_millis(20)));
            }
            match act {
                Act::Network => self.hosts.relay.set(plan.network(at)),
                Act::Start(node) => self.nodes[node] = Some(self.line(node).start()),
                Act::Fail(node) => self.touch(node, "fail"),
                Act::Kill(node) => kill_node(self.nodes[node].take().expect("it was started")),
                Act::Freeze(node) => self.signal(node, Signal::SIGSTOP),
                Act::Thaw(node) => self.signal(node, Signal::SIGCONT),
                Act::KillMaster => self.job.kill_master(),
                Act::StartMaster => self.start_master(),
            }
        }
        self.hosts.relay.set(BTreeMap::new());
        let cleared = Instant::now();
        while !(sight.is_whole() && self.is_settled(&sight)) {
            self.look(&mut sight);
            assert!(
                cleared.elapsed() < TOGETHER,
                "not together again {TOGETHER:?} after the weather\n{:#?}\n{}",
                sight.workers,
                self.job.all_output()
            );
            thread::sleep(Duration::from_millis(20));
        }
        self.end(&mut sight)
    }

    /// Whether the master counts on all of the workers that are seen: a node that was cut off goes on with its old ones
    /// for a while, after the master has given it up.
    fn is_settled(&self, sight: &Sight<'_>) -> bool {
        let output = match self.plan.master {
            Master::OfItsOwn => self.job.master_log(),
            Master::InALauncher => self.nodes[0].as_ref().map(Running::stderr).unwrap_or_default(),
        };
        let lines: Vec<&str> = output.lines().collect();
        let last = lines.iter().rposition(|line| round_of(line).is_some());
        // A master that came back has formed none yet, and remembers the one before.
        let is_whole = last.is_none_or(|last| {
            let expected = sight.youngest().map(|round| (round, self.plan.nodes()));
            round_of(lines[last]) == expected
        });
        is_whole && !lines[last.unwrap_or(0)..].iter().any(|line| line.contains(" was lost: "))
    }

    fn touch(&self, node: usize, name: &str) {
        fs::write(self.folders[node].join(name), "").expect("a file in our own directory");
    }

    fn signal(&self, node: usize, signal: Signal) {
        self.nodes[node].as_ref().expect("it was started").signal(signal);
    }

    fn look(&mut self, sight: &mut Sight<'_>) {
        if let Err(broken) = sight.look() {
            panic!("{broken}\n{}", self.job.all_output());
        }
        let ended = self.nodes.iter_mut().flatten().position(Running::has_ended);
        assert!(ended.is_none(), "node {ended:?} has ended before its time\n{}", self.job.all_output());
    }

    /// All end, for the same reason.
    fn end(mut self, sight: &mut Sight<'_>) -> Tale {
        let file = if self.plan.fails { "fail" } else { "go" };
        (0..self.folders.len()).for_each(|node| self.touch(node, file));
        let told = Instant::now();
        while let Some(node) = self.nodes.iter_mut().flatten().position(|node| !node.has_ended()) {
            let left = TOGETHER.checked_sub(told.elapsed());
            assert!(left.is_some(), "node {node} does not end\n{}", self.job.all_output());
            thread::sleep(Duration::from_millis(20));
        }
        let nodes: Vec<Running> = self.nodes.drain(..).map(|node| node.expect("all were started")).collect();
        let code = i32::from(self.plan.fails);
        let outcomes = self.job.finish(nodes, code);
        if self.plan.fails {
            for outcome in &outcomes {
                assert!(outcome.stderr.contains("rank 0"), "no word of rank 0\n{}", self.job.all_output());
            }
        }
        if self.plan.master == Master::OfItsOwn {
            let _master = self.job.finish_master().expect_code(0);
        }
        if let Err(broken) = sight.look() {
            panic!("at the end: {broken}\n{}", self.job.all_output());
        }
        let rounds = sight.workers.iter().map(|worker| worker.round).collect::<BTreeSet<_>>().len();
        Tale {
            packets_taken: self.hosts.relay.taken(),
            master_falls: self.plan.falls.len(),
            rounds: rounds as u64,
            workers: sight.workers.len(),
        }
    }

    fn entering(&self, host: usize) -> [String; 2] {
        self.hosts.namespaces[host].entering()
    }

    fn line(&self, node: usize) -> Launch {
        let plan = self.plan;
        let [program, flag] = self.entering(node);
        let line = self.job.line_in(&[&program, &flag], &address(node));
        let steps: &[&str] =
            if plan.fails { &["dump", "await fail", "0 exit 3", "hang"] } else { &["dump", "work"] };
        let line = line.env("PROBE_OUT", &self.folders[node]).steps(steps);
        let may_fail = plan.blow.is_some_and(|blow| blow.kind == BlowKind::WorkerFails);
        let line = line.flags([format!("--max-restarts={}", u8::from(may_fail))]);
        let line = line.flags([format!("--nnodes={}:{}", plan.least, plan.nodes())]);
        let meeting = format!("{}:{PORT}", address(plan.master_host()));
        let heartbeat = format!("--heartbeat-timeout={}", plan.heartbeat_timeout);
        match plan.master {
            Master::OfItsOwn => line.env("DLROVER_MASTER_ADDR", meeting),
            Master::InALauncher => {
                line.flags(["--rdzv-backend=c10d", &*format!("--rdzv-endpoint={meeting}"), &*heartbeat])
            }
        }
    }

    fn start_master(&mut self) {
        let [program, flag] = self.entering(self.plan.master_host());
        let line = self.job.master_line_in(&[&program, &flag]).flags([
            format!("--port={PORT}"),
            format!("--state-dir={}", self.state.display()),
            format!("--heartbeat-timeout={}", self.plan.heartbeat_timeout),
            // More than a schedule can lose of one rank.
            "--restart-count=20".to_owned(),
        ]);
        self.job.start_master(line);
    }
}

/// The round that a master forms by this line, and how many nodes have a part in it.
fn round_of(line: &str) -> Option<(u32, usize)> {
    let (round, nodes) = line.split_once(": round ")?.1.split_once(" node")?.0.split_once(": ")?;
    Some((round.parse().ok()?, nodes.parse().ok()?))
}

/// All that a schedule does, in order.
fn acts(plan: &Plan) -> Vec<(Duration, Act)> {
    let skies = plan.storms.iter().flat_map(|storm| [storm.from, storm.from + storm.lasts]);
    let mut acts: Vec<(Duration, Act)> = skies.map(|at| (at, Act::Network)).collect();
    acts.extend(plan.starts.iter().enumerate().map(|(node, at)| (*at, Act::Start(node))));
    if let Some(Strike { at, node, kind }) = plan.blow {
        let then = at + kind.lasts();
        acts.extend(match kind {
            BlowKind::WorkerFails => vec![(at, Act::Fail(node))],
            BlowKind::LauncherKilled(_) => vec![(at, Act::Kill(node)), (then, Act::Start(node))],
            BlowKind::LauncherFrozen(_) => vec![(at, Act::Freeze(node)), (then, Act::Thaw(node))],
        });
    }
    for fall in &plan.falls {
        acts.extend([(fall.at, Act::KillMaster), (fall.at + fall.down, Act::StartMaster)]);
    }
    acts.push((plan.is_over_at(), Act::Network));
    acts.sort_by_key(|(at, _)| *at);
    acts
}
