//! A launcher's process: its state machine, its workers, and how it carries out the effects of both.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use diagnosis::network_check::LocalCheck;
use rules::{
    LocalRank, Moment, NodeId, Round,
    check_order::{CheckRound, Checked},
    failure::{ExitCause, Outcome, WorkerFailure},
    job::Event as JobEvent,
    node::{JoinRequest, NodeAttributes},
    push::Push,
    root_cause::FailureDetail,
    verdict::JobVerdict,
    worker_group::{Effect, Event, Limits, WorkerExit, WorkerGroup},
    world::Assignment,
};

use crate::{
    clock::{Action, LifeId},
    network::MasterLink,
    questions::Asking,
    savers::NodeSaver,
    simulation::{Simulation, Spawned},
    trainers::Trainer,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Process {
    Runs,
    /// SIGSTOP.
    Frozen,
    Over,
}

/// The workers of one round on one machine.
#[derive(Debug)]
pub(crate) struct Workers {
    pub(crate) spawn: u64,
    pub(crate) round: Round,
    /// Where they meet the others.
    pub(crate) endpoint: (String, u16),
    pub(crate) alive: BTreeSet<LocalRank>,
    all_well: bool,
    is_stubborn: bool,
    pub(crate) is_unkillable: bool,
    pub(crate) is_killed: bool,
}

/// One launcher, from its start to its end.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) id: NodeId,
    pub(crate) slot: usize,
    /// Of those in its slot.
    pub(crate) is_first: bool,
    pub(crate) born: Moment,
    pub(crate) group: WorkerGroup,
    pub(crate) process: Process,
    /// Actions that it will see once it runs again.
    pub(crate) held: Vec<Action>,
    pub(crate) timer: (u64, Option<Moment>),
    pub(crate) link: MasterLink,
    pub(crate) workers: Option<Workers>,
    /// Nothing can be started any more.
    pub(crate) is_guard_dead: bool,
    /// The assignment that is being prepared, or whose workers run.
    pub(crate) assignment: Option<Assignment>,
    port: Option<u16>,
    /// Failures of its own workers that were followed by a restart.
    pub(crate) own_failures: u32,
    /// The last failure is among them: it may yet turn out to be secondary.
    pub(crate) is_counted: bool,
    pub(crate) last_round: Option<Round>,
    /// The last round in which all its workers exited with code 0.
    pub(crate) done_well: Option<Round>,
    pub(crate) heard: Option<JobVerdict>,
    pub(crate) outcome: Option<Outcome>,
    /// The other launchers that are being asked.
    pub(crate) asking: Asking,
    /// The running test with others.
    pub(crate) probe: Option<CheckRound>,
    pub(crate) saver: Option<NodeSaver>,
    /// The clients of its workers.
    pub(crate) trainers: BTreeMap<LocalRank, Trainer>,
}

impl Life {
    pub(crate) fn id_of(life: LifeId) -> NodeId {
        NodeId(format!("n{life:05}"))
    }

    pub(crate) fn index_of(node: &NodeId) -> LifeId {
        node.0[1..].parse().expect("every node was named by the simulator")
    }

    pub(crate) fn is_over(&self) -> bool {
        self.process == Process::Over
    }
}

impl Simulation {
    pub(crate) fn start_life(&mut self, slot: usize) {
        let life = self.lives.len();
        let id = Life::id_of(life);
        let limits = Limits {
            node_id: id.clone(),
            max_restarts: self.plan.max_restarts,
            shutdown_timeout: self.plan.shutdown_timeout,
            join_timeout: self.plan.terms.join_timeout,
            check: self.plan.terms.check.as_ref().map(|check| check.reuse_for),
            has_accelerators: slot % 2 == 1,
            visible_accelerators: None,
            gpu_share: None,
            hang: None,
            reports_missing_progress: false,
            warm: None,
            save_at_breakpoint: self.plan.terms.save_at_breakpoint,
        };
        let is_first = self.lives.iter().all(|other| other.slot != slot);
        self.lives.push(Life {
            id,
            slot,
            is_first,
            born: self.now,
            group: WorkerGroup::new(limits),
            process: Process::Runs,
            held: Vec::new(),
            timer: (0, None),
            link: MasterLink::default(),
            workers: None,
            is_guard_dead: false,
            assignment: None,
            port: None,
            own_failures: 0,
            is_counted: false,
            last_round: None,
            done_well: None,
            heard: None,
            outcome: None,
            asking: Asking::default(),
            probe: None,
            saver: None,
            trainers: BTreeMap::new(),
        });
        self.slots[slot] = Some(life);
        self.alive += 1;
        self.set_node_timer(life);
        self.after(Duration::from_millis(1), Action::Connect { life });
    }

    pub(crate) fn thaw(&mut self, life: LifeId) {
        if self.lives[life].process == Process::Frozen {
            self.lives[life].process = Process::Runs;
            for action in std::mem::take(&mut self.lives[life].held) {
                self.queue.push(self.now, action);
            }
        }
    }

    fn request(&self, life: LifeId, after: Option<Round>, checked: Option<LocalCheck>) -> JoinRequest {
        let Life { id, slot, .. } = &self.lives[life];
        let place = &self.plan.slots[*slot];
        let mut terms = self.plan.terms.clone();
        if place.is_misfit {
            terms.max_nodes += 1;
        }
        JoinRequest {
            node_id: id.clone(),
            wish: place.wish,
            local_world_size: place.workers,
            role: "default".to_owned(),
            address: format!("10.0.{}.{}", slot / 250, slot % 250),
            node_ip: None,
            terms,
            attributes: NodeAttributes { host_name: format!("host-{slot}"), ..NodeAttributes::default() },
            after,
            checked: checked.map(|local| Checked { local, port: 1 }),
            question_port: 1,
            shards: Vec::new(),
        }
    }

    pub(crate) fn tell_node(&mut self, life: LifeId, event: Event) {
        if self.lives[life].is_over() {
            return;
        }
        let is_deadline = event == Event::Deadline;
        if let Event::Pushed(Push::JobEnd(verdict)) = &event {
            self.lives[life].heard = Some(verdict.clone());
        }
        let it = &mut self.lives[life];
        let now = Moment::new(self.now - it.born);
        let effects = it.group.handle(now, event);
        if is_deadline && it.group.deadline().is_some_and(|deadline| deadline <= now) {
            let messages = format!("{}: a deadline was handled and stays: {:?}", it.id, it.group);
            self.fail(|| messages);
        }
        self.set_node_timer(life);
        for effect in effects {
            self.note(|| format!("{}: {effect:?}", Life::id_of(life)));
            self.check_node_effect(life, &effect);
            self.carry_out_node(life, effect);
        }
    }

    fn set_node_timer(&mut self, life: LifeId) {
        let it = &mut self.lives[life];
        let deadline = it.group.deadline();
        if it.timer.1 == deadline {
            return;
        }
        it.timer = (it.timer.0 + 1, deadline);
        if let Some(deadline) = deadline {
            let at = (it.born + deadline.since_start()).max(self.now);
            let generation = it.timer.0;
            self.queue.push(at, Action::NodeTimer { life, generation });
        }
    }

    fn carry_out_node(&mut self, life: LifeId, effect: Effect) {
        let node = self.lives[life].id.clone();
        match effect {
            Effect::Join { after, checked, shards, .. } => {
                let request = JoinRequest { shards, ..self.request(life, after, checked) };
                self.send(life, JobEvent::Joined(request));
            }
            Effect::Resume { claim } => {
                let request = self.request(life, None, None);
                self.send(life, JobEvent::Resumed { request, claim });
            }
            Effect::StartSaver => self.start_saver(life),
            Effect::TellSaver { message } => self.tell_saver(life, *message),
            Effect::ReportCheckpoint { report } => {
                self.send(life, JobEvent::CheckpointReported { node, report });
            }
            // Not recorded.
            Effect::ReportCheckpointProgress { .. } => {}
            // The simulated jobs are not watched for hangs.
            Effect::ReportProgress { .. } | Effect::DumpStacks { .. } => {}
            Effect::TakeInventory => self.take_inventory(life),
            Effect::WatchGpus { .. } => {
                let wait = self.prng.millis(1, 5000);
                self.locally(wait, life, Event::GpuError { gpu: 0, code: 79 });
            }
            Effect::ReportInventory { inventory } => {
                self.send(life, JobEvent::InventoryReported { node, inventory });
            }
            Effect::CheckLocally => self.check_locally(life),
            Effect::Probe { order } => self.probe(life, &order),
            Effect::CancelProbe { at } => self.cancel_probe(life, at),
            Effect::ReportCheck { report } => self.send(life, JobEvent::CheckReported { node, report }),
            Effect::ReportTestProgress { at, probed } => {
                self.send(life, JobEvent::CheckProgressed { node, at, probed });
            }
            Effect::ReportHosting { round, master_addr, master_port } => {
                self.send(life, JobEvent::Hosted { node, round, master_addr, master_port });
            }
            Effect::ReportFailure { round, reason, gives_up, worker } => {
                let has_detail = worker.is_some();
                let failed = JobEvent::WorkersFailed {
                    node: node.clone(),
                    round,
                    reason,
                    gives_up,
                    has_detail,
                    age: Duration::ZERO,
                };
                self.send(life, failed);
                if let Some(worker) = worker {
                    self.report_detail(life, round, *worker);
                }
            }
            Effect::ReportEnd { end } => self.send(life, JobEvent::NodeEnded { node, end }),
            Effect::AcknowledgeEnd => self.send(life, JobEvent::EndAcknowledged { node }),
            Effect::HostStore { round, fresh_port } => self.host_store(life, round, fresh_port),
            Effect::Prepare { assignment, .. } => {
                let round = assignment.round;
                self.lives[life].assignment = Some(assignment);
                let event = if self.strikes(self.plan.rates.cannot) {
                    Event::CannotPrepare { round, reason: "the disk is full".to_owned() }
                } else {
                    Event::Prepared { round, oom_kills: None }
                };
                let wait = self.prng.millis(1, 50);
                self.locally(wait, life, event);
            }
            Effect::Spawn { round } => self.spawn(life, round),
            Effect::SignalTree { .. } => self.signal_tree(life),
            Effect::KillTree => self.kill_tree(life),
            Effect::AbandonTree => {
                self.lives[life].workers = None;
                self.trainers_die(life);
            }
            Effect::Finish { outcome } => {
                self.lives[life].outcome = Some(outcome);
                let sends_end = self.prng.chance(700);
                self.close_link(life, sends_end);
                self.end_life(life);
            }
            Effect::Ask { round, jury, timeout, of_master } => {
                self.ask(life, round, &jury, timeout, of_master);
            }
            Effect::SignalWorkers { .. }
            | Effect::KillWorker { .. }
            | Effect::Notify(_)
            | Effect::StartTemplate { .. }
            | Effect::EndTemplate => {}
        }
    }

    /// Mostly at once, and sometimes later than the master waits.
    fn report_detail(&mut self, life: LifeId, round: Round, worker: WorkerFailure) {
        let node = self.lives[life].id.clone();
        let detail = Box::new(FailureDetail::bare(worker));
        let message = Box::new(JobEvent::FailureDetailed { node, round, detail });
        let wait = self.prng.millis(1, 1500);
        self.after(wait, Action::DetailRead { life, message });
    }

    fn host_store(&mut self, life: LifeId, round: Round, fresh_port: bool) {
        if self.strikes(self.plan.rates.cannot) {
            let event = Event::CannotHost { reason: "no port".to_owned() };
            return self.locally(Duration::from_millis(5), life, event);
        }
        let port = match self.lives[life].port {
            Some(port) if !fresh_port => port,
            _ => self.checks.next_port(),
        };
        self.lives[life].port = Some(port);
        self.check_store(life, round, port);
        let wait = self.prng.millis(1, 20);
        let event = Event::Hosting { round, master_addr: None, master_port: port };
        self.locally(wait, life, event);
    }

    fn spawn(&mut self, life: LifeId, round: Round) {
        let Some(assignment) =
            self.lives[life].assignment.clone().filter(|_| !self.lives[life].is_guard_dead)
        else {
            return;
        };
        if self.strikes(self.plan.rates.cannot) {
            let event =
                Event::CannotStart { round, local_rank: LocalRank(0), reason: "no memory".to_owned() };
            self.locally(Duration::from_millis(1), life, event);
            let spawn = self.checks.next_spawn();
            let workers = self.workers(&assignment, spawn, BTreeSet::new());
            self.lives[life].workers = Some(workers);
            return;
        }
        let spawn = self.checks.next_spawn();
        let alive: BTreeSet<LocalRank> = (0..assignment.local_world_size).map(LocalRank).collect();
        // The workers of a round end at about the same time.
        let (low, high) = self.plan.work;
        let work = low + (u64::from(round.0) * 7919) % (high - low + 1);
        let fails = self.strikes(self.plan.rates.workers_fail);
        for local_rank in &alive {
            let time = if fails { self.prng.millis(0, work) } else { self.prng.millis(work, work + 300) };
            let cause = ExitCause::Code(i32::from(fails));
            self.after(time, Action::WorkerDies { life, spawn, local_rank: *local_rank, cause });
        }
        let workers = self.workers(&assignment, spawn, alive);
        self.lives[life].workers = Some(workers);
        self.report.spawned.push(Spawned {
            at: self.now,
            node: self.lives[life].id.clone(),
            slot: self.lives[life].slot,
            round,
            nodes: assignment.nodes,
            attempt: self.lives[life].group.attempt().0,
        });
        self.start_trainers(life);
        self.check_running(life);
        self.check_generations(life);
    }

    fn workers(&mut self, assignment: &Assignment, spawn: u64, alive: BTreeSet<LocalRank>) -> Workers {
        Workers {
            spawn,
            round: assignment.round,
            endpoint: (assignment.master_addr.clone(), assignment.master_port),
            alive,
            all_well: true,
            is_stubborn: self.strikes(self.plan.rates.stubborn),
            is_unkillable: self.strikes(self.plan.rates.unkillable),
            is_killed: false,
        }
    }

    fn signal_tree(&mut self, life: LifeId) {
        let Some(workers) = &self.lives[life].workers else { return };
        if workers.alive.is_empty() {
            return self.tree_empties(life);
        }
        if !workers.is_stubborn {
            let most = u64::try_from(self.plan.shutdown_timeout.as_millis()).unwrap_or(1000);
            // A checkpoint at the end may take long.
            let most = if self.prng.chance(100) { most + 500 } else { most / 4 };
            self.end_workers(life, most, 15);
        }
    }

    pub(crate) fn kill_tree(&mut self, life: LifeId) {
        let Some(workers) = &mut self.lives[life].workers else { return };
        workers.is_killed = true;
        if workers.alive.is_empty() {
            let spawn = workers.spawn;
            return self.after(Duration::from_millis(1), Action::TreeGone { life, spawn });
        }
        if !workers.is_unkillable {
            self.end_workers(life, 100, 9);
        }
    }

    fn end_workers(&mut self, life: LifeId, most: u64, signal: i32) {
        let Some(workers) = &self.lives[life].workers else { return };
        let (spawn, alive) = (workers.spawn, workers.alive.clone());
        for local_rank in alive {
            let wait = self.prng.millis(0, most);
            let cause = ExitCause::Signal(signal);
            self.after(wait, Action::WorkerDies { life, spawn, local_rank, cause });
        }
    }

    pub(crate) fn on_worker_died(&mut self, life: LifeId, spawn: u64, rank: LocalRank, cause: ExitCause) {
        let Some(workers) = self.lives[life].workers.as_mut().filter(|it| it.spawn == spawn) else { return };
        if !workers.alive.remove(&rank) {
            return;
        }
        workers.all_well &= cause == ExitCause::Code(0);
        let (round, is_last, all_well) = (workers.round, workers.alive.is_empty(), workers.all_well);
        if is_last && all_well {
            self.lives[life].done_well = Some(round);
        }
        self.trainer_dies(life, rank);
        let exit = WorkerExit { local_rank: rank, pid: 1, cause, unix_secs: 0 };
        let event = Event::WorkerExited { round, exit, oom_kills: None };
        self.locally(Duration::ZERO, life, event);
        if is_last {
            self.tree_empties(life);
        }
    }

    /// The workers are gone; their children may take longer.
    fn tree_empties(&mut self, life: LifeId) {
        let is_slow = self.prng.chance(50);
        let wait = if is_slow { self.prng.millis(100, 4000) } else { self.prng.millis(0, 20) };
        if let Some(workers) = &self.lives[life].workers {
            let wait = if workers.is_killed { Duration::from_millis(1) } else { wait };
            let spawn = workers.spawn;
            self.after(wait, Action::TreeGone { life, spawn });
        }
    }

    pub(crate) fn on_tree_gone(&mut self, life: LifeId, spawn: u64) {
        let it = &mut self.lives[life];
        if let Some(workers) = it.workers.take_if(|workers| workers.spawn == spawn) {
            let event = Event::TreeGone { round: workers.round };
            self.locally(Duration::ZERO, life, event);
        }
    }

    fn end_life(&mut self, life: LifeId) {
        self.lives[life].process = Process::Over;
        self.lives[life].held.clear();
        self.orphan_saver(life);
        self.alive -= 1;
    }

    /// `kill -9` of a launcher. Its guard kills the workers shortly after.
    pub(crate) fn crash_life(&mut self, life: LifeId) {
        self.end_life(life);
        self.close_link(life, false);
        let wait = self.prng.millis(0, 400);
        self.after(wait, Action::OrphansGone { life });
        if self.plan.is_embedded && life == 0 {
            self.crash_master(None);
        }
    }
}
