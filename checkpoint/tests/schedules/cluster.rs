//! Two nodes of two ranks each, and the job.

use std::collections::{BTreeMap, VecDeque};

use checkpoint::{
    Moment,
    job::{Effect, JobCheckpoints, Member, Note},
    message::{Dir, FromSaver, Reply, Request, Source, ToSaver, WaitState},
    slots::{Connection, Event, FetchOrder, SendId, SlotId},
};

use crate::{
    disk::Disk,
    node::{Content, Node},
    trace::note,
    worker::{State, Worker},
};

const WORLD: u32 = 4;

/// Connections of workers that tell what they have written have higher numbers than all others.
const FIRST_TOLD: u64 = 1 << 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Each rank has its part of the state.
    Shards,
    /// The first rank of each node saves a copy, and the second one reads it. Nodes may be replaced.
    Copies,
    /// Like `Shards`, with two slots each.
    TwoSlots,
    /// Like `Shards`, with a replica of each on the other node. Nodes may be replaced.
    Replicas,
    /// Like `Copies`, and savers die or have no memory any more: the first rank then writes by itself.
    Alone,
}

impl Kind {
    pub const fn has_shards(self) -> bool {
        matches!(self, Self::Shards | Self::TwoSlots | Self::Replicas)
    }

    const fn has_lost_nodes(self) -> bool {
        matches!(self, Self::Copies | Self::Replicas)
    }

    /// Slots of two shards, and of two replicas with two each.
    const fn slots(self) -> u64 {
        match self {
            Self::Copies | Self::Alone => 3,
            Self::Shards | Self::TwoSlots => 6,
            Self::Replicas => 10,
        }
    }
}

#[derive(Debug)]
pub struct Cluster {
    kind: Kind,
    now: Moment,
    round: u32,
    count: u64,
    nodes: BTreeMap<u64, Node>,
    members: [u64; 2],
    workers: Vec<Worker>,
    job: JobCheckpoints<u64>,
    orders: BTreeMap<u64, VecDeque<ToSaver>>,
    /// The agent passes the round on when its workers are about to start: later orders may be faster.
    rounds: BTreeMap<u64, ToSaver>,
    disk: Disk,
    /// The slot with the newest step of each shard: what no save may take.
    newest: BTreeMap<(u64, u32), SlotId>,
    /// What all ranks of the round have restored, and the oldest step that is good enough.
    restored: Option<u64>,
    bound: u64,
    /// The newest step that all ranks have saved, and of those for the disk, in this round.
    saved: u64,
    wished: Option<u64>,
    /// A write to disk has failed in this round.
    has_failed: bool,
    /// Of each node, what its agent tells a saver that it starts in this round.
    terms: BTreeMap<u64, ToSaver>,
    /// Not all that was saved into memory is there, or will go to disk.
    has_lost_memory: bool,
    /// The newest step of this round that a worker has written by itself, and that a saver has heard of.
    alone: Option<u64>,
    /// Connections for that.
    told_alone: u64,
}

impl Cluster {
    pub fn new(kind: Kind, disk: Disk) -> Self {
        let node = |number| Node::new(number, kind.slots());
        let mut cluster = Self {
            kind,
            now: Moment(0),
            round: 0,
            count: 2,
            nodes: BTreeMap::from([(0, node(0)), (1, node(1))]),
            members: [0, 1],
            workers: Vec::new(),
            job: JobCheckpoints::new(600_000, true),
            orders: BTreeMap::new(),
            rounds: BTreeMap::new(),
            disk,
            newest: BTreeMap::new(),
            restored: None,
            bound: 0,
            saved: 0,
            wished: None,
            has_failed: false,
            terms: BTreeMap::new(),
            has_lost_memory: false,
            alone: None,
            told_alone: 0,
        };
        cluster.begin_round(true);
        cluster
    }

    /// Does one of the things that may happen next.
    pub fn step(&mut self, choice: u16) {
        self.now = self.now.plus(1);
        let (what, which) = (choice % 64, usize::from(choice / 64));
        let node = self.members[which % 2];
        match what {
            0 => self.crash(which),
            63 if self.kind == Kind::Alone => self.lose_saver(which),
            1 => self.end_write(node, which % 8 < 2),
            2..=4 => self.end_write(node, false),
            45..=50 => self.advance_fetch(node, which % 32 == 31),
            5..=12 => self.work(node),
            13..=22 => self.deliver_order(node),
            23..=32 => self.deliver_report(node),
            _ => self.advance(which % 4),
        }
    }

    /// Without further failures everything is finished, and every wait is answered.
    pub fn come_to_rest(&mut self) {
        for _ in 0..300 {
            for node in self.members {
                self.work(node);
                self.end_write(node, false);
                self.deliver_order(node);
                self.deliver_report(node);
                self.advance_fetch(node, false);
            }
            let target = self.workers.iter().map(Worker::step).max().unwrap_or(0);
            for rank in 0..4 {
                // What some ranks have begun all of them finish.
                let worker = &self.workers[rank];
                if worker.state != State::Trains || worker.last.is_some_and(|last| last < target) {
                    self.advance(rank);
                }
            }
        }
        for node in self.members {
            let node = &self.nodes[&node];
            assert!(node.writes.is_empty() && node.work.is_empty() && node.told.is_empty(), "{node:?}");
            assert!(node.fetches.is_empty() && node.sends.is_empty(), "{node:?}");
        }
        assert!(
            self.workers.iter().all(|worker| worker.state == State::Trains),
            "{:?} {:?} {:?} {:?}",
            self.workers,
            self.nodes,
            self.orders,
            self.job
        );
        assert_eq!(self.job.under_way().count(), 0, "{:?}", self.job);
        // The last step that all have saved for the disk counts, or a newer one.
        // The tracker may name an older one whose manifest another node has written meanwhile; the job's word comes first.
        let committed = self.job.committed(&Dir::try_from("/ckpt").unwrap());
        assert!(committed >= self.alone, "{:?} {:?} {:?}", self.alone, self.disk, self.job);
        let is_lost = self.has_failed || self.has_lost_memory;
        if let Some(wished) = self.wished.filter(|_| !is_lost) {
            assert!(self.disk.step() >= Some(wished), "{wished} {:?} {:?}", self.disk, self.job);
        }
        for rank in 0..4 {
            if self.workers[rank].is_alone {
                continue;
            }
            let (state, error) = self.wait(rank);
            assert!(
                is_lost || state == WaitState::OnDisk,
                "rank {rank} {state:?} {error:?} {:?}",
                self.nodes[&self.members[rank / 2]].saver
            );
        }
    }

    fn wait(&mut self, rank: usize) -> (WaitState, Option<String>) {
        let (node, connection) = (self.members[rank / 2], self.workers[rank].connection);
        let request = Request::Wait { step: None, timeout_ms: 1000 };
        let shell = self.nodes.get_mut(&node).unwrap();
        shell.handle(self.now, Event::Received { connection, request: Ok(request) }, &mut self.disk);
        self.now = self.now.plus(1000);
        shell.handle(self.now, Event::Deadline, &mut self.disk);
        match shell.replies.pop_back() {
            Some((to, Reply::Waited { state, error, .. })) if to == connection => (state, error),
            other => panic!("{other:?}"),
        }
    }

    fn handle(&mut self, node: u64, event: Event) {
        self.nodes.get_mut(&node).unwrap().handle(self.now, event, &mut self.disk);
        self.read_replies(node);
    }

    fn work(&mut self, node: u64) {
        self.nodes.get_mut(&node).unwrap().do_work(self.now, &mut self.disk);
        self.read_replies(node);
    }

    fn end_write(&mut self, node: u64, fails: bool) {
        let shell = self.nodes.get_mut(&node).unwrap();
        self.has_failed |= fails && !shell.writes.is_empty();
        shell.end_write(self.now, &mut self.disk, fails);
        self.read_replies(node);
    }

    /// Lets the oldest fetch of a node do what comes next: ask the other node, or get its bytes.
    fn advance_fetch(&mut self, node: u64, breaks: bool) {
        let Some((fetch, fetching)) = self.nodes[&node].fetches.first_key_value() else { return };
        let (fetch, order, send) = (*fetch, fetching.order.clone(), fetching.send);
        let from = Node::number_of(&order.from);
        let now = self.now;
        let Some(send) = send else {
            self.count += 1;
            let send = SendId(self.count);
            self.nodes.get_mut(&node).unwrap().fetches.get_mut(&fetch).unwrap().send = Some(send);
            if self.nodes.contains_key(&from) {
                let FetchOrder { shard, step, layout_id, bytes, .. } = order;
                self.handle(from, Event::Asked { send, shard, step, layout_id, bytes });
            }
            return;
        };
        let sending = self.nodes.get_mut(&from).and_then(|source| source.sends.remove(&send));
        let sent = match sending {
            None => Err("it is not there".to_owned()),
            Some(sending) => {
                let source = &self.nodes[&from];
                let content = source.slots.get(&sending.slot).copied();
                // What was overwritten is never taken for the step.
                if !sending.is_cancelled && content.is_some() {
                    assert_eq!(content, Some(Content::Whole(sending.sent.step)), "{source:?}");
                }
                self.handle(from, Event::SendEnded { send });
                let is_whole = !sending.is_cancelled && !breaks;
                is_whole.then_some(sending.sent).ok_or_else(|| "the connection ended".to_owned())
            }
        };
        note(format!("node {node} has fetched {fetch:?} from node {from}: {sent:?}"));
        let shell = self.nodes.get_mut(&node).unwrap();
        shell.fetched(now, fetch, sent, &mut self.disk);
        self.read_replies(node);
    }

    /// The connections of a lost node break.
    fn end_orphaned_sends(&mut self) {
        let wanted: Vec<SendId> =
            self.nodes.values().flat_map(|node| node.fetches.values()).filter_map(|it| it.send).collect();
        for node in self.members {
            let sends = &mut self.nodes.get_mut(&node).unwrap().sends;
            let orphaned: Vec<SendId> = sends.keys().filter(|send| !wanted.contains(send)).copied().collect();
            sends.retain(|send, _| wanted.contains(send));
            orphaned.into_iter().for_each(|send| self.handle(node, Event::SendEnded { send }));
        }
    }

    fn deliver_order(&mut self, node: u64) {
        let next = self.orders.entry(node).or_default().pop_front();
        if let Some(message) = next.or_else(|| self.rounds.remove(&node)) {
            note(format!("to node {node}: {message:?}"));
            self.handle(node, Event::Agent(message));
        }
    }

    fn deliver_report(&mut self, node: u64) {
        let Some(message) = self.nodes.get_mut(&node).unwrap().told.pop_front() else { return };
        let now = self.now;
        note(format!("from node {node}: {message:?}"));
        let effects = match message {
            FromSaver::State { shards, .. } => self.job.on_state(now, &node, shards),
            FromSaver::Persisted { dir, step, saved_in, given_up, shard } => {
                self.job.on_persisted(now, &node, &dir, step, (saved_in, given_up), *shard)
            }
            FromSaver::Committed { dir, step } => self.job.on_committed(now, &node, &dir, step),
            FromSaver::Failed { dir, step, shard, saved_in, reason } => {
                self.job.on_failed(now, &node, &dir, step, shard, saved_in, &reason)
            }
            FromSaver::FetchFailed { dir, step, shard, reason } => {
                self.job.on_fetch_failed(now, &node, &dir, step, shard, &reason)
            }
            FromSaver::WrittenAlone { dir, step, round } => self.job.on_written_alone(now, &dir, step, round),
            FromSaver::Progress(_) | FromSaver::Log { .. } => Vec::new(),
            FromSaver::Finished {} => panic!("nothing has ended"),
        };
        self.order(effects);
    }

    fn order(&mut self, effects: Vec<Effect<u64>>) {
        for effect in effects {
            match effect {
                Effect::Send { node, order } => self.orders.entry(node).or_default().push_back(order.into()),
                // What all were to restore is given up, on disk too.
                Effect::Note(Note::NotFetched { .. }) => self.has_failed = true,
                Effect::Note(Note::Committed { .. }) => assert!(self.disk.step().is_some()),
                Effect::Note(_) => {}
            }
        }
    }

    /// Lets a worker do the next thing that its script has.
    fn advance(&mut self, rank: usize) {
        let (kind, node) = (self.kind, self.members[rank / 2]);
        let worker = &self.workers[rank];
        let (connection, process, shard) = (worker.connection, worker.process, worker.shard(kind));
        if worker.is_waiting {
            return;
        }
        match worker.state {
            State::Fresh => self.handle(node, Event::Connected { connection, process }),
            // A step of training takes all ranks.
            State::Trains => {
                let last = worker.last;
                let is_behind = |other: &Worker| other.last.is_none() || other.is_writer && other.last < last;
                if self.workers.iter().any(is_behind) {
                    return;
                }
            }
            State::Begun(slot) => {
                self.fill(rank, slot, Content::Half);
                self.workers[rank].state = State::Half(slot);
            }
            State::Half(slot) => {
                let step = worker.next_step();
                self.fill(rank, slot, Content::Whole(step));
                self.workers[rank].state = State::Written(slot);
                return;
            }
            State::Written(slot) => {
                self.nodes.get_mut(&node).unwrap().writers.remove(&slot);
                self.newest.insert((node, shard), slot);
            }
            State::Welcome | State::Allocated | State::Loaded { .. } | State::WrittenAlone => {}
        }
        if self.workers[rank].state == State::Trains && self.workers[rank].is_alone {
            self.save_alone(rank);
            return;
        }
        let Some(request) = self.workers[rank].request(kind, WORLD, self.round) else { return };
        let is_begin = matches!(request, Request::Begin { .. });
        self.workers[rank].is_waiting = true;
        self.handle(node, Event::Received { connection, request: Ok(request) });
        if is_begin && kind != Kind::TwoSlots {
            // Two rounds may have given up a fetch each. Both end at once, but after the order to.
            let is_due = self.nodes[&node].fetches.values().any(|fetching| fetching.is_cancelled);
            assert!(!self.workers[rank].is_waiting || is_due, "a save waits {:?}", self.nodes[&node].saver);
        }
        self.note_saved();
    }

    /// The first rank writes every second step, and tells a saver by another connection.
    fn save_alone(&mut self, rank: usize) {
        self.told_alone += 1;
        let (node, connection) = (self.members[rank / 2], Connection(FIRST_TOLD + self.told_alone));
        let worker = &mut self.workers[rank];
        let step = worker.next_step();
        if !worker.is_writer {
            return;
        }
        if rank != 0 || !step.is_multiple_of(2) {
            worker.last = Some(step);
            return self.note_saved();
        }
        (worker.connection, worker.state, worker.is_waiting) = (connection, State::WrittenAlone, true);
        let process = worker.process;
        let request = worker.request(self.kind, WORLD, self.round).unwrap();
        self.disk.write_alone(step);
        self.handle(node, Event::Connected { connection, process });
        self.handle(node, Event::Received { connection, request: Ok(request) });
        assert!(!self.workers[rank].is_waiting, "{:?}", self.nodes[&node].saver);
        self.alone = Some(step);
        self.note_saved();
    }

    /// The saver of a node dies, and another one is started; or it has no memory for what its worker has now.
    fn lose_saver(&mut self, which: usize) {
        let (place, dies) = (which % 2, (which / 2).is_multiple_of(2));
        let node = self.members[place];
        let ranks = place * 2..place * 2 + 2;
        let is_loading = |worker: &Worker| worker.last.is_none();
        if self.workers[ranks.clone()].iter().any(is_loading) {
            // Such a worker fails. The others have more than one way to go on.
            return self.crash(which);
        }
        note(format!("node {node} loses its saver: {dies}"));
        for rank in ranks {
            let worker = &mut self.workers[rank];
            let is_in_copy = !matches!(worker.state, State::Trains | State::WrittenAlone);
            if !dies && (is_in_copy || worker.is_waiting || !worker.is_writer) {
                continue;
            }
            (worker.is_alone, worker.is_waiting, worker.state) = (true, false, State::Trains);
        }
        self.has_lost_memory = true;
        if !dies {
            return;
        }
        while !self.nodes[&node].told.is_empty() {
            self.deliver_report(node);
        }
        self.nodes.insert(node, Node::new(node, self.kind.slots()));
        self.end_orphaned_sends();
        self.newest.retain(|(of, _), _| *of != node);
        let now = self.now;
        let effects = self.job.on_saver_gone(now, &node);
        self.order(effects);
        let round = self.terms[&node].clone();
        self.handle(node, Event::Agent(round));
        let effects = self.job.repeat(&node);
        self.order(effects);
    }

    fn note_saved(&mut self) {
        let writers = self.workers.iter().filter(|worker| worker.is_writer);
        let all = writers.map(|worker| worker.last).min().flatten();
        if let Some(step) = all.filter(|step| *step > self.saved) {
            self.saved = step;
            if step.is_multiple_of(2) && Some(step) > self.restored {
                self.wished = Some(step);
            }
        }
    }

    fn fill(&mut self, rank: usize, slot: SlotId, content: Content) {
        let (node, worker) = (self.members[rank / 2], &self.workers[rank]);
        let shell = self.nodes.get_mut(&node).unwrap();
        assert_eq!(shell.writers.get(&slot), Some(&worker.process));
        shell.slots.insert(slot, content);
        shell.shards.insert(slot, worker.shard(self.kind));
    }

    fn read_replies(&mut self, node: u64) {
        while let Some((connection, reply)) = self.nodes.get_mut(&node).unwrap().replies.pop_front() {
            if let Some(rank) = self.workers.iter().position(|worker| worker.connection == connection) {
                self.on_reply(node, rank, &reply);
            }
        }
    }

    fn on_reply(&mut self, node: u64, rank: usize, reply: &Reply) {
        let worker = &mut self.workers[rank];
        if let Reply::Begun { slot, .. } = reply {
            let shell = self.nodes.get_mut(&node).unwrap();
            let slot = SlotId(*slot);
            assert!(
                shell.writes.values().all(|write| write.slot != slot),
                "a slot is taken that goes to disk"
            );
            let newest = self.newest.get(&(node, worker.shard(self.kind)));
            assert_ne!(newest, Some(&slot), "the newest step is overwritten");
            assert_eq!(shell.writers.insert(slot, worker.process), None, "a slot has two writers");
        }
        if let Reply::Loaded { source, step, .. } = reply {
            assert_eq!(*source == Source::None, step.is_none());
        }
        let read = worker.state;
        note(format!("node {node} to rank {rank}: {reply:?}"));
        let Some(step) = worker.on_reply(reply) else { return };
        if let State::Loaded { slot, .. } = read {
            self.newest.insert((node, worker.shard(self.kind)), slot);
        }
        assert!(
            step >= self.bound,
            "step {step} is restored, but {} was saved by all {:?}",
            self.bound,
            self.disk
        );
        assert!(
            self.restored.is_none_or(|restored| restored == step),
            "ranks restore {step} and {:?}",
            self.restored
        );
        if self.restored.is_none() {
            self.restored = Some(step);
            self.saved = step;
        }
    }

    /// A worker dies, and the others with it, each wherever it is. With copies a node may be lost too.
    fn crash(&mut self, which: usize) {
        let lost =
            (self.kind.has_lost_nodes() && which.is_multiple_of(4)).then_some(self.members[which / 4 % 2]);
        // Ranks that had not restored anything yet are as good as what the round before had.
        self.bound = if self.restored.is_some() { self.saved } else { self.bound };
        if self.has_lost_memory {
            let on_disk = self.disk.step().unwrap_or(0).min(self.bound);
            self.bound = self.alone.map_or(on_disk, |alone| alone.max(on_disk));
        }
        if lost.is_some() {
            // What the other node still has must go to disk, which may fail.
            self.bound = self.disk.step().unwrap_or(0).min(self.bound);
        }
        note(format!("crash; lost: {lost:?}"));
        self.job.end_round();
        let now = self.now;
        for node in self.members {
            // An agent whose workers have not started yet will not start them, so it does not pass the round on.
            self.orders.entry(node).or_default().retain(|order| !matches!(order, ToSaver::Round { .. }));
            if let Some(round) = self.rounds.remove(&node) {
                while !self.orders.entry(node).or_default().is_empty() {
                    self.deliver_order(node);
                }
                self.handle(node, Event::Agent(round));
            }
            if lost == Some(node) {
                self.nodes.remove(&node);
                self.orders.remove(&node);
                let effects = self.job.on_gone(now, &node);
                self.order(effects);
            } else {
                self.end_workers(node, which.is_multiple_of(2));
            }
        }
        if let Some(lost) = lost {
            self.count += 1;
            self.nodes.insert(self.count, Node::new(self.count, self.kind.slots()));
            let place = usize::from(self.members[1] == lost);
            self.members[place] = self.count;
            self.end_orphaned_sends();
        }
        self.begin_round(which.is_multiple_of(3));
    }

    /// All workers of a node die, and the agent is told what is in memory.
    fn end_workers(&mut self, node: u64, agent_is_first: bool) {
        let gone = Event::Agent(ToSaver::WorkersGone { round: self.round });
        let first = if self.members[0] == node { 0 } else { 2 };
        if agent_is_first {
            self.handle(node, gone.clone());
        }
        for rank in first..first + 2 {
            let (connection, process) = (self.workers[rank].connection, self.workers[rank].process);
            self.nodes.get_mut(&node).unwrap().writers.retain(|_, writer| *writer != process);
            self.handle(node, Event::Disconnected { connection });
            self.handle(node, Event::ProcessDied { process });
        }
        if !agent_is_first {
            self.handle(node, gone);
        }
        while !self.nodes[&node].work.is_empty() || !self.nodes[&node].told.is_empty() {
            self.work(node);
            self.deliver_report(node);
        }
    }

    fn begin_round(&mut self, is_in_order: bool) {
        let is_first = self.workers.is_empty();
        self.round += u32::from(!is_first);
        let member = |(index, node): (usize, &u64)| Member {
            node: *node,
            first_rank: u32::try_from(index).unwrap() * 2,
            local_world_size: 2,
            address: "host".to_owned(),
            is_void: false,
        };
        let members: Vec<Member<u64>> = self.members.iter().enumerate().map(member).collect();
        let (restore, effects) = self.job.begin_round(self.now, self.round, WORLD, members.clone());
        note(format!("round {} of {:?}: {restore:?}, {effects:?}", self.round, self.members));
        self.order(effects);
        for Member { node, first_rank, local_world_size, .. } in members {
            let round = ToSaver::Round {
                round: self.round,
                world: WORLD,
                first_rank,
                local_world_size,
                restore: restore.clone(),
                memory_is_void: false,
            };
            self.terms.insert(node, round.clone());
            if is_in_order {
                self.orders.entry(node).or_default().push_back(round);
            } else {
                self.rounds.insert(node, round);
            }
        }
        self.count += 10;
        let numbers = (0..WORLD).map(|rank| (rank, self.count + u64::from(rank)));
        self.workers = numbers.map(|(rank, number)| Worker::new(self.kind, rank, number)).collect();
        self.newest.clear();
        (self.restored, self.wished, self.has_failed, self.saved) = (None, None, false, 0);
        (self.has_lost_memory, self.alone) = (false, None);
    }
}
