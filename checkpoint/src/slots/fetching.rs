//! Shards that come from the memory of other nodes: what a round restores and a node does not have, and replicas, which
//! are kept for the time when the node that has saved them is gone.
//!
//! ```text
//! fetch ---> memory for a slot ---> Fetching ---> its bytes, checksums and header fit ---> Whole
//!                                       \--- the other node ends it, or a round begins ---> Empty
//! ```

use super::{
    Saver,
    api::{Effect, FetchId, FetchOrder, Fetched, NoRoom, SlotId},
    clients::MAX_SHARDS,
    saving::check,
    shard::{Disk, Facts, Held, Layout, Shard, Slot, SlotState},
};
use crate::message::{
    Dir, Fetch, FetchSource, Format, FromSaver, MAX_SLOT_BYTES, MAX_STEP, MAX_WORLD, RestorePoint,
    RestoreSource, ShardId, ToSaver, cut,
};

/// Fetches of a shard at the same time: those of earlier rounds may still have to end.
const MAX_FETCHES: usize = 16;

/// Orders that wait for their round.
const MAX_EARLY: usize = 1024;

/// Slots of a replica: one is whole while the next step comes.
const REPLICA_SLOTS: usize = 2;

/// A shard that is on its way to this node.
#[derive(Debug)]
pub(super) struct Fetching {
    pub(super) id: FetchId,
    pub(super) slot: SlotId,
    pub(super) layout: Layout,
    step: u64,
    given_up: u32,
    from: FetchSource,
    /// There is memory for it.
    pub(super) has_slot: bool,
    /// A round has begun since, or the step is not restored: what comes is not used.
    is_cancelled: bool,
}

impl Saver {
    /// The job says something of fetches: of this round, or of one that is still to begin here, since the agent passes
    /// a round on when its workers are about to start.
    pub(super) fn on_fetch_order(&mut self, order: ToSaver) {
        let (ToSaver::Fetch { round, .. }
        | ToSaver::Fetched { round, .. }
        | ToSaver::NotFetched { round, .. }) = order
        else {
            return;
        };
        match self.terms.as_ref().map(|terms| terms.round) {
            Some(running) if round < running => {}
            Some(running) if round == running => match order {
                ToSaver::Fetch { dir, step, fetch, .. } => self.on_fetch(dir, step, *fetch),
                ToSaver::Fetched { dir, step, .. } => self.on_fetched(&dir, step),
                ToSaver::NotFetched { dir, step, reason, .. } => self.on_not_fetched(&dir, step, &reason),
                _ => {}
            },
            _ if self.early.len() < MAX_EARLY => self.early.push(order),
            _ => {}
        }
    }

    /// What was said of the round before it began here.
    pub(super) fn take_up_early(&mut self) {
        for order in std::mem::take(&mut self.early) {
            self.on_fetch_order(order);
        }
    }

    /// Fetches a shard of a step, unless it is here.
    pub(super) fn on_fetch(&mut self, dir: Dir, step: u64, fetch: Fetch) {
        let shard = fetch.shard;
        if let Err(reason) = self.try_fetch(&dir, step, fetch) {
            self.fetch_failed(dir, step, shard, &reason);
        }
    }

    fn try_fetch(&mut self, dir: &Dir, step: u64, fetch: Fetch) -> Result<(), String> {
        if self.ending.is_some() || self.terms.is_none() {
            return Err("no round is running on this node".to_owned());
        }
        let Fetch { shard, n_shards, replicated, layout_id, bytes, is_replica, given_up, from } = fetch;
        let is_valid = (1..=MAX_SLOT_BYTES).contains(&bytes)
            && step <= MAX_STEP
            && (1..=MAX_WORLD).contains(&n_shards)
            && shard < n_shards;
        if !is_valid {
            return Err(format!(
                "the fetch request is invalid: shard {shard} of {n_shards}, step {step}, {bytes} bytes"
            ));
        }
        let id = ShardId { dir: dir.clone(), shard };
        if !self.shards.contains_key(&id) && !self.has_room_for_shard(&id) {
            return Err(format!("this node has {MAX_SHARDS} shards, the maximum"));
        }
        // The other node says the rest with the bytes.
        let facts = Facts { n_shards, replicated, rank: 0, world: 0, format: Format::Pt, replicas: 0 };
        let known = self.shards.entry(id.clone()).or_insert_with(|| Shard::new(facts.clone()));
        let is_other = |of: &Facts| (of.n_shards, of.replicated) != (n_shards, replicated);
        if is_other(&known.facts) && known.writer.is_none() {
            known.void_another_kind();
            known.facts = facts;
        }
        if is_other(&known.facts) {
            let here = known.facts.n_shards;
            return Err(if here != n_shards {
                format!("the number of shards is {here} on this node and {n_shards} on the other one")
            } else if replicated {
                "the state is replicated on the other node and sharded on this one".into()
            } else {
                "the state is replicated on this node and sharded on the other one".into()
            });
        }
        if known.writer.is_none() {
            (known.is_replica, known.is_leaving) = (is_replica, false);
        }
        if known.of_step(step).and_then(Slot::held).is_some_and(|held| !held.is_stale) {
            self.must_tell_state = true;
            return Ok(());
        }
        if known.fetching.iter().any(|it| it.step == step && !it.is_cancelled) {
            return Ok(());
        }
        if known.fetching.len() >= MAX_FETCHES {
            return Err(format!("{MAX_FETCHES} fetches of the shard have not ended yet"));
        }
        let fetch = FetchId(self.next());
        self.take_slot(&id, (fetch, step, given_up), (layout_id, bytes), from)
    }

    /// A slot that holds nothing that is needed, or a new one.
    fn take_slot(
        &mut self,
        id: &ShardId,
        (fetch, step, given_up): (FetchId, u64, u32),
        (layout_id, bytes): (u64, u64),
        from: FetchSource,
    ) -> Result<(), String> {
        let point = self.terms.as_ref().and_then(|terms| terms.restore.get(&id.dir));
        // What is restored if the fetch fails.
        let kept = point.filter(|point| point.source == RestoreSource::Memory).map(|point| point.step);
        let Some(shard) = self.shards.get_mut(id) else { return Ok(()) };
        let layout = shard.layout.filter(|layout| (layout.id, layout.bytes) == (layout_id, bytes));
        if let (Some(layout), Some(slot)) = (layout, shard.spare(kept)) {
            let Some(slot) = shard.slot_mut(slot) else { return Ok(()) };
            let sends = std::mem::take(&mut slot.sends);
            (slot.state, slot.is_filled) = (SlotState::Fetching(fetch), true);
            let slot = slot.id;
            shard.fetching.push(Fetching {
                id: fetch,
                slot,
                layout,
                step,
                given_up,
                from,
                has_slot: true,
                is_cancelled: false,
            });
            self.effects.extend(sends.into_iter().map(|send| Effect::CancelSend { send }));
            self.start_fetch(id, fetch);
            return Ok(());
        }
        if shard.is_replica && layout.is_none() {
            // The state has another layout now. Its newest step of the one before stays until there is one of this.
            self.retire(id, false);
        }
        let Some(shard) = self.shards.get_mut(id) else { return Ok(()) };
        if shard.is_replica && shard.slots.len() + shard.unallocated() >= REPLICA_SLOTS {
            return Err("all slots of the replica are in use".to_owned());
        }
        let is_replica = shard.is_replica;
        if self.room() < bytes {
            self.free_abandoned(id, !is_replica);
        }
        let have = self.room();
        if have < bytes {
            return Err(format!(
                "its slot needs {bytes} bytes; the limit for checkpoints in memory leaves {have} bytes"
            ));
        }
        let (generation, slot) = (self.next(), SlotId(self.next()));
        let Some(shard) = self.shards.get_mut(id) else { return Ok(()) };
        let layout = layout.unwrap_or(Layout { id: layout_id, bytes, generation });
        let fetching =
            Fetching { id: fetch, slot, layout, step, given_up, from, has_slot: false, is_cancelled: false };
        shard.fetching.push(fetching);
        self.effects.push(Effect::AllocateSlots { slots: vec![slot], filled: vec![slot], bytes });
        Ok(())
    }

    /// Continues a fetch whose slot was allocated, or not. Returns whether the slots were for a fetch.
    pub(super) fn on_fetch_slot(&mut self, slots: &[SlotId], result: &Result<(), NoRoom>) -> bool {
        let is_it = |it: &Fetching| !it.has_slot && slots == [it.slot];
        let found = self.shards.iter_mut().find_map(|(id, shard)| {
            let at = shard.fetching.iter().position(is_it)?;
            Some((id.clone(), shard, at))
        });
        let Some((id, shard, at)) = found else { return false };
        let Some(fetching) = shard.fetching.get_mut(at) else { return false };
        let (fetch, step) = (fetching.id, fetching.step);
        if let Err(error) = result {
            let is_cancelled = fetching.is_cancelled;
            shard.fetching.remove(at);
            self.give_up_empty(&id);
            if !is_cancelled {
                self.fetch_failed(id.dir, step, id.shard, &format!("no memory for it: {}", error.reason));
            }
            return true;
        }
        fetching.has_slot = true;
        let (layout, is_cancelled) = (fetching.layout, fetching.is_cancelled);
        let mut slot = Slot::new(fetching.slot, layout, true);
        if is_cancelled {
            shard.fetching.remove(at);
            shard.slots.push(slot);
            self.give_up_empty(&id);
            return true;
        }
        slot.state = SlotState::Fetching(fetch);
        shard.slots.push(slot);
        if shard.writer.is_none() && shard.allocating.is_none() {
            // A save finds it, and what is of another layout goes.
            shard.layout = Some(layout);
        }
        self.start_fetch(&id, fetch);
        true
    }

    fn start_fetch(&mut self, shard: &ShardId, fetch: FetchId) {
        let fetching = self.shards.get(shard).map(|shard| &shard.fetching);
        let Some(it) = fetching.and_then(|fetching| fetching.iter().find(|it| it.id == fetch)) else {
            return;
        };
        let order = FetchOrder {
            id: fetch,
            slot: it.slot,
            shard: shard.clone(),
            step: it.step,
            layout_id: it.layout.id,
            bytes: it.layout.bytes,
            from: it.from.clone(),
        };
        self.effects.push(Effect::Fetch(Box::new(order)));
    }

    pub(super) fn on_fetch_ended(&mut self, fetch: FetchId, result: Result<Box<Fetched>, String>) {
        let (order, epoch) = (self.next(), self.settings.epoch);
        let dirs = &self.dirs;
        let found = self.shards.iter_mut().find_map(|(id, shard)| {
            let at = shard.fetching.iter().position(|it| it.id == fetch)?;
            Some((id.clone(), shard, at))
        });
        let Some((id, shard, at)) = found else { return };
        let Fetching { slot, step, given_up, is_cancelled, .. } = shard.fetching.remove(at);
        let Some(slot) = shard.slot_mut(slot) else { return };
        slot.state = SlotState::Empty;
        let result = result.and_then(|fetched| {
            check(&fetched.header, &id, slot, epoch)?;
            check_step(&fetched, step)?;
            Ok(fetched.sent)
        });
        match result {
            _ if is_cancelled => self.give_up_empty(&id),
            Err(reason) => {
                self.give_up_empty(&id);
                self.fetch_failed(id.dir, step, id.shard, &reason);
            }
            Ok(sent) => {
                let said = dirs.get(&id.dir).map_or(0, |known| known.given_up(step, sent.saved_in));
                slot.state = SlotState::Whole(Held {
                    step,
                    saved_in: sent.saved_in,
                    order,
                    rank: sent.rank,
                    world: sent.world,
                    path: sent.path,
                    disk: Disk::No,
                    // The job may have said it meanwhile.
                    given_up: given_up.max(said),
                    is_stale: false,
                    is_fetched: true,
                });
                shard.is_leaving = false;
                if shard.writer.is_none() {
                    (shard.facts.rank, shard.facts.world) = (sent.rank, sent.world);
                    shard.facts.format = sent.format;
                }
                self.must_tell_state = true;
            }
        }
    }

    /// A shard of which nothing came goes again.
    fn give_up_empty(&mut self, id: &ShardId) {
        let Some(shard) = self.shards.get_mut(id) else { return };
        let holds_any = shard.slots.iter().any(|slot| slot.held().is_some());
        if shard.writer.is_none() && shard.fetching.is_empty() && !holds_any {
            shard.is_leaving = true;
        }
    }

    fn fetch_failed(&mut self, dir: Dir, step: u64, shard: u32, reason: &str) {
        let id = ShardId { dir: dir.clone(), shard };
        if self.shards.get(&id).is_some_and(|shard| shard.is_replica) {
            // It is nothing that a worker waits for, and may fail for each step.
            self.replica_failures += 1;
            if self.replica_failures.is_power_of_two() {
                self.warn(format!(
                    "{dir}: this node has no replica of shard {shard} of step {step}: {reason}; failed so far: {}",
                    self.replica_failures
                ));
            }
        }
        self.tell(FromSaver::FetchFailed { dir, step, shard, reason: cut(reason) });
    }

    /// What is under way is not used. With a directory, only what is of that.
    pub(super) fn cancel_fetches(&mut self, dir: Option<&Dir>) {
        let of_dir = self.shards.iter_mut().filter(|(id, _)| dir.is_none_or(|dir| id.dir == *dir));
        for it in of_dir.flat_map(|(_, shard)| &mut shard.fetching) {
            if !std::mem::replace(&mut it.is_cancelled, true) && it.has_slot {
                self.effects.push(Effect::CancelFetch { fetch: it.id });
            }
        }
    }

    /// A round begins: its points say what this node is to fetch.
    pub(super) fn fetch_points(&mut self) {
        let Some(terms) = &self.terms else { return };
        let ranks = terms.ranks();
        let mut wanted = Vec::new();
        for point in terms.restore.values() {
            let Some(fetched) = &point.fetched else { continue };
            let own = fetched.fetches.iter().filter(|(rank, _)| ranks.contains(rank));
            wanted.extend(own.map(|(_, fetch)| (point.dir.clone(), fetched.step, fetch.clone())));
        }
        for (dir, step, fetch) in wanted {
            self.on_fetch(dir, step, fetch);
        }
    }

    /// All nodes have the step in memory: all ranks restore it.
    pub(super) fn on_fetched(&mut self, dir: &Dir, step: u64) {
        let Some(point) = self.awaited_point(dir, step) else { return };
        let (source, pending, fetched) = (RestoreSource::Memory, None, None);
        *point = RestorePoint { dir: dir.clone(), step, source, pending, given_up: 0, fetched };
        // The job passes over what this node wishes for as long as it says that it waits.
        self.must_tell_state = true;
    }

    /// A node cannot fetch the step: all ranks restore what they have without it.
    pub(super) fn on_not_fetched(&mut self, dir: &Dir, step: u64, reason: &str) {
        let Some(point) = self.awaited_point(dir, step) else { return };
        point.fetched = None;
        let last = (point.source == RestoreSource::Memory).then_some(point.step);
        self.must_tell_state = true;
        self.cancel_fetches(Some(dir));
        for (_, shard) in self.shards.iter_mut().filter(|(id, _)| id.dir == *dir) {
            let keeps = |held: &Held| last.is_some_and(|last| held.step <= last);
            shard.void(keeps, "the step was not in the memory of all nodes");
        }
        let reason = cut(reason);
        self.warn(format!(
            "{dir}: step {step} cannot be restored from the memory of other nodes: {reason}; restoring what all ranks \
             have in memory, or else the newest step on disk"
        ));
    }

    fn awaited_point(&mut self, dir: &Dir, step: u64) -> Option<&mut RestorePoint> {
        let point = self.terms.as_mut()?.restore.get_mut(dir)?;
        let is_it = point.fetched.as_ref().is_some_and(|fetched| fetched.step == step);
        is_it.then_some(point)
    }
}

impl Shard {
    /// A slot of the layout that a fetch may take: one without a step, or with one that is not needed. Of a replica
    /// that is each but the newest; of a shard that is restored, before any worker saves, each but the one that is
    /// `kept`.
    fn spare(&self, kept: Option<u64>) -> Option<SlotId> {
        let newest = self.newest().map(|slot| slot.id);
        let is_spare = |slot: &&Slot| match &slot.state {
            _ if slot.is_checked || !slot.pins.is_empty() => false,
            SlotState::Empty => !slot.is_filling,
            SlotState::Whole(held) => {
                let is_needed =
                    if self.is_replica { newest == Some(slot.id) } else { kept == Some(held.step) };
                !is_needed && held.disk == Disk::No
            }
            _ => false,
        };
        // What a save would take first is left to it.
        let cost = |slot: &&Slot| (slot.held().is_some(), !slot.is_filled);
        self.current().filter(is_spare).min_by_key(cost).map(|slot| slot.id)
    }

    /// Slots that are being made for fetches.
    pub(super) fn unallocated(&self) -> usize {
        self.fetching.iter().filter(|it| !it.has_slot).count()
    }
}

fn check_step(fetched: &Fetched, step: u64) -> Result<(), String> {
    let Fetched { sent, header } = fetched;
    let pairs = [
        ("step", step, sent.step),
        ("step", step, header.step),
        ("rank", u64::from(sent.rank), u64::from(header.rank)),
        ("world size", u64::from(sent.world), u64::from(header.world)),
    ];
    match pairs.into_iter().find(|(_, expected, found)| expected != found) {
        None => Ok(()),
        Some((what, expected, found)) => Err(format!("it has {what} {found}; expected {expected}")),
    }
}
