//! What the saver holds and does, for people and tests.

use super::{
    Saver,
    shard::{Disk, Shard, Slot, SlotState},
};
use crate::message::{ShardStatus, SlotStatus, Status};

impl Saver {
    pub(super) fn status(&self) -> Status {
        let count = |is: fn(Disk) -> bool| {
            let slots = self.shards.values().flat_map(|shard| &shard.slots);
            u32::try_from(slots.filter(|slot| is(slot.disk())).count()).unwrap_or(u32::MAX)
        };
        let shards = self.shards.iter().map(|(id, shard)| ShardStatus {
            id: id.clone(),
            n_shards: shard.facts.n_shards,
            replicated: shard.facts.replicated,
            format: shard.facts.format,
            slots: shard.slots.iter().map(slot_status).collect(),
            disk_step: self.disk_step(&id.dir),
            error: shard.error.clone(),
        });
        Status {
            round: self.terms.as_ref().map(|terms| terms.round),
            allowance: self.settings.allowance,
            used: self.shards.values().map(Shard::used).fold(0, u64::saturating_add),
            shards: shards.collect(),
            persisting: count(|disk| matches!(disk, Disk::Running(_) | Disk::Cancelled(_))),
            queued: count(|disk| matches!(disk, Disk::Wished | Disk::Ordered { .. })),
            bytes_per_second: self.bytes_per_second,
        }
    }
}

fn slot_status(slot: &Slot) -> SlotStatus {
    let (state, step) = match &slot.state {
        SlotState::Empty => ("empty", None),
        SlotState::Writing(write) => ("writing", Some(write.step)),
        SlotState::Examined(write) => ("examined", Some(write.step)),
        SlotState::Fetching(_) => ("fetching", None),
        SlotState::Whole(held) => {
            let state = match held.disk {
                Disk::No => "whole",
                Disk::Wished | Disk::Ordered { .. } => "queued",
                Disk::Running(_) | Disk::Cancelled(_) => "persisting",
            };
            (state, Some(held.step))
        }
    };
    let readers = u32::try_from(slot.pins.len()).unwrap_or(u32::MAX);
    SlotStatus { id: slot.id.0, bytes: slot.layout.bytes, state: state.to_owned(), step, readers }
}
