//! Saves: a slot is taken, written by its client, and whole after `commit`, or if its header says so after the death of
//! its writer.

use super::{
    Saver,
    api::{Connection, Effect, Fds, SlotId},
    client::Identity,
    clients::{Answer, refuse},
    shard::{Busy, Disk, Held, Shard, Slot, SlotState, Write},
    wishes::Fate,
};
use crate::{
    Moment,
    header::Header,
    message::{ErrorCode, FromSaver, Refusal, Reply, ShardId, Storage, Wish},
};

impl Saver {
    pub(super) fn advance_begin(
        &mut self,
        connection: Connection,
        step: u64,
        layout_id: u64,
        until: Moment,
    ) -> Option<Answer> {
        if self.ending.is_some() {
            return refuse(ErrorCode::Closing, "the saver is about to exit, because the run is ending");
        }
        let client = self.clients.get(&connection)?;
        let (process, identity) = (client.process, client.identity.as_ref()?);
        let (id, round) = (identity.shard.clone(), identity.round);
        let Some(shard) = self.shards.get(&id).filter(|shard| shard.is_written_by(process)) else {
            return refuse(ErrorCode::WriterExists, "another process is the writer of this shard now");
        };
        if shard.layout.is_none_or(|layout| layout.id != layout_id) {
            let text = format!("there are no slots of layout {layout_id}; request them with `alloc`");
            return refuse(ErrorCode::OutOfOrder, text);
        }
        // A client that begins again has given up what it began before.
        self.abort_write(&id, process);
        let shard = self.shards.get_mut(&id)?;
        let taken = match shard.choose(process) {
            Ok(slot) => slot,
            Err(_) if self.now < until => return None,
            Err(busy) => return Some(refuse_busy(busy)),
        };
        let (rank, world) = (shard.facts.rank, shard.facts.world);
        let slot = shard.slots.iter_mut().find(|slot| slot.id == taken)?;
        let pinned = !slot.pins.is_empty();
        let sends = std::mem::take(&mut slot.sends);
        let previous = slot.held().cloned();
        let disk = slot.disk();
        let write = Write {
            process,
            step,
            saved_in: round,
            rank,
            world,
            inherits: disk != Disk::No,
            previous: previous.clone().map(|held| Held { disk: Disk::No, ..held }),
        };
        slot.state = SlotState::Writing(Box::new(write));
        // Before the reply: what is read of the slot from then on is not one state.
        self.effects.extend(sends.into_iter().map(|send| Effect::CancelSend { send }));
        let mut superseded = Vec::new();
        if let Some(held) = previous.filter(|_| disk != Disk::No) {
            superseded.push(held.step);
            shard.wishes.settle_open(held.step, Fate::Superseded);
            if matches!(disk, Disk::Ordered { .. }) && shard.facts.is_coordinated() {
                let reason =
                    format!("step {} was superseded by step {step} before it was written to disk", held.step);
                let saved_in = Some(held.saved_in);
                let (dir, shard) = (id.dir.clone(), Some(id.shard));
                self.tell(FromSaver::Failed { dir, step: held.step, shard, saved_in, reason });
            }
        }
        Some((Reply::Begun { slot: taken.0, superseded, pinned }, Fds::None))
    }

    /// The write that a process has begun, and will not commit.
    pub(super) fn abort_write(&mut self, id: &ShardId, process: super::Process) {
        let Some(shard) = self.shards.get_mut(id) else { return };
        let is_it =
            |slot: &&mut Slot| matches!(&slot.state, SlotState::Writing(write) if write.process == process);
        let Some(slot) = shard.slots.iter_mut().find(is_it) else { return };
        let SlotState::Writing(write) = std::mem::replace(&mut slot.state, SlotState::Empty) else { return };
        if write.inherits {
            self.pass_wish_on(id);
        }
    }

    /// A step that was to go to disk was overwritten by one that did not become whole: the newest whole one goes
    /// instead.
    fn pass_wish_on(&mut self, id: &ShardId) {
        let turn = self.next();
        let Some(shard) = self.shards.get_mut(id) else { return };
        let is_coordinated = shard.facts.is_coordinated();
        let Some(newest) = shard.newest().map(|slot| slot.id) else { return };
        let Some(held) = shard.slot_mut(newest).and_then(Slot::held_mut) else { return };
        if held.disk != Disk::No {
            return;
        }
        held.disk = if is_coordinated { Disk::Wished } else { Disk::Ordered { turn } };
        let step = held.step;
        shard.wishes.open(step);
        self.must_tell_state |= is_coordinated;
    }

    pub(super) fn on_commit_request(
        &mut self,
        connection: Connection,
        step: u64,
        slot: u64,
        wish: Wish,
    ) -> Option<Answer> {
        let client = self.clients.get(&connection)?;
        let (process, id) = (client.process, client.identity.as_ref()?.shard.clone());
        let taken = SlotId(slot);
        let (order, turn) = (self.next(), self.next());
        let shard = self.shards.get_mut(&id)?;
        let Some(write) = shard.write_of(taken, process) else {
            return refuse(
                ErrorCode::NotYours,
                format!("slot {slot} is not being written by this client; send `begin` first"),
            );
        };
        if write.step != step {
            let text = format!(
                "slot {slot} was taken for step {}, not for step {step}; send `begin` for step {step}",
                write.step
            );
            return refuse(ErrorCode::Invalid, text);
        }
        let is_disk = wish.storage == Storage::Disk;
        let known = self.dirs.get(&id.dir);
        let fate = known.and_then(|known| known.fate_of_save(step, write.saved_in));
        let given_up = known.map_or(0, |known| known.given_up(step, write.saved_in));
        let mut goes_to_disk = wish.writes_disk && (is_disk || write.inherits);
        // Another save of the same step before: it is replaced, with its wish. The job orders a step once.
        let mut is_ordered = false;
        for slot in &mut shard.slots {
            let SlotState::Whole(held) = &mut slot.state else { continue };
            if held.step != step || held.is_stale {
                continue;
            }
            if matches!(held.disk, Disk::Running(_) | Disk::Cancelled(_)) {
                held.is_stale = true;
            } else {
                goes_to_disk |= held.disk != Disk::No;
                is_ordered |= matches!(held.disk, Disk::Ordered { .. });
                slot.state = SlotState::Empty;
            }
        }
        let is_coordinated = shard.facts.is_coordinated();
        // The other ranks were faster: all shards of this step are on disk, and the job orders it no more.
        goes_to_disk &= !(is_coordinated && fate == Some(true));
        let disk = match (goes_to_disk, is_coordinated && !is_ordered) {
            (false, _) => Disk::No,
            (true, true) => Disk::Wished,
            (true, false) => Disk::Ordered { turn },
        };
        let Write { saved_in, rank, world, .. } = write;
        let held = Held {
            step,
            saved_in,
            order,
            rank,
            world,
            path: wish.path,
            disk,
            given_up,
            is_stale: false,
            is_fetched: false,
        };
        shard.writes_disk = wish.writes_disk;
        if goes_to_disk || is_disk {
            shard.wishes.open(step);
        }
        if !goes_to_disk {
            // The node that writes it was faster.
            match fate {
                Some(true) => shard.wishes.settle(step, Fate::OnDisk),
                Some(false) => {
                    shard.wishes.settle(step, Fate::Failed("it could not be written to disk".to_owned()))
                }
                None => {}
            }
        }
        if let Some(slot) = shard.slot_mut(taken) {
            slot.state = SlotState::Whole(held);
        }
        // While one step of several shards waits for the job, it must know what all of them have.
        let shard = self.shards.get(&id)?;
        let waits = shard.slots.iter().any(|slot| slot.disk() == Disk::Wished);
        let has_replicas = shard.facts.replicas > 0 && shard.facts.is_coordinated();
        self.must_tell_state |= waits || has_replicas;
        if let Some(identity) = self.identity_mut(connection) {
            identity.is_under_way = true;
        }
        Some((Reply::Done { queued: goes_to_disk }, Fds::None))
    }

    pub(super) fn on_abort(&mut self, connection: Connection, slot: u64) -> Option<Answer> {
        let client = self.clients.get(&connection)?;
        let (process, id) = (client.process, client.identity.as_ref()?.shard.clone());
        if self.shards.get_mut(&id)?.write_of(SlotId(slot), process).is_none() {
            return refuse(ErrorCode::NotYours, format!("slot {slot} is not being written by this client"));
        }
        self.abort_write(&id, process);
        Some((Reply::Done { queued: false }, Fds::None))
    }

    pub(super) fn identity_mut(&mut self, connection: Connection) -> Option<&mut Identity> {
        self.clients.get_mut(&connection)?.identity.as_mut()
    }

    pub(super) fn on_header_read(&mut self, id: SlotId, result: Result<Box<Header>, String>) {
        let Some((shard_id, shard)) = self.shards.iter_mut().find(|(_, shard)| shard.slot(id).is_some())
        else {
            return;
        };
        let shard_id = shard_id.clone();
        let Some(slot) = shard.slot_mut(id) else { return };
        let result = match result {
            Ok(header) => check(&header, &shard_id, slot, self.settings.epoch).map(|()| header),
            Err(error) => Err(error),
        };
        // Whatever is in it now: a load waits for this, and no save takes the slot before.
        let is_checked = std::mem::take(&mut slot.is_checked);
        match std::mem::replace(&mut slot.state, SlotState::Empty) {
            SlotState::Examined(write) => self.on_examined(&shard_id, id, *write, result),
            SlotState::Whole(held) if is_checked => {
                let result = match result {
                    Ok(header) if header.step != held.step => {
                        Err(format!("the slot of step {} contains step {}", held.step, header.step))
                    }
                    Ok(_) => Ok(()),
                    Err(error) => Err(error),
                };
                let step = held.step;
                match (&result, held.disk) {
                    (Err(_), Disk::No | Disk::Wished) => {}
                    // What is written fails by itself.
                    (Err(_), _) => slot.state = SlotState::Whole(Held { is_stale: true, ..held }),
                    (Ok(()), _) => slot.state = SlotState::Whole(held),
                }
                if let Err(error) = &result {
                    shard.wishes.settle_open(step, Fate::Failed(error.clone()));
                }
                self.on_load_checked(id, &result);
            }
            state => {
                slot.state = state;
                if is_checked {
                    let error =
                        "it was given up in the meantime: the step was saved again, or the round has ended";
                    self.on_load_checked(id, &Err(error.to_owned()));
                }
            }
        }
    }

    /// The writer died in the middle, or after its last byte.
    fn on_examined(
        &mut self,
        shard: &ShardId,
        slot: SlotId,
        write: Write,
        result: Result<Box<Header>, String>,
    ) {
        let order = self.next();
        let is_over = self.terms.as_ref().is_some_and(|terms| terms.round != write.saved_in);
        let held = match &result {
            Ok(header) if header.step == write.step => {
                let Write { step, saved_in, rank, world, .. } = write;
                let (path, disk, given_up, is_stale) = (String::new(), Disk::No, 0, false);
                Some(Held {
                    step,
                    saved_in,
                    order,
                    rank,
                    world,
                    path,
                    disk,
                    given_up,
                    is_stale,
                    is_fetched: false,
                })
            }
            // It died before its first byte.
            Ok(header) => write.previous.filter(|held| held.step == header.step),
            Err(_) => None,
        };
        // The round that runs was told what to restore without it.
        let held = held.filter(|held| !is_over && !held.is_stale);
        let known = self.dirs.get(&shard.dir);
        if let Some(mut held) = held
            && let Some(slot) = self.shards.get_mut(shard).and_then(|shard| shard.slot_mut(slot))
        {
            // The job may have said it while the slot was written.
            let said = known.map_or(0, |known| known.given_up(held.step, held.saved_in));
            held.given_up = held.given_up.max(said);
            slot.state = SlotState::Whole(held);
        }
        if write.inherits {
            self.pass_wish_on(shard);
        }
    }
}

impl Shard {
    /// What a process writes into a slot.
    fn write_of(&mut self, slot: SlotId, process: super::Process) -> Option<Write> {
        match &self.slot(slot)?.state {
            SlotState::Writing(write) if write.process == process => Some((**write).clone()),
            _ => None,
        }
    }
}

/// The header must be of this shard and this slot: the memory is the client's to write.
pub(super) fn check(header: &Header, shard: &ShardId, slot: &Slot, epoch: u64) -> Result<(), String> {
    let pairs = [
        ("shard", u64::from(shard.shard), u64::from(header.shard)),
        ("layout", slot.layout.id, header.layout_id),
        ("epoch", epoch, header.epoch),
    ];
    match pairs.into_iter().find(|(_, expected, found)| expected != found) {
        None => Ok(()),
        Some((what, expected, found)) => Err(format!("the header says {what} {found}; expected {expected}")),
    }
}

fn refuse_busy(busy: Busy) -> Answer {
    let text = match busy.persisting {
        Some(step) => format!(
            "step {step} is being written to disk, and the other slot has the newest step, which is needed until that \
             write ends"
        ),
        None => {
            "the only slot that could be taken is being read by another process, which must release what it has loaded"
                .to_owned()
        }
    };
    let refusal = Refusal { persisting: busy.persisting, ..Refusal::new(ErrorCode::Busy, text) };
    (Reply::Error(refusal), Fds::None)
}
