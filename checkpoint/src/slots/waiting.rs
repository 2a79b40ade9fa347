//! Waits for a step on disk.

use super::{
    Saver,
    api::{Connection, Fds},
    client::Pending,
    clients::Answer,
    shard::{Shard, SlotState},
    wishes::Fate,
};
use crate::{
    Moment,
    message::{Dir, Reply, ShardId, WaitState},
};

impl Saver {
    /// The newest step of a client's shard that was to go to disk.
    pub(super) fn newest_wish(&self, connection: Connection) -> Option<u64> {
        let identity = self.clients.get(&connection)?.identity.as_ref()?;
        self.shards.get(&identity.shard)?.wishes.last()
    }

    pub(super) fn advance_wait(
        &mut self,
        connection: Connection,
        step: Option<u64>,
        follows: bool,
        until: Moment,
    ) -> (Option<Pending>, Option<Answer>) {
        let identity = self.clients.get(&connection).and_then(|client| client.identity.as_ref());
        let Some(id) = identity.map(|identity| identity.shard.clone()) else { return (None, None) };
        let (step, fate) = match step {
            // Nothing was to go to disk: nothing is missing there.
            None => (self.disk_step(&id.dir), Some((WaitState::OnDisk, None))),
            Some(step) if follows => {
                let (step, fate) = self.fate_of_last(&id, step);
                (Some(step), fate)
            }
            Some(step) => (Some(step), self.fate_of(&id, step)),
        };
        let fate = fate.or_else(|| (self.now >= until).then_some((WaitState::Timeout, None)));
        let answer = fate.map(|(state, error)| (Reply::Waited { state, step, error }, Fds::None));
        (Some(Pending::Wait { step, follows, until }), answer)
    }

    /// Like [`Saver::fate_of`], of the step that took the place of a step, if one did.
    fn fate_of_last(&self, id: &ShardId, step: u64) -> (u64, Option<(WaitState, Option<String>)>) {
        let fate = self.fate_of(id, step);
        let Some(shard) = self.shards.get(id) else { return (step, fate) };
        if !matches!(fate, Some((WaitState::Superseded, _))) {
            return (step, fate);
        }
        match shard.wishes.last() {
            _ if shard.has_heir() => (step, None),
            Some(last) if last != step => (last, self.fate_of(id, last)),
            _ => match self.newest_counted(&id.dir).filter(|newest| *newest > step) {
                Some(newest) => (newest, Some((WaitState::OnDisk, None))),
                None => (step, fate),
            },
        }
    }

    /// The newest step on disk, as far as it is known.
    pub(super) fn disk_step(&self, dir: &Dir) -> Option<u64> {
        self.dirs.get(dir).and_then(super::folders::Known::step)
    }

    /// The newest step that has come to count in this run, as far as it is known.
    pub(super) fn newest_counted(&self, dir: &Dir) -> Option<u64> {
        self.dirs.get(dir)?.newest_before(u64::MAX)
    }

    /// What became of a step that a client waits for; `None`: it is still on its way to disk.
    fn fate_of(&self, id: &ShardId, step: u64) -> Option<(WaitState, Option<String>)> {
        let counts = self.dirs.get(&id.dir).is_some_and(|known| known.has(step));
        let shard = self.shards.get(id);
        match shard.and_then(|shard| shard.wishes.fate(step)) {
            Some(Fate::Open) => None,
            Some(Fate::OnDisk) => Some((WaitState::OnDisk, None)),
            Some(Fate::Failed(reason)) => Some((WaitState::Failed, Some(reason.clone()))),
            Some(Fate::Superseded) => Some((WaitState::Superseded, None)),
            None if counts => Some((WaitState::OnDisk, None)),
            None => {
                let is_held = shard.is_some_and(|shard| shard.of_step(step).is_some());
                let text = if is_held {
                    format!("step {step} was saved into memory only; save it with StorageType.DISK")
                } else {
                    format!("step {step} is neither in memory nor in {}", id.dir)
                };
                Some((WaitState::Failed, Some(text)))
            }
        }
    }
}

impl Shard {
    /// A save is under way that goes to disk in place of another one.
    pub(super) fn has_heir(&self) -> bool {
        self.slots.iter().any(|slot| match &slot.state {
            SlotState::Writing(write) | SlotState::Examined(write) => write.inherits,
            _ => false,
        })
    }
}
