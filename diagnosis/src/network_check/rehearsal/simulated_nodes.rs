//! How the nodes of a simulated cluster behave in tests.

use crate::rng::Rng;
use std::{collections::BTreeMap, time::Duration};

use super::{
    super::{ComputeKind, ComputeTime, Event, Group, LocalCheck, LocalFault, Probed, Subject},
    Cluster,
};
use crate::moment::Moment;

/// The random stream.
const BEHAVIOR: u64 = 3;

/// The time until a pair is connected.
const GETTING_READY: Duration = Duration::from_millis(50);
/// The time of a healthy pair's transfers.
const COMM: f64 = 0.1;
/// The time of a healthy node's compute probe.
const COMPUTE: f64 = 0.05;
/// The bytes of a test.
const BYTES: u64 = 64 << 20;
/// An error shows after this; a hang never does.
const ERROR_AFTER: Duration = Duration::from_millis(200);
/// The share of failures that hang.
const HANGS: f64 = 0.7;
/// The time until the job master reports a lost node.
const LOSS_NOTICED: Duration = Duration::from_secs(2);
/// From the cancellation of a probe to its last report.
const REPORT_GRACE: Duration = Duration::from_millis(20);

/// A future event of the simulation; in the order of nodes at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ScheduledEvent {
    /// The test of a node in this round ends, unless it was cut short before.
    Ends { node: u32, round: u32 },
    /// It was cut short.
    Cut { node: u32, round: u32 },
    /// Its loss is noticed.
    Lost { node: u32 },
}

/// How a test goes for its members.
#[derive(Debug, Clone)]
enum TestBehavior {
    Passes { comm: Duration },
    Fails { reason: String },
    Hangs,
}

/// The state of one node in this round.
#[derive(Debug, Clone)]
struct RunningTest {
    round: u32,
    since: Moment,
    behavior: TestBehavior,
    compute: Vec<ComputeTime>,
    has_ended: bool,
}

/// The nodes of a simulated cluster.
#[derive(Debug)]
pub(super) struct SimulatedNodes<'a> {
    cluster: &'a Cluster,
    rng: Rng,
    tests: Vec<Option<RunningTest>>,
    groups: Vec<Group>,
}

impl<'a> SimulatedNodes<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        let tests = vec![None; cluster.nodes as usize];
        Self { cluster, rng: Rng::new(cluster.seed, BEHAVIOR), tests, groups: Vec::new() }
    }

    fn noisy(&mut self, seconds: f64) -> Duration {
        let factor =
            if self.cluster.noise > 0.0 { (self.cluster.noise * self.rng.normal()).exp() } else { 1.0 };
        Duration::try_from_secs_f64(seconds * factor).unwrap_or(Duration::MAX)
    }

    fn compute(&mut self, node: u32) -> ComputeTime {
        let model = || "simulated GPU".to_owned();
        let (kind, seconds) = match self.cluster.other_kind.contains(&node) {
            false => (ComputeKind::Cublas { model: model() }, COMPUTE),
            true => (ComputeKind::OwnKernel { model: model() }, COMPUTE / 10.0),
        };
        let factor = self.cluster.slow_compute.get(&node).copied().unwrap_or(1.0);
        if self.cluster.liars.contains(&node) {
            let time = [Duration::from_nanos(1), Duration::from_secs(3600), Duration::from_millis(50)];
            let time = time.get(self.rng.below(3)).copied().unwrap_or_default();
            return ComputeTime { time, kind };
        }
        ComputeTime { time: self.noisy(seconds * factor), kind }
    }

    /// The report of a node that reports falsely.
    fn lie(&mut self) -> Probed {
        let passed =
            |comm| Probed::Passed { comm, latency: Duration::from_micros(50), bytes_per_second: BYTES };
        match self.rng.below(4) {
            0 => Probed::Failed { reason: "connection refused by the peer".to_owned() },
            1 => passed(Duration::from_nanos(1)),
            2 => passed(Duration::from_secs(3600)),
            _ => passed(Duration::from_millis(100)),
        }
    }

    /// The nodes at the start of the check, with the local faults that the simulation has.
    pub(super) fn subjects(&mut self) -> Vec<Subject> {
        let nodes = self.cluster.nodes;
        let subject = |node: u32| {
            let fault = self
                .cluster
                .local_fault
                .contains(&node)
                .then(|| LocalFault::new("GPU 0", "the compute probe gave wrong numbers"));
            let compute = fault.is_none().then(|| self.compute(node));
            Subject {
                rack: self.cluster.rack(node),
                pod: self.cluster.pod(node),
                seen_before: false,
                local: LocalCheck { fault, compute, ..LocalCheck::default() },
            }
        };
        (0..nodes).map(subject).collect()
    }

    /// Events that do not depend on the check.
    pub(super) fn first_events(&self) -> Vec<(Moment, ScheduledEvent)> {
        let lost = self.cluster.lost.iter().filter(|node| !self.cluster.local_fault.contains(node));
        lost.map(|node| (Moment::START + LOSS_NOTICED, ScheduledEvent::Lost { node: *node })).collect()
    }

    /// A round begins.
    pub(super) fn on_start(
        &mut self,
        now: Moment,
        round: u32,
        groups: &[Group],
        again: &[(u32, u32)],
    ) -> Vec<(Moment, ScheduledEvent)> {
        groups.clone_into(&mut self.groups);
        let again: BTreeMap<u32, u32> = again.iter().copied().collect();
        let mut events = Vec::with_capacity(self.tests.len());
        for group in groups.iter().filter(|group| group.members.len() > 1) {
            let behavior = self.behavior(round, &group.members);
            let after = match &behavior {
                TestBehavior::Passes { comm } => Some(GETTING_READY.saturating_add(*comm)),
                TestBehavior::Fails { .. } => Some(ERROR_AFTER),
                TestBehavior::Hangs => None,
            };
            for node in &group.members {
                let compute =
                    (0..again.get(node).copied().unwrap_or(0)).map(|_| self.compute(*node)).collect();
                let test =
                    RunningTest { round, since: now, behavior: behavior.clone(), compute, has_ended: false };
                if let Some(slot) = self.tests.get_mut(*node as usize) {
                    *slot = Some(test);
                }
                if let Some(after) = after
                    && !self.cluster.lost.contains(node)
                {
                    events.push((now + after, ScheduledEvent::Ends { node: *node, round }));
                }
            }
        }
        events
    }

    /// The simulated result of a test of these nodes.
    fn behavior(&mut self, round: u32, members: &[u32]) -> TestBehavior {
        let cluster = self.cluster;
        if members.iter().any(|node| cluster.lost.contains(node)) {
            return TestBehavior::Hangs;
        }
        let is_broken = |node: &u32| {
            cluster.faulty.contains(node) || cluster.dies.get(node).is_some_and(|last| round > *last)
        };
        let mut fails = members.iter().any(is_broken);
        // Random numbers are drawn only where needed: a cluster without them stays the same.
        if cluster.transient > 0.0 {
            fails |= self.rng.share() < cluster.transient;
        }
        let mut slowest = 1.0_f64;
        for (at, a) in members.iter().enumerate() {
            for b in members.iter().skip(at + 1) {
                fails |= cluster.is_cut_in(round, *a, *b);
                let ends = (*a.min(b), *a.max(b));
                slowest = cluster.slow_links.get(&ends).map_or(slowest, |factor| slowest.max(*factor));
            }
            slowest = cluster.slow_nic.get(a).map_or(slowest, |factor| slowest.max(*factor));
            if let Some(chance) = cluster.flaky.get(a) {
                fails |= self.rng.share() < *chance;
            }
        }
        if fails {
            return match self.rng.share() < HANGS {
                true => TestBehavior::Hangs,
                false => TestBehavior::Fails {
                    reason: format!("connection reset after {} s", ERROR_AFTER.as_secs_f64()),
                },
            };
        }
        TestBehavior::Passes { comm: self.noisy(COMM * slowest) }
    }

    /// The tests of these are cut short.
    pub(super) fn on_cancel(&mut self, now: Moment, nodes: &[u32]) -> Vec<(Moment, ScheduledEvent)> {
        let open = nodes.iter().filter_map(|node| {
            let test = self.tests.get(*node as usize)?.as_ref().filter(|test| !test.has_ended)?;
            (!self.cluster.lost.contains(node))
                .then_some((now + REPORT_GRACE, ScheduledEvent::Cut { node: *node, round: test.round }))
        });
        open.collect()
    }

    /// The event for the check.
    pub(super) fn deliver(&mut self, now: Moment, event: ScheduledEvent) -> Option<Event> {
        let (node, round, is_cut) = match event {
            ScheduledEvent::Lost { node } => {
                return Some(Event::NodeLost {
                    node,
                    reason: "no heartbeat for 2 s".to_owned(),
                    is_announced: false,
                });
            }
            ScheduledEvent::Ends { node, round } => (node, round, false),
            ScheduledEvent::Cut { node, round } => (node, round, true),
        };
        let test = self.tests.get_mut(node as usize)?.as_mut();
        let test = test.filter(|test| test.round == round && !test.has_ended)?;
        test.has_ended = true;
        let elapsed = now - (test.since + GETTING_READY);
        let probed = match &test.behavior {
            TestBehavior::Passes { comm } if is_cut && elapsed < *comm => {
                let idle = Duration::ZERO;
                Probed::Unfinished { bytes: share_of(BYTES, elapsed, *comm), total: BYTES, elapsed, idle }
            }
            TestBehavior::Passes { comm } => {
                let bytes_per_second = share_of(BYTES, Duration::from_secs(1), *comm);
                Probed::Passed { comm: *comm, latency: Duration::from_micros(50), bytes_per_second }
            }
            TestBehavior::Fails { reason } => Probed::Failed { reason: reason.clone() },
            TestBehavior::Hangs => Probed::Unfinished { bytes: 0, total: BYTES, elapsed, idle: elapsed },
        };
        let compute = Some(std::mem::take(&mut test.compute));
        let probed = if self.cluster.liars.contains(&node) { self.lie() } else { probed };
        Some(Event::Reported { node, round, probed, compute })
    }
}

/// The part of `bytes` in `whole` after `elapsed`.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate"
)]
fn share_of(bytes: u64, elapsed: Duration, whole: Duration) -> u64 {
    (bytes as f64 * elapsed.as_secs_f64() / whole.as_secs_f64().max(1e-9)) as u64
}
