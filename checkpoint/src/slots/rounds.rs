//! What the agent says: rounds, the end of their workers, and what the job wants on disk.

use std::{collections::BTreeMap, ops::Range};

use super::{Saver, api::Connection, client::Client, shard::Shard};
use crate::{
    Moment,
    message::{Dir, FromSaver, RestorePoint, ShardId, ShardState, ToSaver},
};

/// How long the agent waits for what is in memory after the end of all workers. Their pidfds are readable by then.
const GONE_MS: u64 = 5_000;

/// Directories of a round's restore points at most.
const MAX_POINTS: usize = super::folders::MAX_DIRS;

/// A round.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) round: u32,
    pub(super) world: u32,
    first_rank: u32,
    local_world_size: u32,
    pub(super) restore: BTreeMap<Dir, RestorePoint>,
}

impl Terms {
    /// The ranks of this node.
    pub(super) const fn ranks(&self) -> Range<u32> {
        self.first_rank..self.first_rank.saturating_add(self.local_world_size)
    }

    /// The round has other nodes.
    pub(super) const fn has_others(&self) -> bool {
        self.world > self.local_world_size
    }
}

/// The agent waits for the state after the end of a round.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) until: Moment,
}

impl Saver {
    pub(super) fn on_agent(&mut self, message: ToSaver) {
        match message {
            ToSaver::Round { round, world, first_rank, local_world_size, restore, memory_is_void } => {
                let restore = restore.into_iter().take(MAX_POINTS).map(|point| (point.dir.clone(), point));
                let terms = Terms { round, world, first_rank, local_world_size, restore: restore.collect() };
                self.on_round(terms, memory_is_void);
            }
            ToSaver::WorkersGone { round } => self.on_workers_gone(round),
            ToSaver::Commit { dir, step, manifest } => self.on_commit(dir, step, manifest),
            ToSaver::Committed { dir, step } => {
                self.remove_obsolete(&dir, step);
                self.on_committed(&dir, step);
            }
            ToSaver::Persist { dir, step, replicas } => self.on_persist_order(&dir, step, &replicas),
            ToSaver::Fail { dir, step, saved_in, given_up, reason } => {
                self.on_fail(&dir, step, (saved_in, given_up), &reason);
            }
            ToSaver::Fetch { .. } | ToSaver::Fetched { .. } | ToSaver::NotFetched { .. } => {
                self.on_fetch_order(message);
            }
            ToSaver::Report {} => self.report_again(),
            ToSaver::Finish { grace_ms, also_memory } => self.on_finish(grace_ms, also_memory),
        }
    }

    /// The round that runs. Before the first one it is later than any: what the job says then is of the round to come.
    pub(super) fn round(&self) -> u32 {
        self.terms.as_ref().map_or(u32::MAX, |terms| terms.round)
    }

    fn on_round(&mut self, terms: Terms, memory_is_void: bool) {
        if self.terms.as_ref().is_some_and(|known| known.round == terms.round) {
            // Said again after the agent has lost its master.
            return;
        }
        self.is_between_rounds = false;
        let (round, ranks) = (terms.round, terms.ranks());
        let is_stale = |client: &Client| client.identity.as_ref().is_some_and(|it| it.round != round);
        let stale = self.clients.iter().filter(|(_, client)| is_stale(client));
        let stale: Vec<Connection> = stale.map(|(connection, _)| *connection).collect();
        for connection in stale {
            self.close(connection);
        }
        self.cancel_fetches(None);
        for (id, shard) in &mut self.shards {
            let is_moved = !shard.facts.replicated && !ranks.contains(&shard.facts.rank);
            let is_void = memory_is_void && !shard.facts.replicated;
            let point = terms.restore.get(&id.dir).filter(|_| !is_void);
            let last = point.and_then(|point| point.newest_in_memory(Some(terms.first_rank)));
            let keeps = |held: &super::shard::Held| last.is_some_and(|last| held.step <= last);
            let reason = "its round ended before all shards of the step were in memory";
            shard.void(keeps, reason);
            // Of a copy that another node writes, what all ranks have, or what they wait for.
            let awaited = terms.restore.get(&id.dir).map(|point| point.pending.unwrap_or(point.step));
            let here: Vec<u64> = shard.on_their_way().map(|held| held.step).collect();
            let comes = |step: u64| here.contains(&step) || awaited.is_some_and(|awaited| step <= awaited);
            shard.wishes.begin_round(comes, reason);
            // Of a shard that was still to be fetched not even the rank is known.
            let is_unknown = shard.facts.world == 0;
            shard.is_leaving = is_unknown || is_moved && (!shard.is_replica || is_void);
            shard.is_replica &= is_moved || is_unknown;
            let pins = &self.clients;
            for slot in &mut shard.slots {
                slot.pins.retain(|connection, _| pins.contains_key(connection));
            }
        }
        // Another node may write the directories in this round, or have written them.
        for known in self.dirs.values_mut() {
            known.begin_round(round);
        }
        self.terms = Some(terms);
        self.listen();
        self.fetch_points();
        self.take_up_early();
    }

    fn on_workers_gone(&mut self, round: u32) {
        self.is_between_rounds = true;
        if self.terms.as_ref().is_none_or(|terms| terms.round != round) {
            self.tell_state();
            return;
        }
        for shard in self.shards.values_mut() {
            for slot in &mut shard.slots {
                slot.pins.clear();
            }
        }
        self.gone = Some(Gone { until: self.now.plus(GONE_MS) });
    }

    /// Answers `workers_gone` once every slot is known to be whole or not.
    pub(super) fn answer_gone(&mut self) {
        let Some(gone) = &self.gone else { return };
        let mut slots = self.shards.values().flat_map(|shard| &shard.slots);
        if self.now < gone.until && slots.any(super::shard::Slot::is_written) {
            return;
        }
        self.gone = None;
        self.must_tell_state = true;
    }

    pub(super) fn tell_state(&mut self) {
        // Of a shard that was never here, nothing is known before it is fetched.
        let known = self.shards.iter().filter(|(_, shard)| !shard.is_leaving && shard.facts.world > 0);
        let round = self.terms.as_ref().map(|terms| terms.round);
        let state = |(id, shard): (&ShardId, &Shard)| {
            let awaits_fetches = self.restore_point(&id.dir).is_some_and(|point| point.fetched.is_some());
            shard.state(id, self.disk_step(&id.dir), self.endpoint.clone(), (round, awaits_fetches))
        };
        let shards: Vec<ShardState> = known.map(state).collect();
        self.tell(FromSaver::State { round, shards });
    }

    fn report_again(&mut self) {
        self.must_tell_state = true;
        let reports =
            self.shards.iter().flat_map(|(id, shard)| shard.reported(id).map(|(_, message)| message));
        let reports: Vec<FromSaver> = reports.collect();
        reports.into_iter().for_each(|report| self.tell(report));
    }

    /// Steps that are on their way to disk, or wait for the job.
    pub(super) fn has_writes_left(&self) -> bool {
        let is_left =
            |shard: &super::shard::Shard| !shard.reports.is_empty() || shard.on_their_way().next().is_some();
        self.shards.values().any(is_left) || self.dirs.values().any(super::folders::Known::is_committing)
    }
}
