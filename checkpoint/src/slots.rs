//! The machine of one saver: which slot a save takes, what goes to disk and when, what a load is given.
//!
//! ```text
//!          begin           commit            its turn            the file is there
//! Empty ---------> Writing ------> Whole/Queued ----> Persisting -----------------> Whole
//!   ^                 | writer dead
//!   +--- not whole -- Examined (its header is read) --- whole ---> Whole
//! ```
//!
//! A slot is memory that the shell owns; this machine knows only its number, its size and its state. A slot is read
//! only after `commit`, or after the death of its writer: both are synchronisation points of the kernel.
//!
//! A slot may also get its bytes from another node ([`fetching`]), and be sent to one ([`sending`]).
//!
//! A step of several shards goes to disk when the job says so ([`crate::message::ToSaver::Persist`]), because each
//! saver would take another one when the disk is slower than the saves, and no step would ever be complete. The only
//! shard of a step goes at once.

mod allocating;
mod api;
mod client;
mod clients;
mod ending;
mod fetching;
mod folders;
mod loading;
mod pausing;
mod persisting;
mod rounds;
mod saving;
mod sending;
mod shard;
mod status;
#[cfg(test)]
mod tests;
mod waiting;
mod wishes;

use std::collections::{BTreeMap, BTreeSet};

pub use api::{
    CheckId, Connection, Effect, Event, Fds, FetchId, FetchOrder, Fetched, FileCheck, FileFault, NoRoom,
    Persist, PersistId, Process, SendId, Sent, Settings, SlotId, Written,
};

pub use pausing::pause_left;
pub use sending::MAX_SENDS;

use crate::{
    Moment,
    message::{Dir, Endpoint, ShardId, ToSaver},
};
use client::Client;
use ending::Ending;
use folders::Known;
use persisting::Running;
use rounds::{Gone, Terms};
use shard::Shard;

/// What a saver holds and waits for.
#[derive(Debug)]
pub struct Saver {
    settings: Settings,
    now: Moment,
    /// The round that runs.
    terms: Option<Terms>,
    clients: BTreeMap<Connection, Client>,
    /// Processes that have connected and live.
    living: BTreeSet<Process>,
    shards: BTreeMap<ShardId, Shard>,
    dirs: BTreeMap<Dir, Known>,
    running: BTreeMap<PersistId, Running>,
    gone: Option<Gone>,
    /// The workers of the last round are dead, and what the next one takes of the memory is not known.
    is_between_rounds: bool,
    ending: Option<Ending>,
    /// What this node has changed in a way that the job waits for.
    must_tell_state: bool,
    bytes_per_second: Option<u64>,
    is_listening: bool,
    /// Replicas that could not be fetched.
    replica_failures: u64,
    /// Orders about fetches of a round that is still to begin here.
    early: Vec<ToSaver>,
    /// Where other nodes reach this saver.
    endpoint: Option<Endpoint>,
    count: u64,
    effects: Vec<Effect>,
}

impl Saver {
    /// A saver without connections.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            now: Moment::default(),
            terms: None,
            clients: BTreeMap::new(),
            living: BTreeSet::new(),
            shards: BTreeMap::new(),
            dirs: BTreeMap::new(),
            running: BTreeMap::new(),
            gone: None,
            is_between_rounds: false,
            ending: None,
            must_tell_state: false,
            bytes_per_second: None,
            is_listening: false,
            replica_failures: 0,
            early: Vec::new(),
            endpoint: None,
            count: 0,
            effects: Vec::new(),
        }
    }

    /// What follows from an event, in the order in which the shell must carry it out.
    #[must_use]
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        self.now = self.now.max(now);
        if self.ending.as_ref().is_some_and(Ending::is_over) {
            return Vec::new();
        }
        match event {
            Event::Connected { connection, process } => self.on_connected(connection, process),
            Event::Received { connection, request } => self.on_received(connection, request),
            Event::Disconnected { connection } => self.on_disconnected(connection),
            Event::ProcessDied { process } => self.on_process_died(process),
            Event::SlotsAllocated { slots, result } => self.on_slots_allocated(&slots, result),
            Event::SlotFilled { slot, result } => self.on_slot_filled(slot, result),
            Event::HeaderRead { slot, result } => self.on_header_read(slot, result),
            Event::Progressed { persist, bytes, of } => self.on_progressed(persist, bytes, of),
            Event::PersistEnded { persist, result } => self.on_persist_ended(persist, result),
            Event::ManifestWritten { dir, step, result } => self.on_manifest_written(&dir, step, result),
            Event::FolderRead { dir, result } => self.on_folder_read(&dir, result),
            Event::FilesChecked { check, result } => self.on_files_checked(check, result),
            Event::Listening { result } => self.on_listening(result),
            Event::Asked { send, shard, step, layout_id, bytes } => {
                self.on_asked(send, &shard, step, (layout_id, bytes));
            }
            Event::SendEnded { send } => self.on_send_ended(send),
            Event::FetchEnded { fetch, result } => self.on_fetch_ended(fetch, result),
            Event::Agent(message) => self.on_agent(message),
            Event::AgentGone => self.on_agent_gone(),
            Event::Deadline => {}
        }
        self.settle();
        std::mem::take(&mut self.effects)
    }

    /// When to call `handle(now, Event::Deadline)` if nothing happens first.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        let pending = self.clients.values().filter_map(|client| client.pending.as_ref()?.until());
        let ending = self.ending.as_ref().filter(|ending| !ending.is_over()).map(Ending::until);
        pending.chain(ending).chain(self.gone.as_ref().map(|gone| gone.until)).min()
    }

    /// Answers what can be answered, and starts what can be started.
    fn settle(&mut self) {
        self.advance_clients();
        self.free_unused();
        self.start_persists();
        self.answer_gone();
        if std::mem::take(&mut self.must_tell_state) {
            self.tell_state();
        }
        self.end_if_done();
    }

    /// The next number of anything that is counted.
    const fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }
}
