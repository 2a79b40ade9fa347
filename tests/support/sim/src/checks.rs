//! The invariants after every step.

use std::collections::{BTreeMap, BTreeSet};

use rules::{
    NodeId, NodeRank, Round,
    checkpoints::CheckpointReport,
    failure::Outcome,
    job::{Effect, Event, Log, NodeEnd, WorkersState},
    node::Terms,
    notice::{Notice, RestartDecision},
    push::Push,
    verdict::{JobFailure, JobVerdict},
    worker_group::{Effect as NodeEffect, Event as NodeEvent},
    world::{Assignment, World},
};

use crate::{
    clock::{ConnId, LifeId},
    network::Conn,
    node::Life,
    simulation::Simulation,
};

/// The assignments of one round, as they were sent.
#[derive(Debug)]
struct Book {
    first: Assignment,
    assignments: BTreeMap<NodeRank, (NodeId, Assignment)>,
}

/// What was seen so far, and must agree with later steps.
#[derive(Debug)]
pub(crate) struct Checks {
    limit: u32,
    books: BTreeMap<Round, Book>,
    /// How often each rank was charged.
    ledger: BTreeMap<NodeRank, u32>,
    /// Nodes that were charged since they last joined.
    charged: BTreeSet<NodeId>,
    /// Nodes that have acknowledged an assignment, or were taken over with one.
    taken: BTreeSet<NodeId>,
    verdict: Option<JobVerdict>,
    /// Masters without state that came after the first.
    pub(crate) memory: u64,
    /// Rounds that nodes have claimed to the master with this state. A lost state counts them from 0 again, so the
    /// address where the workers meet distinguishes two with one number.
    pub(crate) claimed: BTreeSet<(Round, (String, u16))>,
    /// Those that it knew when it sent its last assignments.
    pub(crate) known: BTreeSet<(Round, (String, u16))>,
    /// The state in which each of them began.
    pub(crate) begun: BTreeMap<(Round, (String, u16)), u64>,
    /// The step that counted when the nodes of a round were told what to restore, as the master knew.
    pub(crate) floors: BTreeMap<Round, Option<u64>>,
    committed: Option<u64>,
    last_world: Option<World>,
    /// The terms of that world.
    terms: Option<Terms>,
    is_success_checked: bool,
    /// Lives that were or will be started in addition to the first of each slot.
    pub(crate) replacements: usize,
    ports: u16,
    spawns: u64,
}

impl Checks {
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            limit,
            books: BTreeMap::new(),
            ledger: BTreeMap::new(),
            charged: BTreeSet::new(),
            taken: BTreeSet::new(),
            verdict: None,
            memory: 0,
            claimed: BTreeSet::new(),
            known: BTreeSet::new(),
            begun: BTreeMap::new(),
            floors: BTreeMap::new(),
            committed: None,
            last_world: None,
            terms: None,
            is_success_checked: false,
            replacements: 0,
            ports: 20_000,
            spawns: 0,
        }
    }

    /// A master without state begins.
    pub(crate) fn forget(&mut self) {
        let begun = std::mem::take(&mut self.begun);
        let Self { limit, memory, replacements, ports, spawns, .. } = *self;
        *self = Self { memory: memory + 1, begun, replacements, ports, spawns, ..Self::new(limit) };
    }

    pub(crate) fn next_port(&mut self) -> u16 {
        self.ports = self.ports.wrapping_add(1);
        self.ports
    }

    pub(crate) fn next_spawn(&mut self) -> u64 {
        self.spawns += 1;
        self.spawns
    }
}

impl Simulation {
    /// After every input of the master.
    pub(crate) fn check_turn(&mut self) {
        let Some(core) = &self.master.core else { return };
        let job = core.job();
        let unanswered = job.has_waiting() && job.deadline().is_none() && job.world().is_none();
        if unanswered {
            let messages = format!("a node waits and there is no deadline: {job:?}");
            return self.fail(|| messages);
        }
        if let Some(world) = job.world()
            && self.checks.last_world.as_ref().is_none_or(|last| last.round != world.round)
        {
            // A misfit that joined first has set them.
            let (world, terms) = (world.clone(), job.terms().unwrap_or(&self.plan.terms).clone());
            self.check_world(&world, &terms);
            self.checks.terms = Some(terms);
            self.checks.known = self.checks.claimed.clone();
            let place = (world.master_addr.clone(), world.master_port);
            self.checks.begun.entry((world.round, place)).or_insert(self.checks.memory);
            self.checks.last_world = Some(world);
        }
        let Some(core) = &self.master.core else { return };
        if core.job().verdict() == Some(&JobVerdict::Succeeded)
            && !std::mem::replace(&mut self.checks.is_success_checked, true)
            && let Some(world) = &self.checks.last_world
        {
            let is_done = |node: &NodeId| self.lives[Life::index_of(node)].done_well == Some(world.round);
            if let Some(undone) = world.members.iter().find(|member| !is_done(&member.node_id)) {
                let messages =
                    format!("success, and {} is not done in round {}", undone.node_id, world.round);
                self.fail(|| messages);
            }
        }
    }

    fn check_world(&mut self, world: &World, terms: &Terms) {
        let size = u32::try_from(world.members.len()).unwrap_or(u32::MAX);
        let is_sized = size >= terms.least() && size <= terms.max_nodes && size % terms.node_unit == 0;
        let distinct: BTreeSet<&NodeId> = world.members.iter().map(|member| &member.node_id).collect();
        if !is_sized || distinct.len() != world.members.len() {
            self.fail(|| format!("a world of {size} nodes, {} of them distinct", distinct.len()));
        }
    }

    /// Once a record is durable. Budgets only grow, by one for each loss, and not at all for an announced leave.
    pub(crate) fn check_budgets(&mut self, event: &Event, effects: &[Effect]) {
        if let Event::Joined(request) | Event::Resumed { request, .. } = event {
            self.checks.charged.remove(&request.node_id);
        }
        if let Event::CheckpointReported { report, .. } = event
            && let CheckpointReport::Committed { step, .. } | CheckpointReport::WrittenAlone { step, .. } =
                &**report
        {
            self.checks.committed = Some(*step);
        }
        if let Event::Hosted { round, .. } = event {
            let committed = self.checks.committed;
            self.checks.floors.entry(*round).or_insert(committed);
        }
        if let Event::AssignmentTaken { node, round } = event {
            let world = self.master.shadow.world();
            if world.is_some_and(|world| world.round == *round && world.node_rank_of(node).is_some()) {
                self.checks.taken.insert(node.clone());
            }
        }
        let is_announced = matches!(event, Event::NodeEnded { end: NodeEnd::Left { .. }, .. });
        let was_excluded = |node: &NodeId| {
            effects.iter().any(
                |effect| matches!(effect, Effect::Push { node: it, push: Push::Excluded(_) } if it == node),
            )
        };
        let mut charged = 0;
        let limit = self.checks.limit;
        for effect in effects {
            let Effect::Log(Log::Gone { node, losses, gone, .. }) = effect else { continue };
            // No rank is not rank 0.
            if node.rank.is_some() != losses.is_some() {
                self.fail(|| format!("{node} was charged {losses:?}: {event:?}"));
            }
            let (Some(rank), Some(losses)) = (node.rank, losses) else { continue };
            let before = self.checks.ledger.insert(rank, *losses).unwrap_or_default();
            match losses.checked_sub(before) {
                Some(0) if is_announced || gone.reason().starts_with("its workers had not ended") => {}
                Some(0) if self.is_assignment_perhaps_untaken(&node.node_id) => {}
                Some(1) if !is_announced || was_excluded(&node.node_id) => {
                    charged += 1;
                    if !self.checks.charged.insert(node.node_id.clone()) {
                        self.fail(|| format!("{node} was charged twice"));
                    }
                }
                _ => self
                    .fail(|| format!("the losses of rank {rank} went from {before} to {losses}: {event:?}")),
            }
            let verdict = self.master.shadow.verdict();
            if *losses > limit && !matches!(verdict, Some(JobVerdict::Failed(JobFailure::Exhausted { .. }))) {
                self.fail(|| format!("rank {rank} was lost {losses} times of {limit} and the job goes on"));
            }
        }
        for effect in effects {
            // If it comes back, it is a newcomer.
            if let Effect::Forget { node } = effect {
                self.checks.taken.remove(node);
            }
        }
        // A check may exclude several.
        let excluded = effects
            .iter()
            .filter(|effect| matches!(effect, Effect::Push { push: Push::Excluded(_), .. }))
            .count();
        if charged > usize::from(charges(event)) + excluded {
            self.fail(|| format!("{charged} losses were charged for {event:?}"));
        }
    }

    /// Whether the loss of a node need not be charged: it never acknowledged its assignment.
    fn is_assignment_perhaps_untaken(&self, node: &NodeId) -> bool {
        !self.checks.taken.contains(node)
    }

    /// Once a record is durable. A node that resumes receives what it has missed, or has missed nothing; one that
    /// joins is known from then on, or is refused.
    pub(crate) fn check_answer(&mut self, event: &Event, effects: &[Effect]) {
        let (request, claim) = match event {
            Event::Joined(request) => (request, None),
            Event::Resumed { request, claim } => (request, Some(claim)),
            _ => return,
        };
        let is_sent_away = effects.iter().any(|effect| match effect {
            Effect::Push { node, push: Push::Regroup { .. } }
            | Effect::Push { node, push: Push::JobEnd(_) }
            | Effect::Push { node, push: Push::Excluded(_) }
            | Effect::Refuse { node, .. } => *node == request.node_id,
            _ => false,
        });
        let job = &self.master.shadow;
        let is_answered = match claim {
            None => is_sent_away || job.knows(&request.node_id),
            Some(claim) => {
                let is_there = |world: &World| {
                    world.round == claim.round && world.node_rank_of(&request.node_id).is_some()
                };
                is_sent_away
                    || claim.workers_state == WorkersState::Stopping
                    || job.world().is_some_and(is_there)
                    // Rare, and not detectable in another way.
                    || format!("{job:?}").contains("phase: Restoring")
            }
        };
        // It gets the end with all others, when the root cause is there.
        let is_withheld = || format!("{job:?}").contains("withheld_until: Some");
        if !is_answered && !is_withheld() {
            let messages = format!("{event:?} was not answered: {effects:?}");
            self.fail(|| messages);
        }
    }

    /// Before the master's effect is carried out.
    pub(crate) fn check_effect(&mut self, effect: &Effect) {
        let Effect::Push { node, push: Push::Assigned(assignment) } = effect else { return };
        let terms = self.checks.terms.as_ref().unwrap_or(&self.plan.terms);
        let is_sized = assignment.nodes >= terms.least()
            && assignment.nodes <= terms.max_nodes
            && assignment.nodes % terms.node_unit == 0;
        let new = || Book { first: assignment.clone(), assignments: BTreeMap::new() };
        let book = self.checks.books.entry(assignment.round).or_insert_with(new);
        let world = |it: &Assignment| {
            (it.nodes, it.world_size, it.role_world_size, it.master_addr.clone(), it.master_port)
        };
        let is_same_world = world(&book.first) == world(assignment);
        let known = book.assignments.insert(assignment.node_rank, (node.clone(), assignment.clone()));
        let is_same_assignment = known.is_none_or(|known| known == (node.clone(), assignment.clone()));
        let below =
            assignment.node_rank.0.checked_sub(1).and_then(|below| book.assignments.get(&NodeRank(below)));
        let is_dense =
            below.is_none_or(|(_, it)| it.first_rank + it.local_world_size == assignment.first_rank);
        let is_last = assignment.node_rank.0 + 1 == assignment.nodes;
        let is_full =
            !is_last || assignment.first_rank + assignment.local_world_size == assignment.world_size;
        let is_first = assignment.node_rank.0 != 0 || assignment.first_rank == 0;
        // Each node once: a second assignment of a node in the round is found in small worlds only.
        let is_once =
            !self.is_thorough || book.assignments.values().filter(|(holder, _)| holder == node).count() == 1;
        let holds = [
            (is_sized, "of a wrong size"),
            (is_same_world, "not the world of the others"),
            (is_same_assignment, "another's, or changed"),
            (assignment.node_rank.0 < assignment.nodes, "beyond the last"),
            (is_dense && is_full && is_first, "with ranks that do not fit its neighbour's"),
            (is_once, "its second in this round"),
        ];
        if let Some((_, messages)) = holds.into_iter().find(|(holds, _)| !holds) {
            self.fail(|| format!("the assignment of {node} is {messages}: {assignment:?}"));
        }
        // A round that is far behind does not appear again.
        while self.checks.books.len() > 64 {
            self.checks.books.pop_first();
        }
    }

    /// Before the master's message is delivered to the node.
    pub(crate) fn check_push(&mut self, conn: ConnId, event: &NodeEvent) {
        let Conn { life, memory, .. } = self.conns[conn];
        // A node that was frozen may receive the last messages of a master that is forgotten.
        if let NodeEvent::Pushed(Push::JobEnd(verdict)) = event
            && memory == self.checks.memory
        {
            let node = &self.lives[life].id;
            match &self.checks.verdict {
                Some(told) if told != verdict => {
                    let messages = format!("{node} hears {verdict:?}, another heard {told:?}");
                    self.fail(|| messages);
                }
                Some(_) => {}
                None => self.checks.verdict = Some(verdict.clone()),
            }
        }
    }

    /// Before the node's effect is carried out.
    pub(crate) fn check_node_effect(&mut self, life: LifeId, effect: &NodeEffect) {
        let max_restarts = self.plan.max_restarts;
        let it = &mut self.lives[life];
        match effect {
            NodeEffect::Notify(Notice::WorkerFailed { then, .. }) => {
                it.is_counted = matches!(then, RestartDecision::Restart { .. });
                it.own_failures += u32::from(it.is_counted);
            }
            NodeEffect::Notify(Notice::Secondary { .. }) => {
                it.own_failures -= u32::from(std::mem::take(&mut it.is_counted));
            }
            NodeEffect::Prepare { assignment, attempt } => {
                let before = it.last_round.replace(assignment.round);
                let (own_failures, id) = (it.own_failures, it.id.clone());
                if before.is_some_and(|before| before >= assignment.round) {
                    self.fail(|| format!("{id} was assigned to {before:?} and then in {}", assignment.round));
                }
                if attempt.0 != own_failures || attempt.0 > max_restarts {
                    self.fail(|| {
                        format!("{id} failed {own_failures} times of {max_restarts}, attempt {attempt}")
                    });
                }
            }
            NodeEffect::Spawn { .. } | NodeEffect::Finish { .. } if it.workers.is_some() => {
                let messages = format!("{} has workers of round {:?} and {effect:?}", it.id, it.last_round);
                self.fail(|| messages);
            }
            NodeEffect::Finish { outcome: Outcome::Succeeded }
                if it.done_well.is_none() && it.heard != Some(JobVerdict::Succeeded) =>
            {
                let messages = format!("{} succeeded without having done anything", it.id);
                self.fail(|| messages);
            }
            _ => {}
        }
    }

    /// A store is opened for a round: no worker of another round may use it.
    pub(crate) fn check_store(&mut self, life: LifeId, round: Round, port: u16) {
        if !self.is_thorough {
            return;
        }
        let slot = self.lives[life].slot;
        let here = (format!("10.0.{}.{}", slot / 250, slot % 250), port);
        let old = self.lives.iter().find_map(|it| {
            let workers = it.workers.as_ref()?;
            (workers.endpoint == here && workers.round != round).then_some((it.id.clone(), workers.round))
        });
        if let Some((node, other)) = old {
            self.fail(|| {
                format!("the store of round {round} opens where workers of {node} still are in round {other}")
            });
        }
    }

    /// Workers were started: no member of the running round may have workers of another one.
    pub(crate) fn check_running(&mut self, life: LifeId) {
        if !self.is_thorough {
            return;
        }
        let Some(world) = self.master.core.as_ref().and_then(|core| core.job().world()) else { return };
        let round = world.round;
        let members = world.members.iter().map(|member| Life::index_of(&member.node_id));
        let other = members
            .into_iter()
            .find(|member| self.lives[*member].workers.as_ref().is_some_and(|workers| workers.round < round));
        if let Some(other) = other {
            let messages = format!(
                "{} starts workers while {}, a member of round {round}, has workers of {:?}",
                self.lives[life].id, self.lives[other].id, self.lives[other].last_round
            );
            self.fail(|| messages);
        }
    }
}

/// Whether an event may cost a rank one of its replacements.
fn charges(event: &Event) -> bool {
    match event {
        Event::NodeLost { .. }
        | Event::WorkersFailed { gives_up: true, .. }
        | Event::NodeEnded { end: NodeEnd::Failed { .. }, .. }
        // A replacement takes the place of a node whose stream is broken.
        | Event::Joined(_)
        | Event::Resumed { .. }
        // A host that opens no store, or the end of a check.
        | Event::CheckReported { .. }
        | Event::CheckProgressed { .. }
        | Event::Deadline => true,
        Event::Subscribed { .. }
        | Event::LinkBroken { .. }
        | Event::TopologyRead(_)
        | Event::InventoryReported { .. }
        | Event::Hosted { .. }
        | Event::AssignmentTaken { .. }
        | Event::WorkersFailed { gives_up: false, .. }
        | Event::FailureDetailed { .. }
        | Event::NodeEnded { .. }
        | Event::EndAcknowledged { .. }
        | Event::WorkersGone { .. }
        | Event::TrainingStalled { .. }
        | Event::TrainingAdvanced
        | Event::SlowRank { .. }
        | Event::StacksSent { .. }
        | Event::CheckpointReported { .. }
        | Event::HangJudged { .. }
        | Event::Restarted => false,
    }
}
