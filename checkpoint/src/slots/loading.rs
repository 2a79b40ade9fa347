//! Loads: from memory when the round says so, else from disk, after a check of what is there.

use std::collections::VecDeque;

use super::{
    Saver,
    api::{CheckId, Connection, Effect, Fds, FileFault, SlotId},
    client::{Client, Loading, Passed, Pending},
    clients::{Answer, LOAD_MS, refuse},
    shard::Slot,
};
use crate::{
    Moment,
    manifest::{Candidate, Folder, Part, candidates},
    message::{Dir, ErrorCode, Reply, RestorePoint, RestoreSource, ShardId, Source, cut},
};

/// What a load does next.
type Next = (Loading, Option<Answer>);

impl Saver {
    /// What a load of this client would take from memory: step and slot. What all ranks of the round restore; later on
    /// what was saved last, since a client that has loaded or saved knows that all ranks are as far.
    pub(super) fn memory_step(&self, connection: Connection) -> Option<(u64, SlotId)> {
        let identity = self.clients.get(&connection)?.identity.as_ref()?;
        let of_point = || {
            let point = self.restore_point(&identity.shard.dir);
            let step = point.filter(|point| point.source == RestoreSource::Memory)?.step;
            let slot = self.shards.get(&identity.shard)?.of_step(step)?;
            slot.held().filter(|held| !held.is_stale).map(|held| (held.step, slot.id))
        };
        self.saved_since(connection).or_else(of_point)
    }

    /// The newest step that was saved in this round, for a client that is under way.
    fn saved_since(&self, connection: Connection) -> Option<(u64, SlotId)> {
        let identity = self.clients.get(&connection)?.identity.as_ref().filter(|it| it.is_under_way)?;
        let newest = self.shards.get(&identity.shard)?.newest()?;
        newest.held().filter(|held| held.saved_in == identity.round).map(|held| (held.step, newest.id))
    }

    pub(super) fn restore_point(&self, dir: &Dir) -> Option<&RestorePoint> {
        self.terms.as_ref()?.restore.get(dir)
    }

    pub(super) fn advance_load(
        &mut self,
        connection: Connection,
        exactly: Option<u64>,
        loading: Loading,
        until: Moment,
    ) -> Next {
        let Some(identity) = self.clients.get(&connection).and_then(|client| client.identity.as_ref()) else {
            return (loading, None);
        };
        let dir = identity.shard.dir.clone();
        if self.now >= until {
            let text =
                format!("loading from {dir} took more than {} s; check its file system", LOAD_MS / 1000);
            return (loading, refuse(ErrorCode::NotReady, text));
        }
        match loading {
            Loading::Start => self.start_load(connection, &dir, exactly),
            Loading::Fate { pending } => self.await_fate(connection, &dir, pending),
            Loading::Folder { reading, exactly, at_most, reason } => {
                let Some(known) = self.dirs.get(&dir).filter(|known| known.ended >= reading) else {
                    return (Loading::Folder { reading, exactly, at_most, reason }, None);
                };
                match (&known.error, known.folder.clone()) {
                    (None, folder) => {
                        let folder = folder.unwrap_or_default();
                        self.offer(connection, &folder, exactly, at_most, reason)
                    }
                    (Some(error), _) => {
                        let text = format!("the checkpoint directory {dir} cannot be read: {error}");
                        (Loading::Start, refuse(ErrorCode::NothingLoads, text))
                    }
                }
            }
            Loading::Header { .. } | Loading::Files { .. } => (loading, None),
        }
    }

    fn start_load(&mut self, connection: Connection, dir: &Dir, exactly: Option<u64>) -> Next {
        let has_begun = self.saved_since(connection).is_some();
        let point = self.restore_point(dir);
        if exactly.is_none() && !has_begun && point.is_some_and(|point| point.fetched.is_some()) {
            // Until the job says whether all nodes have it.
            return (Loading::Start, None);
        }
        match point.and_then(|point| point.pending) {
            Some(pending) if exactly.is_none() && !has_begun => self.await_fate(connection, dir, pending),
            _ => self.load_now(connection, dir, exactly),
        }
    }

    fn load_now(&mut self, connection: Connection, dir: &Dir, exactly: Option<u64>) -> Next {
        let found = self.memory_step(connection).filter(|(step, _)| exactly.is_none_or(|it| it == *step));
        if let Some((step, slot)) = found {
            let process = self.clients.get(&connection).map(|client| client.process);
            let slot = self.shards.values_mut().find_map(|shard| shard.slot_mut(slot));
            if let (Some(slot), Some(process)) = (slot, process) {
                slot.pins.insert(connection, process);
                if !std::mem::replace(&mut slot.is_checked, true) {
                    self.effects.push(Effect::ReadHeader { slot: slot.id });
                }
                let reason = format!("step {step} is complete in memory");
                return (Loading::Header { slot: slot.id, step, reason }, None);
            }
        }
        if let Some(step) = exactly {
            let reason = format!("step {step} was requested");
            return self.look_on_disk(dir, Some(step), None, reason);
        }
        match self.restore_point(dir).cloned() {
            Some(RestorePoint { source: RestoreSource::Memory, step, .. }) => {
                let reason =
                    format!("all ranks restore step {step}, which is not in the memory of this node");
                self.look_on_disk(dir, Some(step), None, reason)
            }
            Some(RestorePoint { source: RestoreSource::Disk, step, .. }) => {
                let reason =
                    format!("no step is in the memory of all nodes; step {step} is the newest on disk");
                self.look_on_disk(dir, None, Some(step), reason)
            }
            None => self.look_on_disk(dir, None, None, "no step is in the memory of all nodes".to_owned()),
        }
    }

    /// All ranks take a step that is being written, or none does.
    fn await_fate(&mut self, connection: Connection, dir: &Dir, pending: u64) -> Next {
        let given_up = self.restore_point(dir).map_or(0, |point| point.given_up);
        match self.dirs.get(dir).and_then(|known| known.fate_of_pending(pending, given_up)) {
            None => (Loading::Fate { pending }, None),
            Some(true) => {
                let reason = format!("step {pending} was written to disk after the workers had ended");
                self.look_on_disk(dir, None, Some(pending), reason)
            }
            Some(false) => self.load_without(connection, dir, pending),
        }
    }

    /// Loads the newest step before one that could not be written. All ranks were told of that failure after they
    /// were told of older steps that count.
    fn load_without(&mut self, connection: Connection, dir: &Dir, failed: u64) -> Next {
        let point = self.restore_point(dir).filter(|point| point.source == RestoreSource::Disk);
        let Some(step) = point.map(|point| point.step) else { return self.load_now(connection, dir, None) };
        let newest = self.dirs.get(dir).and_then(|known| known.newest_before(failed)).unwrap_or(0).max(step);
        let reason = format!("step {failed} could not be written to disk; step {newest} is the newest there");
        self.look_on_disk(dir, None, Some(newest), reason)
    }

    fn look_on_disk(
        &mut self,
        dir: &Dir,
        exactly: Option<u64>,
        at_most: Option<u64>,
        reason: String,
    ) -> Next {
        let reading = self.read_folder(dir);
        (Loading::Folder { reading, exactly, at_most, reason }, None)
    }

    /// Checks what the directory has, best first.
    fn offer(
        &mut self,
        connection: Connection,
        folder: &Folder,
        exactly: Option<u64>,
        at_most: Option<u64>,
        reason: String,
    ) -> Next {
        let Some(identity) = self.clients.get(&connection).and_then(|client| client.identity.as_ref()) else {
            return (Loading::Start, None);
        };
        let (dir, hello) = (identity.shard.dir.clone(), &identity.hello);
        if folder.is_empty() && exactly.is_none() {
            let reason = format!("{dir} has no checkpoint");
            let (step, slot, bytes, path) = (None, None, None, None);
            let reply =
                Reply::Loaded { source: Source::None, step, slot, bytes, path, reason, named: at_most };
            self.under_way(connection);
            return (Loading::Start, Some((reply, Fds::None)));
        }
        let part = Part {
            rank: hello.rank,
            world: hello.world,
            shard: hello.shard,
            n_shards: hello.n_shards,
            format: hello.format,
        };
        let (found, texts) = candidates(&dir, folder, part, exactly, at_most);
        for why in &texts {
            self.warn(format!("{dir}: {why}"));
        }
        // Of one that all nodes can read, all find the same.
        let is_there = |step: &u64| {
            folder.manifests.contains_key(step)
                || matches!(folder.unusable.get(step), Some(FileFault::Differs(_)))
                || found.first().is_some_and(|first| first.step == *step)
        };
        let is_of_this_node = at_most.is_some_and(|step| !is_there(&step));
        let passed = Passed { texts, named: at_most, is_of_this_node };
        self.check_next(&dir, found.into(), passed, reason)
    }

    fn check_next(&mut self, dir: &Dir, left: VecDeque<Candidate>, passed: Passed, reason: String) -> Next {
        let Some(files) = left.front().map(|candidate| candidate.files.clone()) else {
            let why = if passed.texts.is_empty() {
                "the directory has no step on disk".to_owned()
            } else {
                passed.texts.join("; ")
            };
            let text = format!(
                "no checkpoint in {dir} can be loaded: {why} ({reason}). Training does not start from scratch: \
                 restore the files, or use another directory"
            );
            return (Loading::Start, refuse(ErrorCode::NothingLoads, text));
        };
        let check = CheckId(self.next());
        self.effects.push(Effect::CheckFiles { check, files });
        (Loading::Files { check, left, passed, reason }, None)
    }

    pub(super) fn on_files_checked(&mut self, id: CheckId, result: Result<(), FileFault>) {
        let is_it = |client: &Client| match &client.pending {
            Some(Pending::Load { loading: Loading::Files { check, .. }, .. }) => *check == id,
            _ => false,
        };
        let Some((connection, client)) = self.clients.iter_mut().find(|(_, client)| is_it(client)) else {
            return;
        };
        let connection = *connection;
        let Some(dir) = client.identity.as_ref().map(|identity| identity.shard.dir.clone()) else { return };
        let Some(Pending::Load { exactly, loading, until }) = client.pending.take() else { return };
        let Loading::Files { mut left, mut passed, reason, .. } = loading else { return };
        let Some(candidate) = left.pop_front() else { return };
        let (loading, answer) = match result {
            Ok(()) => {
                let reason = match passed.texts.is_empty() {
                    true => reason,
                    false => cut(&format!("{reason}; {}", passed.texts.join("; "))),
                };
                let named = passed.named.filter(|_| passed.is_of_this_node);
                let (step, path) = (Some(candidate.step), Some(candidate.path));
                let (source, slot, bytes) = (Source::Disk, None, None);
                let reply = Reply::Loaded { source, step, slot, bytes, path, reason, named };
                self.under_way(connection);
                (Loading::Start, Some((reply, Fds::None)))
            }
            Err(fault) => {
                let is_of_this_node = matches!(fault, FileFault::Unreadable(_));
                let why = cut(&format!("step {} cannot be loaded: {fault}", candidate.step));
                let next = if left.is_empty() { "" } else { "; trying the next older step" };
                self.warn(format!("{dir}: {why}{next}"));
                passed.texts.push(why);
                passed.is_of_this_node |= is_of_this_node;
                self.check_next(&dir, left, passed, reason)
            }
        };
        match answer {
            Some(answer) => self.answer(connection, answer),
            None => {
                if let Some(client) = self.clients.get_mut(&connection) {
                    client.pending = Some(Pending::Load { exactly, loading, until });
                }
            }
        }
    }

    /// The header of a slot was read for all loads that wait for it.
    pub(super) fn on_load_checked(&mut self, id: SlotId, result: &Result<(), String>) {
        let waits = |client: &Client| match &client.pending {
            Some(Pending::Load { loading: Loading::Header { slot, .. }, .. }) => *slot == id,
            _ => false,
        };
        let waiting: Vec<Connection> = self
            .clients
            .iter()
            .filter(|(_, client)| waits(client))
            .map(|(connection, _)| *connection)
            .collect();
        let slot = self.shards.values().find_map(|shard| shard.slot(id));
        let bytes = slot.map(|slot| slot.layout.bytes);
        let is_fetched = slot.and_then(Slot::held).is_some_and(|held| held.is_fetched);
        let source = if is_fetched { Source::Replica } else { Source::Memory };
        if let Err(error) = result {
            let found = self.shards.iter_mut().find_map(|(at, shard)| Some((at, shard.slot_mut(id)?)));
            if let Some((ShardId { dir, shard }, slot)) = found {
                slot.pins.retain(|connection, _| !waiting.contains(connection));
                let next = if waiting.is_empty() { "" } else { "; looking for its step on disk" };
                let text = format!("{dir}: shard {shard} in memory cannot be used: {error}{next}");
                self.warn(text);
            }
        }
        for connection in waiting {
            let Some(client) = self.clients.get_mut(&connection) else { continue };
            let Some(Pending::Load { exactly, loading, until }) = client.pending.take() else { continue };
            let Loading::Header { step, mut reason, .. } = loading else { continue };
            match result {
                Ok(()) => {
                    if is_fetched {
                        reason.push_str("; it was fetched from the memory of another node");
                    }
                    let (step, slot) = (Some(step), Some(id.0));
                    let reply = Reply::Loaded { source, step, slot, bytes, path: None, reason, named: None };
                    self.under_way(connection);
                    self.answer(connection, (reply, Fds::ReadOnly(id)));
                }
                Err(error) => {
                    // Other ranks have this step: no other one will do.
                    let Some(identity) = client.identity.as_ref() else { continue };
                    let dir = identity.shard.dir.clone();
                    let reason = format!("step {step} in memory cannot be used: {error}");
                    let (loading, _) = self.look_on_disk(&dir, Some(step), None, reason);
                    if let Some(client) = self.clients.get_mut(&connection) {
                        client.pending = Some(Pending::Load { exactly, loading, until });
                    }
                }
            }
        }
    }

    fn under_way(&mut self, connection: Connection) {
        if let Some(identity) = self.identity_mut(connection) {
            identity.is_under_way = true;
        }
    }

    pub(super) fn on_loaded_done(&mut self, connection: Connection, slot: u64) -> Option<Answer> {
        let process = self.clients.get(&connection)?.process;
        let open: Vec<Connection> = self.clients.keys().copied().collect();
        let slot_of = |slot: &mut Slot| {
            // Of a connection before this one, which has ended.
            let earlier = slot.pins.iter().find(|(of, by)| **by == process && !open.contains(of));
            let pin = slot.pins.get_key_value(&connection).or(earlier).map(|(of, _)| *of)?;
            slot.pins.remove(&pin)
        };
        let released =
            self.shards.values_mut().find_map(|shard| shard.slot_mut(SlotId(slot))).and_then(slot_of);
        match released {
            Some(_) => Some((Reply::Done { queued: false }, Fds::None)),
            None => refuse(ErrorCode::NotYours, format!("slot {slot} is not being read by this client")),
        }
    }
}
