//! One shard: its slots, what is in them, and which of them a save takes.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    api::{Connection, FetchId, PersistId, Process, SendId, SlotId},
    fetching::Fetching,
    wishes::{Fate, Wishes},
};
use crate::message::{Endpoint, Format, FromSaver, Hello, ShardFile, ShardId, ShardState};

/// What a writer says of its shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) n_shards: u32,
    pub(super) replicated: bool,
    pub(super) rank: u32,
    pub(super) world: u32,
    pub(super) format: Format,
    /// So many other nodes are to keep a replica.
    pub(super) replicas: u32,
}

impl Facts {
    pub(super) fn of(hello: &Hello) -> Self {
        let Hello { n_shards, replicated, rank, world, format, replicas, .. } = *hello;
        Self { n_shards, replicated, rank, world, format, replicas }
    }

    /// All shards must write the same step, so the job says which.
    pub(super) const fn is_coordinated(&self) -> bool {
        self.n_shards > 1
    }
}

/// The process that may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Writer {
    pub(super) process: Process,
    pub(super) connection: Connection,
}

/// What the slots of a state have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// As the client names it.
    pub(super) id: u64,
    pub(super) bytes: u64,
    /// Slots of one allocation: the same layout with more bytes is another one.
    pub(super) generation: u64,
}

/// Slots that are being made.
#[derive(Debug)]
pub(super) struct Allocating {
    pub(super) connection: Connection,
    pub(super) layout: Layout,
    pub(super) slots: Vec<SlotId>,
    /// Slots of the layout that are there already.
    pub(super) there: u32,
}

/// Where the way of a step to disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disk {
    No,
    /// It waits for the job's word.
    Wished,
    /// It waits for its turn.
    Ordered {
        turn: u64,
    },
    Running(PersistId),
    /// It is written, and given up.
    Cancelled(PersistId),
}

/// A whole step in a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) step: u64,
    pub(super) saved_in: u32,
    /// Which of two is newer: steps of a script may start again at 0.
    pub(super) order: u64,
    pub(super) rank: u32,
    pub(super) world: u32,
    /// Where the client wants it; empty: the default.
    pub(super) path: String,
    pub(super) disk: Disk,
    /// How often the job has given the step up: a report from before is not one of the next try.
    pub(super) given_up: u32,
    /// Of a round that is over, and not restored by the one that runs: only its way to disk ends.
    pub(super) is_stale: bool,
    /// It came from another node.
    pub(super) is_fetched: bool,
}

/// A write into a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) process: Process,
    pub(super) step: u64,
    pub(super) saved_in: u32,
    pub(super) rank: u32,
    pub(super) world: u32,
    /// It took the slot of a step that was to go to disk, and goes there instead.
    pub(super) inherits: bool,
    /// What the slot held before: it still does when the writer died before its first byte.
    pub(super) previous: Option<Held>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SlotState {
    Empty,
    Writing(Box<Write>),
    /// The writer is dead; the header tells whether it had finished.
    Examined(Box<Write>),
    /// Its bytes come from another node.
    Fetching(FetchId),
    Whole(Held),
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) id: SlotId,
    pub(super) layout: Layout,
    /// Its memory is allocated.
    pub(super) is_filled: bool,
    pub(super) is_filling: bool,
    pub(super) state: SlotState,
    /// What reads from it.
    pub(super) pins: BTreeMap<Connection, Process>,
    /// Its header is being read for a load.
    pub(super) is_checked: bool,
    /// Nodes that fetch what it holds. A save does not wait for them.
    pub(super) sends: BTreeSet<SendId>,
}

impl Slot {
    pub(super) const fn new(id: SlotId, layout: Layout, is_filled: bool) -> Self {
        Self {
            id,
            layout,
            is_filled,
            is_filling: false,
            state: SlotState::Empty,
            pins: BTreeMap::new(),
            is_checked: false,
            sends: BTreeSet::new(),
        }
    }

    pub(super) const fn held(&self) -> Option<&Held> {
        match &self.state {
            SlotState::Whole(held) => Some(held),
            _ => None,
        }
    }

    pub(super) const fn held_mut(&mut self) -> Option<&mut Held> {
        match &mut self.state {
            SlotState::Whole(held) => Some(held),
            _ => None,
        }
    }

    /// A worker writes it, or has died meanwhile.
    pub(super) const fn is_written(&self) -> bool {
        matches!(self.state, SlotState::Writing(_) | SlotState::Examined(_))
    }

    /// What it holds is not known yet.
    pub(super) const fn is_open(&self) -> bool {
        matches!(self.state, SlotState::Writing(_) | SlotState::Examined(_) | SlotState::Fetching(_))
    }

    /// A step in it is on its way to disk.
    pub(super) fn disk(&self) -> Disk {
        self.held().map_or(Disk::No, |held| held.disk)
    }

    /// Nothing needs it: it may be closed.
    pub(super) fn is_free(&self) -> bool {
        !self.is_open() && !self.is_checked && self.pins.is_empty() && self.disk() == Disk::No
    }
}

/// A shard of a step on disk that the job has not acknowledged.
#[derive(Debug, Clone)]
pub(super) struct Report {
    pub(super) step: u64,
    pub(super) saved_in: u32,
    pub(super) given_up: u32,
    pub(super) file: ShardFile,
    /// Where the client wanted it; empty: the default.
    pub(super) path: String,
    /// Files that may be removed if the step fails: those at their default place.
    pub(super) removable: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) facts: Facts,
    pub(super) writer: Option<Writer>,
    pub(super) layout: Option<Layout>,
    /// Of the layout, and those of earlier ones that are still needed.
    pub(super) slots: Vec<Slot>,
    pub(super) allocating: Option<Allocating>,
    pub(super) fetching: Vec<Fetching>,
    pub(super) wishes: Wishes,
    pub(super) reports: Vec<Report>,
    /// Why the last write to disk failed.
    pub(super) error: Option<String>,
    /// This node writes the shard to disk, as the last commit said.
    pub(super) writes_disk: bool,
    /// Its rank is no longer on this node: it goes once nothing of it is written.
    pub(super) is_leaving: bool,
    /// Another node has its rank, and may lose its memory.
    pub(super) is_replica: bool,
}

/// No slot can be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Busy {
    pub(super) persisting: Option<u64>,
}

impl Shard {
    pub(super) fn new(facts: Facts) -> Self {
        Self {
            facts,
            writer: None,
            layout: None,
            slots: Vec::new(),
            allocating: None,
            fetching: Vec::new(),
            wishes: Wishes::default(),
            reports: Vec::new(),
            error: None,
            writes_disk: false,
            is_leaving: false,
            is_replica: false,
        }
    }

    pub(super) fn is_written_by(&self, process: Process) -> bool {
        self.writer.is_some_and(|writer| writer.process == process)
    }

    /// Gives up all that is in memory: it is a part of something else than what is saved now.
    pub(super) fn void_another_kind(&mut self) {
        let why = "the number of shards, or the kind of state (replicated or sharded), has changed";
        self.void(|_| false, why);
    }

    /// Gives up what is in memory, but for steps that `keeps`: what is on its way to disk still goes there, unless it
    /// waits for the word of a job that has gone on.
    pub(super) fn void(&mut self, keeps: impl Fn(&Held) -> bool, reason: &str) {
        for slot in &mut self.slots {
            let SlotState::Whole(held) = &mut slot.state else { continue };
            if !held.is_stale && keeps(held) {
                continue;
            }
            held.is_stale = true;
            if held.disk == Disk::Wished {
                held.disk = Disk::No;
                self.wishes.settle(held.step, Fate::Failed(reason.to_owned()));
            }
            if held.disk == Disk::No {
                slot.state = SlotState::Empty;
            }
        }
    }

    pub(super) fn slot(&self, id: SlotId) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.id == id)
    }

    pub(super) fn slot_mut(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.id == id)
    }

    /// Slots that a save may take.
    pub(super) fn current(&self) -> impl Iterator<Item = &Slot> {
        let generation = self.layout.map(|layout| layout.generation);
        self.slots.iter().filter(move |slot| Some(slot.layout.generation) == generation)
    }

    /// The newest step that is whole and may be restored.
    pub(super) fn newest(&self) -> Option<&Slot> {
        let is_valid = |slot: &&Slot| slot.held().is_some_and(|held| !held.is_stale);
        self.slots.iter().filter(is_valid).max_by_key(|slot| slot.held().map(|held| held.order))
    }

    /// The slot that has a step, the newest of several.
    pub(super) fn of_step(&self, step: u64) -> Option<&Slot> {
        let has = |slot: &&Slot| slot.held().is_some_and(|held| held.step == step);
        self.slots.iter().filter(has).max_by_key(|slot| slot.held().map(|held| (!held.is_stale, held.order)))
    }

    /// The step that is being written to disk.
    pub(super) fn running(&self) -> Option<&Held> {
        let held = self.slots.iter().filter_map(Slot::held);
        held.into_iter().find(|held| matches!(held.disk, Disk::Running(_) | Disk::Cancelled(_)))
    }

    /// Steps that wait for the disk, or are being written.
    pub(super) fn on_their_way(&self) -> impl Iterator<Item = &Held> {
        let held = self.slots.iter().filter_map(Slot::held);
        held.filter(|held| !matches!(held.disk, Disk::No | Disk::Cancelled(_)))
    }

    /// The slot that a save of `process` takes: (1) one that is neither the newest whole step nor on its way to disk,
    /// (2) one that is not the newest and not being written to disk, (3) with fewer than three slots, and where no other
    /// shard must have the same step, the newest.
    pub(super) fn choose(&self, process: Process) -> Result<SlotId, Busy> {
        let newest = self.newest().map(|slot| slot.id);
        let may_take_newest = self.current().count() < 3 && !self.facts.is_coordinated();
        let cost = |slot: &Slot| -> Option<u32> {
            let is_newest = newest == Some(slot.id);
            let is_read_elsewhere = slot.pins.values().any(|reader| *reader != process);
            if slot.is_open() || slot.is_checked || is_read_elsewhere || is_newest && !may_take_newest {
                return None;
            }
            let cost = match (&slot.state, slot.disk()) {
                (_, Disk::Running(_) | Disk::Cancelled(_)) => return None,
                (SlotState::Empty, _) if slot.is_filled => 0,
                (_, Disk::No) if slot.is_filled => 1,
                (_, Disk::No) => 2,
                (_, Disk::Wished) => 3,
                // All other shards are told to write this step.
                (_, Disk::Ordered { .. }) => 4,
            };
            // What this process reads itself it must copy before it writes: rather a newer step on disk than that.
            let is_read = !slot.pins.is_empty();
            let is_sent = !slot.sends.is_empty();
            let less = if is_sent { 5 } else { 0 } + if is_read { 10 } else { 0 };
            Some(cost + less + if is_newest { 20 } else { 0 })
        };
        let ranked = self.current().filter_map(|slot| {
            let age = slot.held().map_or(0, |held| held.order);
            Some((cost(slot)?, age, slot.id))
        });
        match ranked.min() {
            Some((_, _, slot)) => Ok(slot),
            None => Err(Busy { persisting: self.running().map(|held| held.step) }),
        }
    }

    /// Takes out slots of earlier layouts that are no longer needed: the newest whole step stays until there is one of
    /// this layout.
    pub(super) fn take_retired(&mut self) -> Vec<SlotId> {
        let Some(generation) = self.layout.map(|layout| layout.generation) else { return Vec::new() };
        let newest = self.newest().map(|slot| slot.id);
        let goes =
            |slot: &Slot| slot.layout.generation != generation && slot.is_free() && newest != Some(slot.id);
        let gone = self.slots.iter().filter(|slot| goes(slot)).map(|slot| slot.id).collect();
        self.slots.retain(|slot| !goes(slot));
        gone
    }

    /// Nothing of it is read, written or on its way to disk.
    pub(super) fn is_idle(&self) -> bool {
        self.allocating.is_none() && self.fetching.is_empty() && self.slots.iter().all(Slot::is_free)
    }

    /// Bytes of all slots, those that are being made included.
    pub(super) fn used(&self) -> u64 {
        let made = self.slots.iter().map(|slot| slot.layout.bytes);
        let being_made =
            self.allocating.iter().map(|it| it.layout.bytes.saturating_mul(it.slots.len() as u64));
        let for_fetches = self.fetching.iter().filter(|it| !it.has_slot).map(|it| it.layout.bytes);
        made.chain(being_made).chain(for_fetches).fold(0, u64::saturating_add)
    }

    /// Says what is on disk and was not acknowledged.
    pub(super) fn reported(&self, id: &ShardId) -> impl Iterator<Item = (u64, FromSaver)> {
        self.reports.iter().map(|report| {
            let Report { step, saved_in, given_up, .. } = *report;
            let (dir, shard) = (id.dir.clone(), Box::new(report.file.clone()));
            (step, FromSaver::Persisted { dir, step, saved_in, given_up, shard })
        })
    }

    pub(super) fn state(
        &self,
        id: &ShardId,
        disk_step: Option<u64>,
        endpoint: Option<Endpoint>,
        (round, awaits_fetches): (Option<u32>, bool),
    ) -> ShardState {
        let held = || self.slots.iter().filter_map(Slot::held);
        let ascending = |mut steps: Vec<u64>| {
            steps.sort_unstable();
            steps.dedup();
            steps
        };
        // The ranks of what is held, which a new round may have changed.
        let newest_slot = self.newest();
        let newest = newest_slot.and_then(Slot::held);
        let layout = newest_slot.map(|slot| slot.layout);
        ShardState {
            dir: id.dir.clone(),
            shard: id.shard,
            n_shards: self.facts.n_shards,
            replicated: self.facts.replicated,
            world: newest.map_or(self.facts.world, |held| held.world),
            rank: newest.map_or(self.facts.rank, |held| held.rank),
            steps: ascending(held().filter(|held| !held.is_stale).map(|held| held.step).collect()),
            wishes: ascending(self.on_their_way().map(|held| held.step).collect()),
            disk_step,
            replicas: self.facts.replicas,
            is_replica: self.is_replica,
            layout_id: layout.map_or(0, |layout| layout.id),
            bytes: layout.map_or(0, |layout| layout.bytes),
            endpoint,
            round,
            awaits_fetches,
        }
    }
}
