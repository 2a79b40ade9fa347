//! Connections: hello, the order of requests, and what becomes of a connection that ends.

use super::{
    Saver,
    api::{Connection, Effect, Fds, Process},
    client::{Client, Identity, Loading, MAX_BACKLOG, Pending},
    folders::MAX_DIRS,
    rounds::Terms,
    shard::{Facts, Shard, SlotState, Writer},
};
use crate::message::{Dir, ErrorCode, Hello, MAX_WAIT_MS, Refusal, Reply, Request, Role, ShardId, VERSION};

/// Connections at most.
const MAX_CONNECTIONS: usize = 1024;

/// Shards of a node at most.
pub(super) const MAX_SHARDS: usize = 256;

/// How long a hello waits for its round, for the death of the writer before it, and for the directory.
const HELLO_MS: u64 = 10_000;

/// How long a load may take: a file of 24 GB is read in less than a minute, one of a file system that hangs never.
pub(super) const LOAD_MS: u64 = 1_800_000;

/// How long a begin waits for a slot.
const BEGIN_MS: u64 = 600_000;

pub(super) type Answer = (Reply, Fds);

pub(super) fn refuse(code: ErrorCode, text: impl AsRef<str>) -> Option<Answer> {
    Some((Reply::Error(Refusal::new(code, text)), Fds::None))
}

fn refuse_folder() -> Option<Answer> {
    let text = format!("this node has checkpoints in {MAX_DIRS} directories, the maximum; use one of them");
    refuse(ErrorCode::TooMany, text)
}

impl Saver {
    pub(super) fn on_connected(&mut self, connection: Connection, process: Process) {
        if self.clients.len() >= MAX_CONNECTIONS {
            let text = format!("the saver has {MAX_CONNECTIONS} connections, the maximum; close one");
            let reply = Reply::Error(Refusal::new(ErrorCode::TooMany, text));
            self.effects.push(Effect::Reply { connection, reply, fds: Fds::None });
            self.effects.push(Effect::Close { connection });
            return;
        }
        self.living.insert(process);
        self.clients.insert(connection, Client::new(process));
    }

    pub(super) fn on_received(&mut self, connection: Connection, request: Result<Request, Refusal>) {
        let Some(client) = self.clients.get_mut(&connection).filter(|client| !client.is_gone) else { return };
        if client.backlog.len() < MAX_BACKLOG {
            client.backlog.push_back(request);
            return;
        }
        let text = format!(
            "{MAX_BACKLOG} requests are already waiting for an answer, the maximum; this connection is closed"
        );
        let reply = Reply::Error(Refusal::new(ErrorCode::TooMany, text));
        self.effects.push(Effect::Reply { connection, reply, fds: Fds::None });
        self.close(connection);
    }

    /// What was sent before the end still counts, a `commit` above all.
    pub(super) fn on_disconnected(&mut self, connection: Connection) {
        if let Some(client) = self.clients.get_mut(&connection) {
            client.is_gone = true;
            let pending = client.pending.take();
            self.drop_unanswered(connection, pending);
        }
    }

    pub(super) fn on_process_died(&mut self, process: Process) {
        self.living.remove(&process);
        let mut to_examine = Vec::new();
        for shard in self.shards.values_mut() {
            if shard.writer.is_some_and(|writer| writer.process == process) {
                shard.writer = None;
            }
            for slot in &mut shard.slots {
                slot.pins.retain(|_, reader| *reader != process);
                match &slot.state {
                    SlotState::Writing(write) if write.process == process => {
                        slot.state = SlotState::Examined(write.clone());
                        to_examine.push(slot.id);
                    }
                    _ => {}
                }
            }
        }
        let read = to_examine.into_iter().map(|slot| Effect::ReadHeader { slot });
        self.effects.extend(read);
        // A child may hold the connection of a dead process open; nothing that it says counts.
        let of_dead = self.clients.iter().filter(|(_, client)| client.process == process);
        let of_dead: Vec<Connection> = of_dead.map(|(connection, _)| *connection).collect();
        for connection in of_dead {
            self.close(connection);
        }
    }

    pub(super) fn close(&mut self, connection: Connection) {
        let Some(client) = self.clients.remove(&connection) else { return };
        if !client.is_gone {
            self.effects.push(Effect::Close { connection });
        }
        self.drop_unanswered(connection, client.pending);
    }

    /// A slot that was to be read, but was never given out, is not pinned any longer. Files are not read for a client
    /// that is gone: those of the next round would be read after them.
    fn drop_unanswered(&mut self, connection: Connection, pending: Option<Pending>) {
        if let Some(Pending::Load { loading: Loading::Files { check, .. }, .. }) = pending {
            self.effects.push(Effect::CancelCheck { check });
            return;
        }
        if let Some(Pending::Load { loading: Loading::Header { slot, .. }, .. }) = pending
            && let Some(slot) = self.shards.values_mut().find_map(|shard| shard.slot_mut(slot))
        {
            slot.pins.remove(&connection);
        }
    }

    pub(super) fn answer(&mut self, connection: Connection, (reply, fds): Answer) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        client.pending = None;
        if !client.is_gone {
            self.effects.push(Effect::Reply { connection, reply, fds });
        }
    }

    /// Carries out requests as far as possible.
    pub(super) fn advance_clients(&mut self) {
        // What one client does can free what another waits for, so until nothing moves. Each turn answers a request,
        // and there are so many at most.
        loop {
            let connections: Vec<Connection> = self.clients.keys().copied().collect();
            let mut moved = false;
            for connection in connections {
                while self.advance_client(connection) {
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Whether a request was answered, or the next one taken up.
    fn advance_client(&mut self, connection: Connection) -> bool {
        let Some(client) = self.clients.get_mut(&connection) else { return false };
        if let Some(pending) = client.pending.take() {
            let (pending, answer) = self.advance(connection, pending);
            let Some(answer) = answer else {
                if let Some(client) = self.clients.get_mut(&connection) {
                    client.pending = pending;
                }
                return false;
            };
            self.answer(connection, answer);
            return true;
        }
        let is_gone = client.is_gone;
        let Some(request) = client.backlog.pop_front() else {
            if is_gone {
                self.clients.remove(&connection);
            }
            return false;
        };
        match request {
            Err(refusal) => {
                let is_last = refusal.code == ErrorCode::TooLong;
                self.answer(connection, (Reply::Error(refusal), Fds::None));
                if is_last {
                    self.close(connection);
                }
            }
            Ok(request) => {
                if let Some(answer) = self.take_up(connection, request) {
                    self.answer(connection, answer);
                }
            }
        }
        true
    }

    /// Begins a request, and returns the answer if it is known at once.
    fn take_up(&mut self, connection: Connection, request: Request) -> Option<Answer> {
        let now = self.now;
        let client = self.clients.get(&connection)?;
        if let Request::Status {} = request {
            return Some((Reply::Status(self.status()), Fds::None));
        }
        if let (Request::Hello(_), Some(_)) = (&request, &client.identity) {
            return refuse(
                ErrorCode::OutOfOrder,
                "this connection has sent `hello` already; open another one for another shard",
            );
        }
        let needs_identity = !matches!(request, Request::Hello(_) | Request::WrittenAlone { .. });
        if client.identity.is_none() && needs_identity {
            return refuse(ErrorCode::OutOfOrder, "the first request of a connection must be `hello`");
        }
        let is_write = matches!(
            request,
            Request::Alloc { .. } | Request::Begin { .. } | Request::Commit { .. } | Request::Abort { .. }
        );
        if is_write && !client.is_writer() {
            let text = "this connection is a reader; send `hello` with the role `writer` to save";
            return refuse(ErrorCode::OutOfOrder, text);
        }
        let pending = match request {
            Request::Status {} => return None,
            Request::Commit { step, slot, wish } => {
                return self.on_commit_request(connection, step, slot, wish);
            }
            Request::Abort { slot } => return self.on_abort(connection, slot),
            Request::LoadedDone { slot } => return self.on_loaded_done(connection, slot),
            // It counts also when its client is gone: the step is on disk.
            Request::WrittenAlone { run_id, dir, step, round, .. } => {
                Pending::WrittenAlone { run_id, dir, step, round, until: now.plus(HELLO_MS) }
            }
            // What follows waits for something, and nobody reads the answer.
            _ if client.is_gone => return None,
            Request::Hello(hello) => {
                Pending::Hello { hello: Box::new(hello), reading: None, until: now.plus(HELLO_MS) }
            }
            Request::Alloc { bytes, layout_id, slots } => Pending::Alloc { bytes, layout_id, slots },
            Request::Begin { step, layout_id, wait } => {
                let until = if wait { now.plus(BEGIN_MS) } else { now };
                Pending::Begin { step, layout_id, until }
            }
            Request::Load { step } => {
                Pending::Load { exactly: step, loading: Loading::Start, until: now.plus(LOAD_MS) }
            }
            Request::Wait { step, timeout_ms } => {
                let follows = step.is_none();
                let step = step.or_else(|| self.newest_wish(connection));
                Pending::Wait { step, follows, until: now.plus(timeout_ms.min(MAX_WAIT_MS)) }
            }
        };
        self.clients.get_mut(&connection)?.pending = Some(pending);
        None
    }

    fn advance(&mut self, connection: Connection, pending: Pending) -> (Option<Pending>, Option<Answer>) {
        match pending {
            Pending::Hello { hello, reading, until } => self.advance_hello(connection, hello, reading, until),
            Pending::Alloc { bytes, layout_id, slots } => {
                let answer = self.advance_alloc(connection, bytes, layout_id, slots);
                (Some(Pending::Alloc { bytes, layout_id, slots }), answer)
            }
            Pending::Begin { step, layout_id, until } => {
                let answer = self.advance_begin(connection, step, layout_id, until);
                (Some(Pending::Begin { step, layout_id, until }), answer)
            }
            Pending::Load { exactly, loading, until } => {
                let (loading, answer) = self.advance_load(connection, exactly, loading, until);
                (Some(Pending::Load { exactly, loading, until }), answer)
            }
            Pending::Wait { step, follows, until } => self.advance_wait(connection, step, follows, until),
            Pending::WrittenAlone { run_id, dir, step, round, until } => {
                let answer = self.advance_written_alone(&run_id, &dir, step, round, self.now >= until);
                (Some(Pending::WrittenAlone { run_id, dir, step, round, until }), answer)
            }
        }
    }

    fn advance_hello(
        &mut self,
        connection: Connection,
        hello: Box<Hello>,
        mut reading: Option<u64>,
        until: crate::Moment,
    ) -> (Option<Pending>, Option<Answer>) {
        let answer = self.hello_answer(connection, &hello, &mut reading, self.now >= until);
        (Some(Pending::Hello { hello, reading, until }), answer)
    }

    /// `None`: the round is not known yet.
    fn advance_written_alone(
        &mut self,
        run_id: &str,
        dir: &Dir,
        step: u64,
        round: Option<u32>,
        is_late: bool,
    ) -> Option<Answer> {
        if let Err(answer) = self.check_round(run_id, round, is_late) {
            return *answer;
        }
        if !self.dirs.contains_key(dir) && !self.has_room_for_folder() {
            return refuse_folder();
        }
        self.on_written_alone(dir, step);
        Some((Reply::Done { queued: false }, Fds::None))
    }

    /// The terms of the round that runs, if it is the one of the client. Otherwise the answer; `None`: not yet.
    fn check_round(
        &self,
        run_id: &str,
        round: Option<u32>,
        is_late: bool,
    ) -> Result<&Terms, Box<Option<Answer>>> {
        use ErrorCode::{Invalid, NotReady, StaleRound};
        let own = &self.settings.run_id;
        if run_id != *own {
            let text = format!(
                "this saver belongs to run `{own}`, not to `{run_id}`; do not change TORCHELASTIC_RUN_ID in \
                 the worker"
            );
            return Err(Box::new(refuse(Invalid, text)));
        }
        let known = self.terms.as_ref().filter(|terms| round.is_none_or(|round| round <= terms.round));
        let Some(terms) = known else {
            let round = round.map_or_else(|| "its round".to_owned(), |round| format!("round {round}"));
            let text = format!("the agent of this node has not announced {round} yet; retry");
            return Err(Box::new(if is_late { refuse(NotReady, text) } else { None }));
        };
        if round.is_some_and(|of| of < terms.round) {
            let text = format!(
                "this worker belongs to a round before the current round {}; it should have exited",
                terms.round
            );
            return Err(Box::new(refuse(StaleRound, text)));
        }
        Ok(terms)
    }

    /// Answers `hello`. `None`: the reply comes later, when the round is known and the directory was read.
    fn hello_answer(
        &mut self,
        connection: Connection,
        hello: &Hello,
        reading: &mut Option<u64>,
        is_late: bool,
    ) -> Option<Answer> {
        use ErrorCode::{Closing, Invalid, TooMany, WriterExists};
        if self.ending.is_some() {
            return refuse(Closing, "the saver is about to exit, because the run is ending");
        }
        let terms = match self.check_round(&hello.run_id, hello.round, is_late) {
            Ok(terms) => terms,
            Err(answer) => return *answer,
        };
        let (round, world, ranks) = (terms.round, terms.world, terms.ranks());
        if hello.world != world || !ranks.contains(&hello.rank) {
            let last = ranks.end.saturating_sub(1);
            let own = if last == ranks.start {
                format!("rank {last}")
            } else {
                format!("ranks {} to {last}", ranks.start)
            };
            let text = format!(
                "rank {} of {} is not on this node, which has {own} of {world}; do not change RANK and \
                 WORLD_SIZE",
                hello.rank, hello.world
            );
            return refuse(Invalid, text);
        }
        if !self.dirs.contains_key(&hello.dir) && !self.has_room_for_folder() {
            return refuse_folder();
        }
        let shard = hello.id();
        let process = self.clients.get(&connection)?.process;
        if hello.role == Role::Writer {
            if !self.shards.contains_key(&shard) && !self.has_room_for_shard(&shard) {
                let text = format!("this node has {MAX_SHARDS} shards, the maximum; use fewer directories");
                return refuse(TooMany, text);
            }
            let writer = self.shards.get(&shard).and_then(|shard| shard.writer);
            if writer.is_some_and(|writer| writer.process != process) {
                let text = format!(
                    "another process, which is still running, is the writer of shard {} of {}; a shard has one writer: \
                     its own rank",
                    hello.shard, hello.dir
                );
                return if is_late { refuse(WriterExists, text) } else { None };
            }
        }
        let wanted = *reading.get_or_insert_with(|| self.read_folder(&hello.dir));
        let folder = self.dirs.get(&hello.dir)?;
        if folder.ended < wanted && !is_late {
            return None;
        }
        if hello.role == Role::Writer {
            self.admit_writer(connection, process, hello);
        }
        let identity = Identity { hello: hello.clone(), shard: shard.clone(), round, is_under_way: false };
        self.clients.get_mut(&connection)?.identity = Some(identity);
        let slots = self.shards.get(&shard).map_or(0, |shard| shard.current().count());
        let reply = Reply::Welcome {
            v: VERSION,
            epoch: self.settings.epoch,
            slots: u32::try_from(slots).unwrap_or(u32::MAX),
            memory_step: self.memory_step(connection).map(|(step, _)| step),
            disk_step: self.disk_step(&shard.dir),
        };
        Some((reply, Fds::None))
    }

    /// Whether one more shard can be known. What no client uses is forgotten first.
    pub(super) fn has_room_for_shard(&mut self, id: &ShardId) -> bool {
        if self.shards.len() >= MAX_SHARDS {
            self.free_abandoned(id, true);
        }
        self.shards.len() < MAX_SHARDS
    }

    fn admit_writer(&mut self, connection: Connection, process: Process, hello: &Hello) {
        let facts = Facts::of(hello);
        let shard = self.shards.entry(hello.id()).or_insert_with(|| Shard::new(facts.clone()));
        if (shard.facts.n_shards, shard.facts.replicated) != (facts.n_shards, facts.replicated) {
            shard.void_another_kind();
        }
        shard.facts = facts;
        (shard.is_leaving, shard.is_replica) = (false, false);
        shard.writer = Some(Writer { process, connection });
        if let (Some(keep), Some(known)) = (hello.keep, self.dirs.get_mut(&hello.dir)) {
            known.keep = Some(keep);
        }
    }
}
