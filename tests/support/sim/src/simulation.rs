//! One queue of actions, and the dispatch of each.

use std::{collections::BTreeMap, time::Duration};

use rules::{Moment, NodeId, Round, verdict::JobVerdict, worker_group::Event as NodeEvent};

use crate::{
    checks::Checks,
    clock::{Action, LifeId, Queue},
    master::Master,
    network::Conn,
    node::{Life, Process},
    plan::{End, Fault, Plan},
    prng::Prng,
    savers::Disk,
    trainers::Course,
};

/// Worlds above this size are checked when they change, not at every step.
const THOROUGH: usize = 64;

/// One start of a node's workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spawned {
    /// When.
    pub at: Moment,
    /// The launcher.
    pub node: NodeId,
    /// Its slot in the plan.
    pub slot: usize,
    /// The round.
    pub round: Round,
    /// Nodes in it.
    pub nodes: u32,
    /// `TORCHELASTIC_RESTART_COUNT`.
    pub attempt: u32,
}

/// The result of a schedule.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Actions carried out.
    pub steps: u64,
    /// How the job ended, as the last master saw it.
    pub verdict: Option<JobVerdict>,
    /// When everything was over.
    pub ended_at: Moment,
    /// Every start of workers.
    pub spawned: Vec<Spawned>,
    /// Lines of the master's log.
    pub log: Vec<String>,
    /// The reports of checks.
    pub checks: Vec<rules::taint_report::TaintReport>,
    /// Records that became durable.
    pub records: usize,
    /// Restarts of the master.
    pub master_starts: u64,
}

/// A running schedule.
#[derive(Debug)]
pub struct Simulation {
    pub(crate) plan: Plan,
    pub(crate) prng: Prng,
    pub(crate) now: Moment,
    pub(crate) queue: Queue,
    pub(crate) lives: Vec<Life>,
    /// The life that a slot has now.
    pub(crate) slots: Vec<Option<LifeId>>,
    pub(crate) conns: Vec<Conn>,
    /// Directions in which nothing gets through, and until when.
    pub(crate) cuts: BTreeMap<(End, End), Moment>,
    pub(crate) master: Master,
    pub(crate) checks: Checks,
    pub(crate) report: Report,
    pub(crate) disk: Disk,
    pub(crate) savers_made: u64,
    pub(crate) sends_made: u64,
    /// The rounds of training, by their numbers and where their workers meet.
    pub(crate) courses: BTreeMap<(Round, (String, u16)), Course>,
    pub(crate) is_thorough: bool,
    /// Launchers that have not ended.
    pub(crate) alive: usize,
    pub(crate) is_traced: bool,
    pub(crate) violation: Option<String>,
}

impl Simulation {
    /// A schedule that starts with the master.
    #[must_use]
    pub fn new(mut plan: Plan) -> Self {
        if plan.is_embedded {
            plan.slots[0].arrives = Moment::START;
            plan.policy.host = Some(Life::id_of(0));
        }
        let mut queue = Queue::default();
        // The host's launcher has to be the first life.
        let mut order: Vec<usize> = (0..plan.slots.len()).collect();
        order.sort_by_key(|slot| (plan.slots[*slot].arrives, *slot));
        for slot in order {
            queue.push(plan.slots[slot].arrives, Action::Start { slot });
        }
        for (at, fault) in &plan.faults {
            queue.push(*at, Action::Fault(*fault));
        }
        let mut simulation = Self {
            prng: Prng::new(plan.seed ^ 0xA5A5_5A5A),
            now: Moment::START,
            queue,
            lives: Vec::new(),
            alive: 0,
            slots: vec![None; plan.slots.len()],
            conns: Vec::new(),
            cuts: BTreeMap::new(),
            master: Master::new(&plan),
            checks: Checks::new(plan.policy.restart_count),
            report: Report::default(),
            disk: Disk::default(),
            savers_made: 0,
            sends_made: 0,
            courses: BTreeMap::new(),
            is_thorough: plan.slots.len() <= THOROUGH,
            is_traced: std::env::var_os("DLROVER_SIM_TRACE").is_some(),
            violation: None,
            plan,
        };
        simulation.start_master();
        simulation
    }

    /// Runs the schedule to its end.
    ///
    /// # Errors
    /// The first violated invariant.
    pub fn run(&mut self) -> Result<Report, String> {
        let bound = self.plan.bound();
        while !self.is_over() {
            if !self.step()? {
                break;
            }
            if self.now > bound {
                return Err(format!("not over at {bound}: {}", self.who_is_left()));
            }
        }
        if !self.is_over() {
            return Err(format!("nothing will ever happen again: {}", self.who_is_left()));
        }
        self.report.ended_at = self.now;
        Ok(self.report.clone())
    }

    /// Runs it for so long.
    ///
    /// # Errors
    /// The first violated invariant.
    pub fn run_for(&mut self, time: Duration) -> Result<(), String> {
        let until = self.now + time;
        while self.queue.next_at().is_some_and(|at| at <= until) {
            self.step()?;
        }
        self.now = until;
        Ok(())
    }

    /// Causes a fault now.
    pub fn strike(&mut self, fault: Fault) {
        self.apply_fault(fault);
    }

    /// The result so far.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The launcher that a slot has now.
    #[must_use]
    pub fn node_of(&self, slot: usize) -> Option<NodeId> {
        self.slots[slot].map(Life::id_of)
    }

    /// How each launcher ended, in the order of their starts; `None`: it has not, or was killed.
    pub fn outcomes(&self) -> impl Iterator<Item = (&NodeId, Option<&rules::failure::Outcome>)> {
        self.lives.iter().map(|life| (&life.id, life.outcome.as_ref()))
    }

    /// The journal, to be cut.
    #[must_use]
    pub fn journal(&self) -> &crate::journal::Journal {
        &self.master.journal
    }

    /// The step that counts on disk.
    #[must_use]
    pub fn step_on_disk(&self) -> Option<u64> {
        self.disk.tracker
    }

    /// The job by the durable records.
    #[must_use]
    pub fn durable_job(&self) -> &rules::job::Job {
        &self.master.shadow
    }

    fn is_over(&self) -> bool {
        self.alive == 0 && self.to_start() == 0 && !self.is_master_expected()
    }

    /// Slots whose first life has not started, and replacements to come.
    fn to_start(&self) -> usize {
        self.plan.slots.len() + self.checks.replacements - self.lives.len()
    }

    fn who_is_left(&self) -> String {
        let lives = self.lives.iter().filter(|life| !life.is_over()).take(3);
        let mut messages: Vec<String> = lives.map(|life| format!("{life:?}")).collect();
        if self.is_master_expected() {
            messages.push(format!("master {:?}", self.master.core.as_ref().map(|core| core.job())));
        }
        messages.join("\n")
    }

    /// Runs the next action. `false` when there is none.
    fn step(&mut self) -> Result<bool, String> {
        let Some((at, action)) = self.queue.pop() else { return Ok(false) };
        self.now = self.now.max(at);
        self.report.steps += 1;
        if self.is_traced {
            eprint_line(&format!("{} {action:?}", self.now));
        }
        self.dispatch(action);
        match self.violation.take() {
            Some(violation) => Err(format!("at {}: {violation}", self.now)),
            None => Ok(true),
        }
    }

    fn dispatch(&mut self, action: Action) {
        if let Some(life) = self.launcher_of(&action) {
            match self.lives[life].process {
                Process::Runs => {}
                Process::Frozen => return self.lives[life].held.push(action),
                Process::Over => return,
            }
        }
        match action {
            Action::Fault(fault) => self.apply_fault(fault),
            Action::Start { slot } => self.start_life(slot),
            Action::Connect { life } => self.connect(life),
            Action::ConnectFails { life, reason } => self.on_connect_failed(life, reason),
            Action::ConnectArrives { conn } => self.on_connect_arrived(conn),
            Action::Opened { conn } => self.on_opened(conn),
            Action::Push { conn, event } => self.on_push(conn, *event),
            Action::StreamEnds { conn, reason } => self.on_stream_ended(conn, reason),
            Action::LinkBroken { conn, is_off } => self.on_link_broken(conn, is_off),
            Action::Message { conn, message } => self.on_message(conn, *message),
            Action::DetailRead { life, message } => self.send(life, *message),
            Action::Acked { conn, ends } => self.on_acked(conn, ends),
            Action::Beat { conn } => self.on_beat(conn),
            Action::BeatArrives { conn, sent } => self.on_beat_arrived(conn, sent),
            Action::BeatAnswered { conn, sent, is_known } => self.on_beat_answered(conn, sent, is_known),
            Action::Unanswered { conn, beats } => self.on_unanswered(conn, beats),
            Action::Question { life, of, asking, round } => self.on_question(life, of, asking, round),
            Action::Answer { life, asking, answer } => self.on_answer(life, asking, answer),
            Action::AskingOver { life, asking } => self.on_asking_over(life, asking),
            Action::GuardFences { life } => self.on_guard_fences(life),
            Action::Local { life, event } => self.tell_node(life, *event),
            Action::NodeTimer { life, generation } => {
                if self.lives[life].timer.0 == generation {
                    self.lives[life].timer.1 = None;
                    self.tell_node(life, NodeEvent::Deadline);
                }
            }
            Action::WorkerDies { life, spawn, local_rank, cause } => {
                self.on_worker_died(life, spawn, local_rank, cause);
            }
            Action::TreeGone { life, spawn } => self.on_tree_gone(life, spawn),
            Action::OrphansGone { life } => {
                self.lives[life].workers = None;
                self.trainers_die(life);
            }
            Action::SaverHears { life, saver, event } => self.saver_hears(life, saver, *event),
            Action::SaverTimer { life, saver, generation } => self.on_saver_timer(life, saver, generation),
            Action::Persisted { life, saver, persist, content, fails } => {
                self.on_persisted(life, saver, *persist, content, fails);
            }
            Action::ManifestWritten { life, saver, dir, manifest, sets_tracker } => {
                self.on_manifest_written(life, saver, dir, *manifest, sets_tracker);
            }
            Action::FetchAsks { life, saver, order } => self.on_fetch_asks(life, saver, *order),
            Action::SlotSent { life, saver, send } => self.on_slot_sent(life, saver, send),
            Action::TrainerTurn { life, spawn, local_rank } => self.on_trainer_turn(life, spawn, local_rank),
            Action::TrainerHears { life, saver, connection, reply, content } => {
                self.on_reply(life, saver, connection, *reply, content);
            }
            Action::Thaw { life } => self.thaw(life),
            Action::Flushed { incarnation } => self.on_flushed(incarnation),
            Action::MasterTimer { incarnation, generation } => self.on_master_timer(incarnation, generation),
            Action::MasterStarts => self.start_master(),
            Action::TopologyRead { incarnation, is_readable } => {
                self.on_topology_read(incarnation, is_readable);
            }
        }
    }

    /// The launcher that must run for this action.
    fn launcher_of(&self, action: &Action) -> Option<LifeId> {
        match action {
            Action::Connect { life }
            | Action::DetailRead { life, .. }
            | Action::ConnectFails { life, .. }
            | Action::Local { life, .. }
            | Action::Question { life, .. }
            | Action::Answer { life, .. }
            | Action::AskingOver { life, .. }
            | Action::NodeTimer { life, .. } => Some(*life),
            Action::Opened { conn }
            | Action::Push { conn, .. }
            | Action::StreamEnds { conn, .. }
            | Action::Acked { conn, .. }
            | Action::BeatAnswered { conn, .. }
            | Action::Unanswered { conn, .. }
            | Action::Beat { conn } => Some(self.conns[*conn].life),
            _ => None,
        }
    }

    /// Schedules an event on a node's own machine.
    pub(crate) fn locally(&mut self, wait: Duration, life: LifeId, event: NodeEvent) {
        self.after(wait, Action::Local { life, event: Box::new(event) });
    }

    pub(crate) fn after(&mut self, wait: Duration, action: Action) {
        self.queue.push(self.now + wait, action);
    }

    /// Whether there are still faults.
    pub(crate) fn is_ill(&self) -> bool {
        self.now < self.plan.heals_at
    }

    /// Draws whether there is a fault.
    pub(crate) fn strikes(&mut self, per_mille: u32) -> bool {
        self.is_ill() && per_mille > 0 && self.prng.chance(per_mille)
    }

    pub(crate) fn fail(&mut self, violation: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(violation());
        }
    }

    pub(crate) fn note(&self, messages: impl FnOnce() -> String) {
        if self.is_traced {
            eprint_line(&format!("{}   {}", self.now, messages()));
        }
    }
}

/// The trace bypasses the test harness' capture, because it is only there on request.
#[allow(clippy::print_stderr)]
fn eprint_line(line: &str) {
    eprintln!("{line}");
}
