//! Slots that other nodes fetch. A save never waits for them: it takes the slot, and they get nothing.

use super::{
    Saver,
    api::{Effect, SendId, Sent},
};
use crate::message::{Endpoint, ShardId};

/// Slots that are sent at the same time: more only make each of them slower.
pub const MAX_SENDS: usize = 16;

impl Saver {
    /// In a round of several nodes others may need what is here.
    pub(super) fn listen(&mut self) {
        let has_others = self.terms.as_ref().is_some_and(super::rounds::Terms::has_others);
        if has_others && !std::mem::replace(&mut self.is_listening, true) {
            self.effects.push(Effect::Listen);
        }
    }

    pub(super) fn on_listening(&mut self, result: Result<Endpoint, String>) {
        match result {
            Ok(endpoint) => self.endpoint = Some(endpoint),
            Err(error) => self.warn(format!(
                "cannot listen for other nodes: {error}; they cannot restore from the memory of this one"
            )),
        }
    }

    pub(super) fn on_asked(&mut self, send: SendId, id: &ShardId, step: u64, layout: (u64, u64)) {
        match self.sent(send, id, step, layout) {
            Ok((slot, sent)) => self.effects.push(Effect::Send { send, slot, sent }),
            Err(reason) => self.effects.push(Effect::RefuseSend { send, reason }),
        }
    }

    fn sent(
        &mut self,
        send: SendId,
        id: &ShardId,
        step: u64,
        (layout_id, bytes): (u64, u64),
    ) -> Result<(super::SlotId, Sent), String> {
        if self.ending.is_some() {
            return Err("the saver is about to exit, because the run is ending".to_owned());
        }
        let sends = self.shards.values().flat_map(|shard| &shard.slots).map(|slot| slot.sends.len());
        if sends.sum::<usize>() >= MAX_SENDS {
            return Err(format!("{MAX_SENDS} shards are being sent, the maximum"));
        }
        let missing = || format!("step {step} of shard {} is not in memory", id.shard);
        let shard = self.shards.get_mut(id).ok_or_else(missing)?;
        let format = shard.facts.format;
        let slot = shard.of_step(step).map(|slot| slot.id).ok_or_else(missing)?;
        let slot = shard.slot_mut(slot).ok_or_else(missing)?;
        let held = slot.held().filter(|held| !held.is_stale).ok_or_else(missing)?;
        if (slot.layout.id, slot.layout.bytes) != (layout_id, bytes) {
            return Err(format!(
                "step {step} has {} bytes of layout {}, not {bytes} of layout {layout_id}",
                slot.layout.bytes, slot.layout.id
            ));
        }
        let sent = Sent {
            step,
            saved_in: held.saved_in,
            rank: held.rank,
            world: held.world,
            format,
            path: held.path.clone(),
        };
        slot.sends.insert(send);
        Ok((slot.id, sent))
    }

    pub(super) fn on_send_ended(&mut self, send: SendId) {
        let slots = self.shards.values_mut().flat_map(|shard| &mut shard.slots);
        for slot in slots {
            slot.sends.remove(&send);
        }
    }
}
