//! The end of the saver: what is to go to disk goes there first, within the time that is given.

use super::{
    Saver,
    api::{Connection, Effect, Fds},
    client::Pending,
    clients::{Answer, refuse},
    shard::{Disk, Shard, Slot},
};
use crate::{
    Moment,
    message::{ErrorCode, FromSaver, Level, Reply, WaitState},
};

/// How long a write may take whose launcher is gone.
const ORPHAN_MS: u64 = 5_000;

/// Why and until when.
#[derive(Debug)]
pub(super) struct Ending {
    until: Moment,
    /// The launcher is gone: what runs may end, and nothing else starts.
    is_abandoned: bool,
    is_over: bool,
}

impl Ending {
    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) const fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    pub(super) const fn until(&self) -> Moment {
        self.until
    }
}

impl Saver {
    pub(super) fn on_finish(&mut self, grace_ms: u64, also_memory: bool) {
        let until = self.now.plus(grace_ms);
        if let Some(ending) = &mut self.ending {
            ending.until = ending.until.min(until);
            return;
        }
        self.ending = Some(Ending { until, is_abandoned: false, is_over: false });
        if also_memory {
            self.order_newest();
        }
        self.must_tell_state = true;
        self.foretell(grace_ms);
    }

    /// Has the newest whole step of each shard written that is not on disk.
    fn order_newest(&mut self) {
        let ids: Vec<_> = self.shards.keys().cloned().collect();
        for id in ids {
            let turn = self.next();
            let has = |step: u64| self.dirs.get(&id.dir).is_some_and(|known| known.has(step));
            let Some(shard) = self.shards.get(&id).filter(|shard| shard.writes_disk) else { continue };
            let Some(newest) = shard.newest() else { continue };
            let is_wanted = newest.held().is_some_and(|held| {
                held.disk == Disk::No
                    && !has(held.step)
                    && !shard.reports.iter().any(|report| report.step == held.step)
            });
            let slot = newest.id;
            let Some(shard) = self.shards.get_mut(&id).filter(|_| is_wanted) else { continue };
            let disk = if shard.facts.is_coordinated() { Disk::Wished } else { Disk::Ordered { turn } };
            let Some(held) = shard.slot_mut(slot).and_then(Slot::held_mut) else { continue };
            held.disk = disk;
            let step = held.step;
            shard.wishes.open(step);
        }
    }

    /// Says how much is to be written to disk before the saver exits, and warns if the time is too short.
    fn foretell(&mut self, grace_ms: u64) {
        let of_shard = |shard: &Shard| {
            let waits = shard.slots.iter().filter(|slot| slot.disk() != Disk::No);
            waits.map(|slot| slot.layout.bytes).fold(0, u64::saturating_add)
        };
        let bytes = self.shards.values().map(of_shard).fold(0, u64::saturating_add);
        if bytes == 0 {
            return;
        }
        let rate = self.bytes_per_second.filter(|rate| *rate > 0);
        let needed = rate.map(|rate| bytes.saturating_mul(1000) / rate);
        let mib = |bytes: u64| bytes >> 20;
        let (level, rest) = match (rate, needed) {
            (Some(rate), Some(needed)) if needed > grace_ms => (
                Level::Warn,
                format!(
                    "; at {} MiB/s, the rate of the last write, that takes {} s, and the limit is {} s: some \
                     of it may not be written in time",
                    mib(rate),
                    needed.div_ceil(1000),
                    grace_ms / 1000
                ),
            ),
            _ => (Level::Info, format!(", within {} s", grace_ms / 1000)),
        };
        self.log(
            level,
            &format!("writing {} MiB of checkpoints to disk before the saver exits{rest}", mib(bytes)),
        );
    }

    pub(super) fn on_agent_gone(&mut self) {
        let until = self.now.plus(ORPHAN_MS);
        let until = self.ending.as_ref().map_or(until, |ending| ending.until.min(until));
        self.ending = Some(Ending { until, is_abandoned: true, is_over: false });
    }

    pub(super) fn end_if_done(&mut self) {
        let Some(ending) = &self.ending else { return };
        let is_done = if ending.is_abandoned { self.running.is_empty() } else { !self.has_writes_left() };
        if !is_done && self.now < ending.until {
            return;
        }
        if !is_done && !ending.is_abandoned {
            self.warn(
                "timed out before all steps were written to disk; the next run loads the newest step that is \
                 complete there"
                    .to_owned(),
            );
        }
        let pending: Vec<Connection> = self.clients.keys().copied().collect();
        for connection in pending {
            self.answer_last(connection);
        }
        self.tell(FromSaver::Finished {});
        self.effects.push(Effect::Exit);
        if let Some(ending) = &mut self.ending {
            ending.is_over = true;
        }
    }

    /// Answers a request that still waits when the saver exits.
    fn answer_last(&mut self, connection: Connection) {
        let text = "the saver exits, because the run has ended";
        let Some(client) = self.clients.get_mut(&connection) else { return };
        let answer: Option<Answer> = match client.pending.take() {
            None => return,
            Some(Pending::Wait { step, .. }) => {
                let (state, error) = (WaitState::Failed, Some(text.to_owned()));
                Some((Reply::Waited { state, step, error }, Fds::None))
            }
            Some(_) => refuse(ErrorCode::Closing, text),
        };
        if let Some(answer) = answer {
            self.answer(connection, answer);
        }
    }
}
