//! The master's process: its state, what is durable, and what waits for that.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use rules::{
    Moment, NodeId,
    job::{Effect, Event, Job},
    job_master::{Input, JobMaster, Output},
    pending::Pending,
    push::Push,
    topology::Topology,
    worker_group::Event as NodeEvent,
};

use crate::{
    clock::{Action, ConnId, LifeId},
    journal::Journal,
    node::Life,
    plan::Plan,
    simulation::Simulation,
};

/// The reply to a node when the output of its message is durable.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reply {
    Opened(ConnId),
    Acked { conn: ConnId, ends: bool },
}

/// One output that is being written.
#[derive(Debug)]
struct Commit {
    records: Vec<(Moment, Event)>,
    reply: Option<Reply>,
    effects: Vec<Effect>,
    pending: Option<(Pending, BTreeSet<NodeId>)>,
}

/// The master, up or down.
#[derive(Debug)]
pub(crate) struct Master {
    /// `None` while it is down.
    pub(crate) core: Option<JobMaster>,
    incarnation: u64,
    /// It started at `started` and its clock stood at `base`.
    started: Moment,
    base: Moment,
    /// It is finished, or will never come back.
    is_over: bool,
    pub(crate) journal: Journal,
    /// The job by the durable records.
    pub(crate) shadow: Job,
    last_record: Moment,
    commits: VecDeque<Commit>,
    /// The number of records that are being written.
    writing: usize,
    timer: (u64, Option<Moment>),
    streams: Vec<Option<ConnId>>,
    /// Of `streams`, those that messages go to: once it is durable that they were opened.
    opened: Vec<Option<ConnId>>,
    newest: Vec<Option<ConnId>>,
}

impl Master {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            core: None,
            incarnation: 0,
            started: Moment::START,
            base: Moment::START,
            is_over: false,
            journal: Journal::new(plan.policy.clone()),
            shadow: Job::new(plan.policy.clone()),
            last_record: Moment::START,
            commits: VecDeque::new(),
            writing: 0,
            timer: (0, None),
            streams: Vec::new(),
            opened: Vec::new(),
            newest: Vec::new(),
        }
    }

    fn local(&self, now: Moment) -> Moment {
        self.base + (now - self.started)
    }

    pub(crate) fn subscribe(&mut self, life: LifeId, conn: ConnId) {
        let length = self.streams.len().max(life + 1);
        self.streams.resize(length, None);
        self.opened.resize(length, None);
        self.newest.resize(length, None);
        (self.streams[life], self.newest[life]) = (Some(conn), Some(conn));
    }

    pub(crate) fn stream_of(&self, life: LifeId) -> Option<ConnId> {
        self.streams.get(life).copied().flatten()
    }

    /// What was decided before a stream was opened does not reach it.
    pub(crate) fn opened(&mut self, life: LifeId, conn: ConnId) {
        self.opened[life] = Some(conn);
    }

    /// The stream for messages to this node.
    pub(crate) fn open_stream_of(&self, life: LifeId) -> Option<ConnId> {
        self.stream_of(life).filter(|conn| self.opened[life] == Some(*conn))
    }

    /// Whether no newer stream of this node was seen by this master.
    pub(crate) fn is_newest(&self, life: LifeId, conn: ConnId) -> bool {
        self.newest.get(life).copied().flatten() == Some(conn)
    }

    /// The stream broke; `false` when the node has a newer one.
    pub(crate) fn end_of(&mut self, life: LifeId, conn: ConnId) -> bool {
        if let Some(stream) = self.streams.get_mut(life)
            && *stream == Some(conn)
        {
            *stream = None;
        }
        self.is_newest(life, conn)
    }
}

impl Simulation {
    /// Whether the master still has something to do. One without nodes before a first round waits for as long as it
    /// takes.
    pub(crate) fn is_master_expected(&self) -> bool {
        let idle = |core: &JobMaster| core.job().nodes().next().is_none() && core.deadline().is_none();
        match &self.master.core {
            None => !self.master.is_over,
            Some(core) => !(idle(core) && core.job().verdict().is_none()),
        }
    }

    pub(crate) fn start_master(&mut self) {
        if self.master.core.is_some() || self.master.is_over {
            return;
        }
        let master = &mut self.master;
        master.incarnation += 1;
        self.report.master_starts += 1;
        (master.streams, master.opened, master.newest) = (Vec::new(), Vec::new(), Vec::new());
        master.started = self.now;
        let is_first = self.report.master_starts == 1;
        if !self.plan.has_journal || is_first {
            master.base = Moment::START;
            master.core = Some(JobMaster::new(self.plan.policy.clone(), self.plan.timeout));
            master.shadow = Job::new(self.plan.policy.clone());
            if !is_first {
                self.checks.forget();
            }
            return self.set_master_timer();
        }
        let recovered = master.journal.recover();
        master.base =
            if self.plan.clock_stands_still { recovered.last } else { recovered.last.max(self.now) };
        let is_same = recovered.job == master.shadow;
        let (core, output) = JobMaster::restored(recovered.job, self.plan.timeout, master.base);
        master.core = Some(core);
        if !is_same {
            self.fail(|| "the journal tells another job than the one that was".to_owned());
        }
        self.take(output, None);
    }

    /// `kill -9`, and how long until it is started again; `None`: never.
    pub(crate) fn crash_master(&mut self, down: Option<Duration>) {
        if self.master.core.take().is_none() {
            return;
        }
        // Some records of the batch that was being written may have reached the disk; their effects are not carried
        // out.
        let commits = std::mem::take(&mut self.master.commits);
        self.master.writing = 0;
        self.master.timer = (self.master.timer.0 + 1, None);
        let records: Vec<(Moment, Event)> = commits.into_iter().flat_map(|commit| commit.records).collect();
        let whole = self.prng.index(records.len() + 1);
        if self.plan.has_journal && self.plan.crash_after_records.is_none() {
            for (at, event) in &records[..whole] {
                self.master.journal.append(*at, event);
                self.make_durable(*at, event.clone());
            }
            if let Some((at, event)) = records.get(whole) {
                let bytes = self.prng.index(1 << 20);
                self.master.journal.append_torn(*at, event, bytes);
            }
        }
        for life in 0..self.master.streams.len() {
            if let Some(conn) = self.master.streams[life].take() {
                let wait = self.prng.millis(0, 20);
                self.doom(conn, "reset", wait, None);
            }
        }
        match down {
            Some(down) => self.after(down, Action::MasterStarts),
            None => self.master.is_over = true,
        }
    }

    /// The shadow gets the durable events.
    fn make_durable(&mut self, at: Moment, event: Event) {
        self.report.records += 1;
        self.master.last_record = at;
        // The live one has or will have these effects; here they are only compared.
        let effects = self.master.shadow.handle(at, event.clone());
        self.check_budgets(&event, &effects);
        self.check_answer(&event, &effects);
    }

    pub(crate) fn tell_master(&mut self, input: Input, reply: Option<Reply>) {
        let now = self.master.local(self.now);
        let Some(core) = &mut self.master.core else { return };
        if let Input::Event(Event::Resumed { claim, .. }) = &input {
            self.checks.claimed.insert((claim.round, (claim.master_addr.clone(), claim.master_port)));
        }
        let (is_deadline, is_beat) = (matches!(input, Input::Deadline), matches!(input, Input::Beat { .. }));
        let output = core.handle(now, input);
        if is_deadline && core.deadline().is_some_and(|deadline| deadline <= now) {
            let deadline = core.deadline();
            self.fail(|| format!("the master's deadline {deadline:?} was handled and stays"));
        }
        if is_beat && output == Output::default() {
            return self.set_master_timer();
        }
        self.check_turn();
        self.take(output, reply);
    }

    fn take(&mut self, output: Output, reply: Option<Reply>) {
        let now = self.master.local(self.now);
        let Output { journal, effects, pending } = output;
        let records: Vec<(Moment, Event)> = journal.into_iter().map(|event| (now, event)).collect();
        let commit = Commit { records, reply, effects, pending };
        self.set_master_timer();
        if self.plan.has_journal {
            self.master.commits.push_back(commit);
            return self.write();
        }
        for (at, event) in commit.records.clone() {
            self.make_durable(at, event);
        }
        self.check_shadow();
        self.carry_out(commit);
    }

    fn write(&mut self) {
        if self.master.writing == 0 && !self.master.commits.is_empty() {
            self.master.writing = self.master.commits.len();
            let wait = if self.strikes(10) { self.prng.millis(10, 500) } else { self.prng.millis(0, 3) };
            let incarnation = self.master.incarnation;
            self.after(wait, Action::Flushed { incarnation });
        }
    }

    pub(crate) fn on_flushed(&mut self, incarnation: u64) {
        if self.master.core.is_none() || self.master.incarnation != incarnation {
            return;
        }
        for _ in 0..std::mem::take(&mut self.master.writing) {
            let Some(commit) = self.master.commits.pop_front() else { return };
            for (at, event) in &commit.records {
                self.master.journal.append(*at, event);
                self.make_durable(*at, event.clone());
                if self.plan.crash_after_records == Some(self.report.records) {
                    return self.crash_master(Some(Duration::from_millis(300)));
                }
            }
            self.carry_out(commit);
            if self.master.core.is_none() {
                return;
            }
        }
        if self.master.commits.is_empty() {
            self.check_shadow();
        }
        let records = self.master.journal.ends().len();
        if self.plan.compacts_every.is_some_and(|every| records >= every) {
            self.master.journal.compact(&self.master.shadow, self.master.last_record);
        }
        self.write();
    }

    fn check_shadow(&mut self) {
        let is_due = self.is_thorough || self.report.steps.is_multiple_of(4096);
        if is_due && self.master.core.as_ref().is_some_and(|core| *core.job() != self.master.shadow) {
            let shadow = self.master.shadow.clone();
            let job = self.master.core.as_ref().map(|core| core.job().clone());
            self.fail(|| format!("the records tell {shadow:?}, the job is {job:?}"));
        }
    }

    fn carry_out(&mut self, commit: Commit) {
        match commit.reply {
            Some(Reply::Opened(conn)) => {
                self.master.opened(self.conns[conn].life, conn);
                self.send_opened(conn);
            }
            Some(Reply::Acked { conn, ends }) => self.send_acked(conn, ends),
            None => {}
        }
        for effect in commit.effects {
            self.note(|| format!("master: {effect:?}"));
            self.check_effect(&effect);
            self.carry_out_one(effect);
        }
        if let Some((pending, nodes)) = commit.pending {
            for node in nodes {
                self.push(Life::index_of(&node), NodeEvent::Pushed(Push::Pending(pending.clone())));
            }
        }
    }

    fn carry_out_one(&mut self, effect: Effect) {
        match effect {
            Effect::Push { node, push } => self.push(Life::index_of(&node), NodeEvent::Pushed(push)),
            Effect::Report(report) => self.report.checks.push(*report),
            Effect::Refuse { node, reason, .. } => {
                self.push(
                    Life::index_of(&node),
                    NodeEvent::Pushed(Push::Refused { reason: reason.to_string() }),
                );
            }
            Effect::HangUp { node } => {
                let life = Life::index_of(&node);
                if let Some(conn) = self.master.stream_of(life) {
                    self.master.streams[life] = None;
                    let wait = self.prng.millis(0, 5);
                    self.doom(conn, "given up", wait, Some(Duration::from_millis(1)));
                }
            }
            Effect::ReadTopology => {
                let incarnation = self.master.incarnation;
                let fails = self.strikes(self.plan.rates.topology_fails);
                if !(fails && self.prng.chance(500)) {
                    let wait = self.prng.millis(1, 50);
                    self.after(wait, Action::TopologyRead { incarnation, is_readable: !fails });
                }
            }
            // The simulated jobs are not watched for hangs.
            Effect::Forget { .. }
            | Effect::CollectStacks { .. }
            | Effect::JudgeStacks { .. }
            | Effect::ReportHang(_) => {}
            Effect::Log(log) => self.report.log.push(log.to_string()),
            Effect::Finish { verdict } => {
                self.report.verdict = Some(verdict);
                self.crash_master(None);
            }
        }
    }

    pub(crate) fn on_topology_read(&mut self, incarnation: u64, is_readable: bool) {
        if self.master.incarnation != incarnation {
            return;
        }
        // The file may be edited: other switches, so another order.
        let turned = if self.strikes(300) { self.prng.index(3) } else { 0 };
        let line = |slot: usize| format!("s{} p 10.0.{}.{}", (slot + turned) % 3, slot / 250, slot % 250);
        let lines: Vec<String> = (0..self.plan.slots.len()).map(line).collect();
        let topology = match Topology::parse(&lines.join("\n")) {
            Ok(topology) if is_readable => Ok(topology),
            _ => Err("it is half written".to_owned()),
        };
        self.tell_master(Input::Event(Event::TopologyRead(topology)), None);
    }

    fn set_master_timer(&mut self) {
        let master = &mut self.master;
        let deadline = master.core.as_ref().and_then(JobMaster::deadline);
        // A timer that is too early does no harm, and heartbeats move the deadline all the time.
        if deadline.is_none_or(|deadline| master.timer.1.is_some_and(|set| set <= deadline)) {
            return;
        }
        let Some(deadline) = deadline else { return };
        master.timer = (master.timer.0 + 1, Some(deadline));
        let at = (master.started + (deadline - master.base)).max(self.now);
        let (incarnation, generation) = (master.incarnation, master.timer.0);
        self.queue.push(at, Action::MasterTimer { incarnation, generation });
    }

    pub(crate) fn on_master_timer(&mut self, incarnation: u64, generation: u64) {
        if self.master.incarnation != incarnation || self.master.timer.0 != generation {
            return;
        }
        self.master.timer.1 = None;
        let now = self.master.local(self.now);
        match self.master.core.as_ref().and_then(JobMaster::deadline) {
            Some(deadline) if deadline <= now => self.tell_master(Input::Deadline, None),
            _ => self.set_master_timer(),
        }
    }
}
