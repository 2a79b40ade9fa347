//! Allocates slots, and frees them when nothing needs them.

use std::collections::BTreeSet;

use super::{
    Saver,
    api::{Connection, Effect, Fds, NoRoom, SlotId},
    clients::{Answer, refuse},
    shard::{Allocating, Layout, Shard, Slot},
};
use crate::message::{ErrorCode, Refusal, Reply, RestoreSource, ShardId, SlotOffer};

/// Slots of a shard: one is written, one is whole, one goes to disk.
const SLOTS: u32 = 3;

/// With fewer there would be no whole step while one is written.
const FEWEST: u32 = 2;

impl Saver {
    /// Allocates the slots that a client asks for. `None`: the reply comes when they are allocated.
    pub(super) fn advance_alloc(
        &mut self,
        connection: Connection,
        bytes: u64,
        layout_id: u64,
        slots: Option<u32>,
    ) -> Option<Answer> {
        if self.ending.is_some() {
            return refuse(ErrorCode::Closing, "the saver is about to exit, because the run is ending");
        }
        let id = self.clients.get(&connection)?.identity.as_ref()?.shard.clone();
        let process = self.clients.get(&connection)?.process;
        let Some(shard) = self.shards.get(&id).filter(|shard| shard.is_written_by(process)) else {
            return refuse(ErrorCode::WriterExists, "another process is the writer of this shard now");
        };
        if shard.allocating.is_some() {
            return None;
        }
        let fits = |layout: &Layout| layout.id == layout_id && layout.bytes >= bytes;
        let there = shard.layout.filter(fits);
        let count = there.map_or(0, |_| u32::try_from(shard.current().count()).unwrap_or(u32::MAX));
        let wanted = slots.unwrap_or(SLOTS);
        let missing = wanted.saturating_sub(count);
        let has_room = there.is_some_and(|it| it.bytes.saturating_mul(u64::from(missing)) <= self.room());
        if count >= FEWEST && (missing == 0 || !has_room) {
            let slots: Vec<SlotId> = shard.current().map(|slot| slot.id).collect();
            let offers = shard.current().map(|slot| SlotOffer { id: slot.id.0, bytes: slot.layout.bytes });
            let reply = Reply::Allocated { slots: offers.collect() };
            return Some((reply, Fds::Writable(slots)));
        }
        self.abort_write(&id, process);
        // What was fetched from another node is one of them.
        let bytes = there.map_or(bytes, |layout| layout.bytes);
        match self.make_room(&id, bytes, wanted, count) {
            Ok(wanted) => {
                let generation = there.map_or_else(|| self.next(), |layout| layout.generation);
                let layout = Layout { id: layout_id, bytes, generation };
                self.allocate(connection, &id, layout, (count, wanted));
                None
            }
            Err((need, have)) => Some(no_memory(need, Some(have), None)),
        }
    }

    /// How many slots of so many bytes there may be: as many as are wanted, or two. So many are there already. What is
    /// not needed goes first.
    fn make_room(&mut self, id: &ShardId, bytes: u64, wanted: u32, there: u32) -> Result<u32, (u64, u64)> {
        let need = |count: u32| bytes.saturating_mul(u64::from(count.saturating_sub(there)));
        let fits = |count: u32, have: u64| need(count) <= have;
        if there == 0 {
            self.retire(id, false);
        }
        if !fits(wanted, self.room()) {
            self.free_abandoned(id, false);
        }
        if !fits(FEWEST, self.room()) {
            self.free_abandoned(id, true);
        }
        let fitting = |have: u64| [wanted, FEWEST].into_iter().find(|count| fits(*count, have));
        if let Some(count) = fitting(self.room()) {
            return Ok(count);
        }
        // The last step of the old layout need not stay when it is on disk.
        let disk_step = self.disk_step(&id.dir);
        let newest = self.shards.get(id).and_then(Shard::newest).and_then(Slot::held);
        if there == 0 && newest.is_some_and(|held| disk_step.is_some_and(|disk| held.step <= disk)) {
            self.retire(id, true);
        }
        let have = self.room();
        fitting(have).ok_or((need(FEWEST), have))
    }

    /// Bytes that slots may have beside those that there are.
    pub(super) fn room(&self) -> u64 {
        let used = self.shards.values().map(Shard::used).fold(0, u64::saturating_add);
        self.settings.allowance.saturating_sub(used)
    }

    /// Frees slots of the layout so far. The newest whole step stays, unless it is to go as well.
    pub(super) fn retire(&mut self, id: &ShardId, newest_too: bool) {
        let Some(shard) = self.shards.get_mut(id) else { return };
        let newest = shard.newest().map(|slot| slot.id);
        let stays = |slot: &Slot| !slot.is_free() || newest == Some(slot.id) && !newest_too;
        let gone: Vec<SlotId> = shard.slots.iter().filter(|slot| !stays(slot)).map(|slot| slot.id).collect();
        shard.slots.retain(stays);
        // What stays is of a layout that no save takes a slot of.
        shard.layout = None;
        self.free(gone);
    }

    /// Frees shards without a client that hold nothing that could be restored; with `whole_too`, those as well that hold
    /// a step no rank of this round restores.
    pub(super) fn free_abandoned(&mut self, but: &ShardId, whole_too: bool) {
        let used: BTreeSet<&ShardId> =
            self.clients.values().filter_map(|client| Some(&client.identity.as_ref()?.shard)).collect();
        let is_restored = |id: &ShardId, shard: &Shard, step: u64| {
            let point = self.terms.as_ref().and_then(|terms| terms.restore.get(&id.dir));
            point.is_some_and(|point| match &point.fetched {
                Some(fetched) => fetched.step == step,
                // What this node saves goes before what it keeps for others.
                None => !shard.is_replica && point.source == RestoreSource::Memory && point.step == step,
            })
        };
        let is_abandoned = |id: &ShardId, shard: &Shard| {
            let newest = shard.newest().and_then(Slot::held);
            let is_needed = newest.is_some_and(|held| !whole_too || is_restored(id, shard, held.step));
            id != but && !used.contains(id) && shard.is_idle() && !is_needed
        };
        let abandoned = self.shards.iter().filter(|(id, shard)| is_abandoned(id, shard));
        let abandoned: Vec<ShardId> = abandoned.map(|(id, _)| id.clone()).collect();
        for shard in self.shards.iter_mut().filter(|(id, _)| abandoned.contains(id)).map(|(_, shard)| shard) {
            shard.is_leaving = true;
        }
        self.free_unused();
    }

    /// Makes as many slots of a layout as there are not yet.
    fn allocate(
        &mut self,
        connection: Connection,
        id: &ShardId,
        layout: Layout,
        (there, wanted): (u32, u32),
    ) {
        let slots: Vec<SlotId> = (there..wanted).map(|_| SlotId(self.next())).collect();
        // The third gets its memory when the first write to disk starts.
        let filled = slots.iter().take(FEWEST.saturating_sub(there) as usize).copied().collect();
        let Some(shard) = self.shards.get_mut(id) else { return };
        shard.allocating = Some(Allocating { connection, layout, slots: slots.clone(), there });
        self.effects.push(Effect::AllocateSlots { slots, filled, bytes: layout.bytes });
    }

    pub(super) fn on_slots_allocated(&mut self, slots: &[SlotId], result: Result<(), NoRoom>) {
        if self.on_fetch_slot(slots, &result) {
            return;
        }
        let is_it = |shard: &Shard| shard.allocating.as_ref().is_some_and(|it| it.slots == slots);
        let Some((id, shard)) = self.shards.iter_mut().find(|(_, shard)| is_it(shard)) else { return };
        let (id, Some(made)) = (id.clone(), shard.allocating.take()) else { return };
        let fewest = FEWEST.saturating_sub(made.there) as usize;
        match result {
            Ok(()) => {
                let filled = made.slots.len().min(fewest);
                let slots = made.slots.iter().enumerate();
                shard.slots.extend(slots.map(|(index, id)| Slot::new(*id, made.layout, index < filled)));
                shard.layout = Some(made.layout);
            }
            Err(_) if made.slots.len() > fewest => {
                self.allocate(made.connection, &id, made.layout, (made.there, FEWEST));
            }
            Err(error) => {
                let need = made.layout.bytes.saturating_mul(fewest as u64);
                let answer = no_memory(need, error.have, Some(&error.reason));
                self.answer(made.connection, answer);
            }
        }
    }

    /// Memory for the slots that have none yet: a write to disk runs, so the next save but one needs them.
    pub(super) fn fill_slots(&mut self, id: &ShardId) {
        let Some(shard) = self.shards.get_mut(id) else { return };
        let to_fill = shard.slots.iter_mut().filter(|slot| !slot.is_filled && !slot.is_filling);
        for slot in to_fill {
            slot.is_filling = true;
            self.effects.push(Effect::FillSlot { slot: slot.id });
        }
    }

    pub(super) fn on_slot_filled(&mut self, id: SlotId, result: Result<(), String>) {
        let slot = self.shards.values_mut().find_map(|shard| shard.slot_mut(id));
        let Some(slot) = slot.filter(|slot| slot.is_filling) else { return };
        slot.is_filling = false;
        match result {
            Ok(()) => slot.is_filled = true,
            // Retried with the next write to disk. A save that takes it meanwhile gets its memory page by page.
            Err(error) => self.warn(format!(
                "no memory for the third slot of a shard, which takes saves during a write to disk: {error}; \
                 retrying at the next write to disk"
            )),
        }
    }

    /// Frees what became unnecessary.
    pub(super) fn free_unused(&mut self) {
        let mut gone = Vec::new();
        for shard in self.shards.values_mut() {
            gone.extend(shard.take_retired());
        }
        let goes = |shard: &Shard| shard.is_leaving && shard.is_idle();
        let leaving = self.shards.values().filter(|shard| goes(shard));
        gone.extend(leaving.flat_map(|shard| shard.slots.iter().map(|slot| slot.id)));
        self.shards.retain(|_, shard| {
            if !goes(shard) {
                return true;
            }
            shard.slots.clear();
            shard.layout = None;
            // The job may ask again for what was written.
            !shard.reports.is_empty()
        });
        self.free(gone);
    }

    fn free(&mut self, slots: Vec<SlotId>) {
        if !slots.is_empty() {
            self.effects.push(Effect::FreeSlots { slots });
        }
    }
}

fn no_memory(need: u64, have: Option<u64>, reason: Option<&str>) -> Answer {
    let why = match (reason, have) {
        // It has the numbers of the system.
        (Some(reason), _) => format!(": {reason}"),
        (None, Some(have)) => format!("; the limit for checkpoints in memory leaves {have} bytes"),
        (None, None) => String::new(),
    };
    let text = format!("the slots of a checkpoint in memory need {need} more bytes{why}");
    let refusal = Refusal { need: Some(need), have, ..Refusal::new(ErrorCode::NoMemory, text) };
    (Reply::Error(refusal), Fds::None)
}
