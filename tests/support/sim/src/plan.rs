//! The decisions of a seed before a schedule starts: the job, the nodes, and the faults.

use std::time::Duration;

use diagnosis::network_check::{Deadlines, OnBadPath, Tainting};
use rules::{
    Moment, NodeRank, RunId,
    check_terms::{CheckTerms, OnInconclusive},
    job::{OnGiveUp, Policy},
    liveness::Timeout,
    node::Terms,
};

use crate::prng::Prng;

/// A place where launchers run, one life after the other.
#[derive(Debug, Clone)]
pub struct Slot {
    /// When its first life starts.
    pub arrives: Moment,
    /// The rank it asks for.
    pub wish: Option<NodeRank>,
    /// Its workers.
    pub workers: u32,
    /// It has other terms than the others.
    pub is_misfit: bool,
    /// What is wrong with the machine of its first life.
    pub flaw: Option<Flaw>,
}

/// A fault of a machine, as a network check may see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Its self-test finds it.
    Local,
    /// No bytes reach it, or come from it.
    Silent,
    /// It refuses every connection.
    Refuses,
}

/// A fault, or an action of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9` of the master, and its restart.
    MasterCrash { down: Duration },
    /// A launcher and its workers vanish; another life may follow.
    NodeCrash { slot: usize, replaced_after: Option<Duration> },
    /// SIGSTOP to a launcher; its workers keep running.
    Freeze { slot: usize, lasts: Duration },
    /// A signal to a launcher that ends it, perhaps twice.
    Signal { slot: usize, signal: i32, again_after: Option<Duration> },
    /// Nothing gets through between a node and the master.
    Partition { slot: usize, lasts: Duration },
    /// A connection is reset.
    BreakLink { slot: usize },
    /// A node's guard process dies.
    GuardDies { slot: usize },
    /// A worker fails.
    WorkerFails { slot: usize },
    /// A node's saver dies.
    SaverDies { slot: usize },
    /// Nothing gets through in this direction; the other one stays as it is.
    Cut { from: End, to: End, lasts: Duration },
    /// Nothing gets through, in one direction or both, between so many of the first slots, with or without the
    /// master, and the rest.
    Split { slots: usize, with_master: bool, from: bool, to: bool, lasts: Duration },
}

/// One end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The host of this slot.
    Slot(usize),
    /// The master's host, where it has one of its own.
    Master,
}

/// The rates of random faults, in a thousand, until the plan heals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rates {
    /// A node's message does not arrive.
    pub message_lost: u32,
    /// It arrives, and its answer does not.
    pub ack_lost: u32,
    /// A message takes up to a second.
    pub slow: u32,
    /// A node's workers of one round fail.
    pub workers_fail: u32,
    /// Workers ignore SIGTERM.
    pub stubborn: u32,
    /// Not even a SIGKILL.
    pub unkillable: u32,
    /// Prepare, start, or open the store fails.
    pub cannot: u32,
    /// The topology file is not read in time, or cannot be.
    pub topology_fails: u32,
}

/// How workers save checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saves {
    /// Each node has the whole state; else each rank has a part of it.
    pub replicated: bool,
    /// The time of a step.
    pub every: Duration,
    /// Every so many steps one goes to disk.
    pub disk_every: u64,
    /// Such a step is saved to memory before, as all others are: scripts of DLRover's guide do so.
    pub is_saved_twice: bool,
    /// How long a write to disk takes, in milliseconds.
    pub persist: (u64, u64),
    /// How many in a thousand fail.
    pub fails: u32,
    /// So many other nodes keep a replica of each shard.
    pub replicas: u32,
}

/// A schedule.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed of everything that the plan leaves open.
    pub seed: u64,
    /// The terms of the job's nodes.
    pub terms: Terms,
    /// The settings of the master. `host` is filled in when the master is embedded.
    pub policy: Policy,
    /// The master lives in the launcher of the first slot.
    pub is_embedded: bool,
    /// The master has a journal.
    pub has_journal: bool,
    /// Records between two snapshots.
    pub compacts_every: Option<usize>,
    /// The master's clock stands still while it is down, and continues from the last record.
    pub clock_stands_still: bool,
    /// The timeouts of the master.
    pub timeout: Timeout,
    /// Each node's restarts.
    pub max_restarts: u32,
    /// Between the first signal and SIGKILL.
    pub shutdown_timeout: Duration,
    /// The nodes.
    pub slots: Vec<Slot>,
    /// Faults and their times.
    pub faults: Vec<(Moment, Fault)>,
    /// Random faults.
    pub rates: Rates,
    /// From here on there are no faults.
    pub heals_at: Moment,
    /// How long a round's workers run, in milliseconds.
    pub work: (u64, u64),
    /// The master is killed when so many records are durable.
    pub crash_after_records: Option<usize>,
    /// Workers save checkpoints; `None`: they do not.
    pub saves: Option<Saves>,
    /// Messages of an older stream reach the master after a newer stream is open.
    pub stray_messages: bool,
}

impl Plan {
    /// A job of `nodes` nodes of two workers each without faults, with a master of its own that has a journal. The
    /// work takes a minute.
    #[must_use]
    pub fn calm(nodes: u32) -> Self {
        let slots = (0..nodes).map(|rank| Slot {
            arrives: Moment::at_millis(u64::from(rank % 100) * 10),
            wish: Some(NodeRank(rank)),
            workers: 2,
            is_misfit: false,
            flaw: None,
        });
        Self {
            seed: 0,
            terms: Terms {
                run_id: RunId("job".into()),
                min_nodes: nodes,
                max_nodes: nodes,
                node_unit: 1,
                last_call: Duration::from_secs(3),
                join_timeout: Duration::from_secs(60),
                require_uniform: false,
                check: None,
                hang: None,
                save_at_breakpoint: false,
            },
            policy: Policy {
                restart_count: 3,
                on_give_up: OnGiveUp::Replace,
                host: None,
                has_topology: false,
                host_timeout: Duration::from_secs(15),
                reconnect_grace: Duration::from_secs(30),
                terms: None,
                is_open: false,
                taint_guard_permille: 300,
                lease: Some(Duration::from_secs(15)),
            },
            is_embedded: false,
            has_journal: true,
            compacts_every: None,
            clock_stands_still: true,
            timeout: Timeout {
                reconnect_grace: Duration::from_secs(2),
                heartbeat_timeout: Some(Duration::from_secs(15)),
            },
            max_restarts: 3,
            shutdown_timeout: Duration::from_secs(10),
            slots: slots.collect(),
            faults: Vec::new(),
            rates: Rates::default(),
            heals_at: Moment::START,
            work: (60_000, 60_000),
            crash_after_records: None,
            saves: None,
            stray_messages: false,
        }
    }

    /// The schedule of a seed: 2 to 16 nodes.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let nodes = prng.small(2, 16);
        let faults = if prng.chance(250) { prng.index(40) } else { prng.index(10) };
        Self::drawn(seed, &mut prng, nodes, faults)
    }

    /// The schedule of a seed in which paths are cut, nodes are lost and the master dies, while workers run.
    #[must_use]
    pub fn of_cuts(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x0F0F);
        let nodes = prng.small(2, 9);
        let mut plan = Self::drawn(seed, &mut prng, nodes, 0);
        plan.terms.check = None;
        plan.terms.max_nodes = nodes;
        plan.terms.min_nodes = if prng.chance(700) { prng.small(1, nodes) } else { nodes };
        plan.terms.node_unit = 1;
        plan.is_embedded = prng.chance(200);
        plan.has_journal = !plan.is_embedded && prng.chance(800);
        plan.policy.restart_count = 9;
        plan.work = (40_000, 200_000);
        plan.heals_at = Moment::at_secs(150);
        plan.rates.workers_fail = plan.rates.workers_fail.min(50);
        for slot in &mut plan.slots {
            (slot.is_misfit, slot.flaw) = (false, None);
        }
        for _ in 0..prng.small(1, 6) {
            let at = Moment::START + prng.millis(8_000, 120_000);
            let fault = plan.draw_cut(&mut prng);
            plan.faults.push((at, fault));
            // Other faults follow from it, or are random.
            if prng.chance(500) {
                let then = at + prng.millis(0, 40_000);
                let fault =
                    if prng.chance(600) { plan.draw_cut(&mut prng) } else { plan.draw_fault(&mut prng) };
                plan.faults.push((then.min(plan.heals_at), fault));
            }
        }
        plan
    }

    /// A node that ends, and has something to write, gets the word of its master. It does not from one that is away then,
    /// or has ended the job meanwhile, and waits for as long as it may.
    #[must_use]
    pub fn answers_at_the_end(&self) -> bool {
        let is_away = |fault: &Fault| match fault {
            Fault::Freeze { .. } | Fault::Partition { .. } | Fault::Cut { .. } | Fault::Split { .. } => true,
            // It takes its master with it, and is not replaced.
            Fault::NodeCrash { slot: 0, .. } => self.is_embedded,
            _ => false,
        };
        self.has_journal && !self.faults.iter().any(|(_, fault)| is_away(fault))
    }

    /// The schedule of a seed in which workers save checkpoints, and everything else fails.
    #[must_use]
    pub fn of_saves(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x5A5E);
        let nodes = prng.small(1, 5);
        let faults = prng.index(8);
        let mut plan = Self::drawn(seed, &mut prng, nodes, faults);
        plan.terms.check = None;
        plan.terms.min_nodes = if prng.chance(500) { prng.small(1, nodes) } else { nodes };
        plan.terms.max_nodes = nodes;
        plan.terms.node_unit = 1;
        plan.terms.save_at_breakpoint = prng.chance(500);
        plan.policy.restart_count = 9;
        plan.max_restarts = 3;
        plan.work = (20_000, 90_000);
        for slot in &mut plan.slots {
            (slot.is_misfit, slot.flaw) = (false, None);
        }
        let longest = [100, 2000, 20_000][prng.index(3)];
        plan.saves = Some(Saves {
            replicated: prng.chance(400),
            every: Duration::from_millis([50, 300, 2000][prng.index(3)]),
            disk_every: prng.between(1, 4),
            is_saved_twice: Prng::new(seed ^ 0x2B1C).chance(300),
            persist: (20, longest),
            fails: if prng.chance(300) { prng.small(0, 200) } else { 0 },
            replicas: if prng.chance(500) { prng.small(1, 2) } else { 0 },
        });
        for _ in 0..prng.small(0, 3) {
            let slot = prng.index(plan.slots.len());
            let at = Moment::START + prng.millis(3000, 100_000);
            let fault = match prng.index(4) {
                0 => Fault::SaverDies { slot },
                1 => Fault::NodeCrash { slot, replaced_after: Some(prng.millis(500, 5000)) },
                2 => Fault::MasterCrash { down: prng.millis(0, 5000) },
                _ => Fault::WorkerFails { slot },
            };
            plan.faults.push((at.min(plan.heals_at), fault));
        }
        plan
    }

    fn draw_cut(&self, prng: &mut Prng) -> Fault {
        let slots = self.slots.len();
        let most = [5_000, 20_000, 60_000, 100_000][prng.index(4)];
        let lasts = prng.millis(0, most);
        let any = |prng: &mut Prng| match prng.index(slots + 1) {
            slot if slot < slots => End::Slot(slot),
            _ => End::Master,
        };
        match prng.index(8) {
            0 | 1 => Fault::Cut { from: End::Slot(prng.index(slots)), to: End::Master, lasts },
            2 | 3 => Fault::Cut { from: End::Master, to: End::Slot(prng.index(slots)), lasts },
            4 => Fault::Cut { from: any(prng), to: any(prng), lasts },
            5 => Fault::MasterCrash { down: lasts },
            _ => {
                let way = prng.index(3);
                let (from, to) = (way != 1, way != 0);
                Fault::Split { slots: prng.index(slots + 1), with_master: prng.chance(300), from, to, lasts }
            }
        }
    }

    /// A schedule of so many nodes.
    #[must_use]
    pub fn of_size(seed: u64, nodes: u32) -> Self {
        let mut prng = Prng::new(seed);
        let mut plan = Self::drawn(seed, &mut prng, nodes, 6);
        // At this size some message is always in transit; a loss in a thousand is a storm.
        plan.rates.message_lost = plan.rates.message_lost.min(1);
        plan.rates.ack_lost = plan.rates.ack_lost.min(1);
        plan.rates.workers_fail = plan.rates.workers_fail.min(1);
        plan.rates.cannot = 0;
        plan.rates.unkillable = 0;
        plan.terms.min_nodes = plan.terms.min_nodes.min(nodes / 2).max(1);
        plan
    }

    fn drawn(seed: u64, prng: &mut Prng, nodes: u32, faults: usize) -> Self {
        let mut plan = Self::calm(nodes);
        plan.seed = seed;
        plan.draw_job(prng, nodes);
        plan.draw_slots(prng);
        plan.heals_at = Moment::at_millis(prng.between(30_000, 150_000));
        if prng.chance(900) {
            plan.draw_rates(prng);
        }
        let mut at = Moment::START;
        for _ in 0..faults {
            // Some happen at about the same time.
            let is_burst = prng.chance(300);
            at = if is_burst { at + prng.millis(0, 3000) } else { Moment::START + prng.millis(0, 120_000) };
            let fault = plan.draw_fault(prng);
            plan.faults.push((at.min(plan.heals_at), fault));
        }
        plan
    }

    fn draw_job(&mut self, prng: &mut Prng, nodes: u32) {
        let most = if prng.chance(300) { prng.small(1, nodes) } else { nodes };
        self.terms.max_nodes = most;
        self.terms.min_nodes = if prng.chance(400) { most } else { prng.small(1, most) };
        self.terms.node_unit = if prng.chance(700) { 1 } else { prng.small(1, most.min(4)) };
        self.terms.last_call = Duration::from_millis([0, 1000, 3000, 5000][prng.index(4)]);
        self.terms.join_timeout = Duration::from_secs(prng.between(20, 90));
        self.terms.require_uniform = prng.chance(100);
        self.is_embedded = prng.chance(300);
        self.has_journal = prng.chance(if self.is_embedded { 100 } else { 700 });
        self.compacts_every = prng.chance(300).then(|| prng.index(40) + 1);
        self.clock_stands_still = prng.chance(500);
        self.policy.on_give_up = if self.is_embedded { OnGiveUp::FailJob } else { OnGiveUp::Replace };
        self.policy.restart_count = prng.small(0, 4);
        self.policy.has_topology = prng.chance(250);
        self.policy.reconnect_grace = Duration::from_secs(prng.between(5, 30));
        self.timeout.reconnect_grace = Duration::from_secs(prng.between(2, 5));
        self.max_restarts = prng.small(0, 3);
        self.shutdown_timeout = Duration::from_secs(prng.between(1, 20));
        let work = prng.between(1000, 60_000);
        self.work = (work, work + prng.between(0, 10_000));
        if prng.chance(300) {
            self.terms.check = Some(Self::check(prng));
        }
    }

    /// How nodes are checked.
    fn check(prng: &mut Prng) -> CheckTerms {
        let on_inconclusive = [OnInconclusive::Fail, OnInconclusive::Proceed, OnInconclusive::Relaunch];
        CheckTerms {
            exclude_straggler: prng.chance(300),
            straggler_permille: 2000,
            max_rounds: 8,
            deadlines: Deadlines::native(),
            has_command: false,
            measures_bandwidth: prng.chance(300),
            reuse_for: Duration::from_secs([0, 0, 30][prng.index(3)]),
            on_inconclusive: on_inconclusive[prng.index(3)],
            taint_flaky: [Tainting::Now, Tainting::Confirmed, Tainting::Never][prng.index(3)],
            on_bad_path: [OnBadPath::Exclude, OnBadPath::Fail, OnBadPath::Proceed][prng.index(3)],
        }
    }

    fn draw_slots(&mut self, prng: &mut Prng) {
        let (has_wishes, is_wave) = (prng.chance(500), prng.chance(300));
        let are_mixed = prng.chance(200);
        for (rank, slot) in (0_u32..).zip(&mut self.slots) {
            let is_late = prng.chance(150);
            slot.arrives = match (is_late, is_wave) {
                (true, true) => Moment::START + Duration::from_secs(20) + prng.millis(0, 2000),
                (true, false) => Moment::START + prng.millis(0, 60_000),
                (false, _) => Moment::START + prng.millis(0, 3000),
            };
            let wishes = if are_mixed { prng.chance(500) } else { has_wishes };
            slot.wish = wishes.then_some(NodeRank(rank));
            slot.workers = if self.terms.require_uniform { 2 } else { prng.small(1, 3) };
            slot.is_misfit = rank > 0 && prng.chance(15);
            let flaw = [Flaw::Local, Flaw::Silent, Flaw::Refuses][prng.index(3)];
            slot.flaw = prng.chance(80).then_some(flaw);
        }
    }

    fn draw_rates(&mut self, prng: &mut Prng) {
        let mut rate = |most: u32| if prng.chance(500) { prng.small(0, most) } else { 0 };
        self.rates = Rates {
            message_lost: rate(60),
            ack_lost: rate(60),
            slow: rate(200),
            workers_fail: rate(300),
            stubborn: rate(300),
            unkillable: rate(20),
            cannot: rate(20),
            topology_fails: rate(400),
        };
    }

    fn draw_fault(&self, prng: &mut Prng) -> Fault {
        let slot = prng.index(self.slots.len());
        let most = [3000, 5000, 20_000, 60_000][prng.index(4)];
        let lasts = prng.millis(0, most);
        match prng.index(14) {
            12 | 13 => self.draw_cut(prng),
            0 | 1 => Fault::MasterCrash { down: lasts },
            2..=4 => Fault::NodeCrash { slot, replaced_after: prng.chance(700).then_some(lasts) },
            5 => Fault::Freeze { slot, lasts },
            6 => {
                let again_after = prng.chance(300).then_some(lasts);
                Fault::Signal { slot, signal: [2, 15][prng.index(2)], again_after }
            }
            7 | 8 => Fault::Partition { slot, lasts },
            9 => Fault::BreakLink { slot },
            10 => Fault::WorkerFails { slot },
            _ if prng.chance(300) => Fault::GuardDies { slot },
            _ => Fault::BreakLink { slot },
        }
    }

    /// When a schedule must be over: no wait is endless. All that may still follow after the last fault, and twice
    /// that.
    #[must_use]
    pub fn bound(&self) -> Moment {
        let late = self.slots.iter().map(|slot| slot.arrives).max().unwrap_or_default();
        let start = self.heals_at.max(late) + Duration::from_secs(120);
        let round = Duration::from_millis(self.work.1)
            + self.shutdown_timeout
            + self.policy.host_timeout
            + self.terms.last_call
            + Duration::from_secs(30);
        // A load or the end of a run may wait for a write to disk until it is given up.
        let saves = if self.saves.is_some() { Duration::from_secs(1800) } else { Duration::ZERO };
        start + self.terms.join_timeout * 4 + round * 8 + saves
    }
}
