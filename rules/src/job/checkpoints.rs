//! Checkpoints that nodes have in memory: what nodes report goes to [`checkpoint::job`], and its orders to the nodes.

use checkpoint::{
    job::{self, JobCheckpoints, SAVE_TIMEOUT_MS},
    message::{Dir, RestorePoint, ShardState},
};

use super::{Effect, Job, Log, Phase};
use crate::{
    checkpoints::CheckpointReport,
    ids::{NodeId, Round},
    node::is_loopback,
    push::Push,
    world::{Member, reachable_address},
};
use diagnosis::moment::Moment;

/// What the checkpoints decided.
type Decided = Vec<job::Effect<NodeId>>;

impl Job {
    pub(super) fn on_checkpoint_reported(
        &mut self,
        now: Moment,
        node: &NodeId,
        report: CheckpointReport,
    ) -> Vec<Effect> {
        // Of a node that is neither in the job nor has left it with checkpoints to write, nothing is known, but for
        // what is on disk: one that comes back says that before it joins, since a round may begin with that.
        let is_on_disk = matches!(report, CheckpointReport::WrittenAlone { .. });
        if !self.nodes.contains_key(node) && !self.savers.contains(node) && !is_on_disk {
            return match (report, &self.checkpoints) {
                (CheckpointReport::InMemory { shards, last: true }, Some(checkpoints)) => {
                    effects_of(checkpoints.refuse(node, &shards))
                }
                _ => Vec::new(),
            };
        }
        let at = millis(now);
        let decided = match report {
            CheckpointReport::Kept => {
                self.on_saver_started(node);
                self.checkpoints().repeat(node)
            }
            // Of a member whose workers are being stopped, it comes with its next request to join; one that ends, and has
            // something to write, makes none.
            CheckpointReport::InMemory { shards, last }
                if self.is_stopping(node) && !(last && wants_disk(&shards)) =>
            {
                Vec::new()
            }
            CheckpointReport::InMemory { shards, last } => {
                if last {
                    self.savers.said_last(node);
                }
                let checkpoints = self.checkpoints();
                let mut decided = checkpoints.on_state(at, node, shards);
                decided.extend(checkpoints.repeat_failures(node));
                decided
            }
            CheckpointReport::Persisted { dir, step, saved_in, given_up, shard } => {
                self.checkpoints().on_persisted(at, node, &dir, step, (saved_in, given_up), *shard)
            }
            CheckpointReport::Committed { dir, step } => {
                self.checkpoints().on_committed(at, node, &dir, step)
            }
            CheckpointReport::WrittenAlone { dir, step, round } => {
                self.checkpoints().on_written_alone(at, &dir, step, round)
            }
            CheckpointReport::Failed { dir, step, shard, saved_in, reason } => {
                self.checkpoints().on_failed(at, node, &dir, step, shard, saved_in, &reason)
            }
            CheckpointReport::FetchFailed { dir, step, shard, reason } => {
                self.checkpoints().on_fetch_failed(at, node, &dir, step, shard, &reason)
            }
            CheckpointReport::Closed => {
                let checkpoints = self.checkpoints.as_mut();
                let decided = checkpoints.map(|it| it.on_saver_gone(at, node)).unwrap_or_default();
                let mut effects = effects_of(decided);
                effects.extend(self.on_saver_closed(node));
                effects.extend(self.checkpoints_end(now));
                return effects;
            }
        };
        let mut effects = effects_of(decided);
        effects.extend(self.checkpoints_end(now));
        effects
    }

    /// The job is over: once all savers have said what they have, none waits for what others do not have.
    pub(super) fn checkpoints_end(&mut self, now: Moment) -> Vec<Effect> {
        let is_over = matches!(self.phase, Phase::Over { .. }) && self.savers.have_said_last();
        match &mut self.checkpoints {
            Some(checkpoints) if is_over => effects_of(checkpoints.end(millis(now))),
            _ => Vec::new(),
        }
    }

    /// The round is over, and the node has not joined again yet.
    fn is_stopping(&self, node: &NodeId) -> bool {
        matches!(&self.phase, Phase::Gathering { awaited, .. } if awaited.contains(node))
    }

    /// A node joins with what it has in memory.
    pub(super) fn memory_joined(
        &mut self,
        now: Moment,
        node: &NodeId,
        shards: Vec<ShardState>,
    ) -> Vec<Effect> {
        if shards.is_empty() && self.checkpoints.is_none() {
            return Vec::new();
        }
        effects_of(self.checkpoints().on_state(millis(now), node, shards))
    }

    /// A node is gone for good, and what it had in memory with it.
    pub(super) fn memory_gone(&mut self, now: Moment, node: &NodeId) -> Vec<Effect> {
        let Some(checkpoints) = &mut self.checkpoints else { return Vec::new() };
        effects_of(checkpoints.on_gone(millis(now), node))
    }

    /// A round is over, and all its members will say what they have in memory.
    pub(super) fn memory_round_ends(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.end_round();
        }
    }

    /// A round begins: what its workers restore, and what is to be written first.
    pub(super) fn memory_round_begins(
        &mut self,
        now: Moment,
        round: Round,
        members: &[Member],
    ) -> (Vec<RestorePoint>, Vec<Effect>) {
        let Some(checkpoints) = &mut self.checkpoints else { return (Vec::new(), Vec::new()) };
        let (members, world) = with_ranks(members);
        let has_left = |node: &&NodeId| !members.iter().any(|member| member.node == **node);
        let left = self.savers.nodes().filter(has_left);
        let mut decided: Decided = left.flat_map(|node| checkpoints.leave_behind(node)).collect();
        let (points, begun) = checkpoints.begin_round(millis(now), round.0, world, members);
        decided.extend(begun);
        (points, effects_of(decided))
    }

    /// A round runs already, as its nodes say: its workers have restored what they were told to.
    pub(super) fn memory_of_running_round(&mut self, round: Round, members: &[Member]) {
        let (members, _) = with_ranks(members);
        self.checkpoints().take_over(round.0, members);
    }

    /// The newest step of a directory that is complete on disk, as far as is known.
    #[must_use]
    pub fn step_on_disk(&self, dir: &Dir) -> Option<u64> {
        self.checkpoints.as_ref()?.committed(dir)
    }

    pub(super) fn checkpoint_deadline(&self) -> Option<Moment> {
        let deadline = self.checkpoints.as_ref().filter(|_| self.has_checkpoint_work())?.deadline()?;
        Some(Moment::at_millis(deadline.0))
    }

    pub(super) fn on_checkpoint_deadline(&mut self, now: Moment) -> Vec<Effect> {
        if self.checkpoint_deadline().is_none_or(|due| now < due) {
            return Vec::new();
        }
        effects_of(self.checkpoints().on_deadline(millis(now)))
    }

    /// Of a job that has ended, only nodes that still write have a part in it.
    fn has_checkpoint_work(&self) -> bool {
        !matches!(self.phase, Phase::Over { .. }) || self.savers.nodes().next().is_some()
    }

    fn checkpoints(&mut self) -> &mut JobCheckpoints<NodeId> {
        let saves_at_breakpoint = self.terms.as_ref().is_some_and(|terms| terms.save_at_breakpoint);
        self.checkpoints.get_or_insert_with(|| {
            let mut checkpoints = JobCheckpoints::new(SAVE_TIMEOUT_MS, saves_at_breakpoint);
            if let Phase::Running { world, .. } = &self.phase {
                checkpoints.take_over(world.round.0, with_ranks(&world.members).0);
            }
            checkpoints
        })
    }
}

/// And the number of ranks.
fn with_ranks(members: &[Member]) -> (Vec<job::Member<NodeId>>, u32) {
    let mut world = 0_u32;
    let is_local_job = members.iter().all(|member| is_loopback(&member.address));
    let members = members.iter().map(|member| {
        let (node, local_world_size) = (member.node_id.clone(), member.local_world_size);
        let address = reachable_address(&member.address, &member.addresses, is_local_job);
        let is_void = member.restore_from_disk;
        let member = job::Member { node, first_rank: world, local_world_size, address, is_void };
        world = world.saturating_add(local_world_size);
        member
    });
    (members.collect(), world)
}

fn millis(now: Moment) -> checkpoint::Moment {
    checkpoint::Moment(u64::try_from(now.since_start().as_millis()).unwrap_or(u64::MAX))
}

fn effects_of(decided: Decided) -> Vec<Effect> {
    let effect = |effect| match effect {
        job::Effect::Send { node, order } => Effect::Push { node, push: Push::Checkpoint(order) },
        job::Effect::Note(note) => Effect::Log(Log::Checkpoint(note)),
    };
    decided.into_iter().map(effect).collect()
}

fn wants_disk(shards: &[ShardState]) -> bool {
    shards.iter().any(|shard| !shard.wishes.is_empty())
}
