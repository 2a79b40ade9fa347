//! Nodes join, a round is completed and placed, its members are assigned.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Claim, Effect, FAREWELL, Job, Log, Node, Phase, Refusal, Regroup, TOPOLOGY_TIMEOUT,
    absent_nodes::GenerationId, check_history::Machine, count,
};
use crate::{
    fence::FenceTerms,
    ids::{NodeId, NodeRank, Round},
    liveness::{LossCause, silence_of},
    node::{JoinRequest, address_order},
    pending::Pending,
    push::Push,
    topology::Topology,
    verdict::{JobFailure, JobVerdict},
    world::{Member, World, master_addr},
};
use checkpoint::message::ShardState;
use diagnosis::{counted::named_and_more, moment::Moment};

impl Job {
    /// A node joins: a newcomer, a member whose workers are gone, or one that repeats itself because it received no
    /// answer.
    pub(super) fn on_joined(&mut self, now: Moment, request: JoinRequest) -> Vec<Effect> {
        let node = request.node_id.clone();
        if self.is_outdated_join(&request) {
            return Vec::new();
        }
        let unknown = request.after.filter(|after| self.next_round <= *after);
        let was_known = self.nodes.contains_key(&node);
        let mut effects = match self.admit(now, request, None) {
            Ok(effects) => effects,
            Err(refused) => return refused,
        };
        if let Some(round) = unknown {
            self.note_round(now, round);
        }
        let known = self.nodes.get_mut(&node);
        let shards = known.map(|known| std::mem::take(&mut known.request.shards)).unwrap_or_default();
        let after = self.nodes.get(&node).and_then(|known| known.request.after);
        if self.ends_round(&node, after) {
            self.is_back_without_workers(&node, after, was_known);
            effects.extend(self.member_left(now, &node, shards));
            return effects;
        }
        effects.extend(self.memory_joined(now, &node, shards));
        self.is_back_without_workers(&node, after, was_known);
        effects.extend(match &mut self.phase {
            Phase::Over { .. } => self.notify_of_end(&node),
            Phase::Gathering { since, last_join, awaited, .. } => {
                since.get_or_insert(now);
                if !awaited.remove(&node) && self.waiting.insert(node.clone()) {
                    *last_join = now;
                }
                self.waiting.insert(node);
                self.complete(now)
            }
            Phase::Placing { members, .. } => {
                if !members.contains(&node) {
                    self.waiting.insert(node);
                }
                Vec::new()
            }
            Phase::Checking(_) | Phase::Measuring(_) => {
                if self.has_part(&node) {
                    return self.repeat_order(&node);
                }
                self.waiting.insert(node);
                Vec::new()
            }
            Phase::Hosting { members, round, fresh_port, .. } => {
                let node_rank = members.iter().position(|member| member.node_id == node);
                match node_rank {
                    Some(0) => {
                        vec![Effect::Push {
                            node,
                            push: Push::Host { round: *round, fresh_port: *fresh_port },
                        }]
                    }
                    Some(_) => Vec::new(),
                    None => {
                        self.waiting.insert(node);
                        Vec::new()
                    }
                }
            }
            // Looked up before the world is searched: there may be many spares.
            Phase::Running { world, .. } => {
                match self.node_ranks.get(&node).and_then(|_| world.assignment(&node)) {
                    Some(assignment) => {
                        if let Some(known) = self.nodes.get_mut(&node) {
                            known.assigned = known.is_connected.then_some(assignment.round);
                        }
                        vec![Effect::Push { node, push: Push::Assigned(assignment) }]
                    }
                    None => {
                        self.waiting.insert(node);
                        self.consider_growth(now)
                    }
                }
            }
            Phase::Restoring { .. } => {
                self.waiting.insert(node);
                Vec::new()
            }
        });
        effects
    }

    /// Whether a node that joins, and has run workers up to a round, is a member of the round that runs.
    fn ends_round(&self, node: &NodeId, after: Option<Round>) -> bool {
        match &self.phase {
            Phase::Running { world, .. } => {
                after >= Some(world.round)
                    && self.node_ranks.contains_key(node)
                    && world.assignment(node).is_some()
            }
            Phase::Restoring { round, .. } => after == Some(*round),
            _ => false,
        }
    }

    /// A member of the running round joins again: its workers are gone, and so the round is over.
    fn member_left(&mut self, now: Moment, node: &NodeId, shards: Vec<ShardState>) -> Vec<Effect> {
        let why = Regroup::Rejoined { node: self.name_of(node) };
        let mut effects = self.regroup(now, why, Some(node));
        // After the end of the round: what is in memory then counts.
        effects.extend(self.memory_joined(now, node, shards));
        self.waiting.insert(node.clone());
        if let Phase::Gathering { awaited, .. } = &mut self.phase {
            awaited.remove(node);
        }
        effects.extend(self.complete(now));
        effects
    }

    /// A repeated join that was overtaken by the assignment that answers the first one. The node has workers by now,
    /// or had: it will join again when they are gone.
    fn is_outdated_join(&self, request: &JoinRequest) -> bool {
        let known = self.nodes.get(&request.node_id).filter(|_| !matches!(self.phase, Phase::Over { .. }));
        known.and_then(|known| known.assigned).is_some_and(|assigned| request.after < Some(assigned))
    }

    /// Registers a node, or refuses it. A launcher that lives keeps its rank; one whose stream is broken is replaced.
    pub(super) fn admit(
        &mut self,
        now: Moment,
        request: JoinRequest,
        claim: Option<&Claim>,
    ) -> Result<Vec<Effect>, Vec<Effect>> {
        let node = request.node_id.clone();
        let name = request.name();
        if matches!(self.phase, Phase::Over { .. }) {
            return Ok(Vec::new());
        }
        if let Some(exclusion) = self.excluded.get(&node) {
            // It has not received it.
            return Err(vec![Effect::Push { node, push: Push::Excluded(exclusion.clone()) }]);
        }
        if let Some(point) = self.terms.as_ref().and_then(|terms| terms.difference(&request.terms)) {
            if self.is_unsettled() {
                return Err(self.keep_for_other_job(now, request, claim, point));
            }
            return Err(vec![self.refuse(name, Refusal::Differs { point })]);
        }
        if request.terms.require_uniform
            && let Some(other) = self.nodes.values().find(|other| other.request.node_id != node)
            && other.request.local_world_size != request.local_world_size
        {
            let job = other.request.local_world_size;
            let reason = Refusal::NotUniform { job, node: request.local_world_size };
            return Err(vec![self.refuse(name, reason)]);
        }
        let mut effects = Vec::new();
        if let Some(rank) = request.wish
            && let Some(holder) = self.wishes.get(&rank).filter(|holder| **holder != node).cloned()
        {
            if let Some(holder) = self.nodes.get(&holder).filter(|holder| holder.is_connected) {
                // By the rank that it asked for.
                let holder = holder.request.name();
                let reason = Refusal::Held { rank, holder, newcomer: name.clone() };
                return Err(vec![self.refuse(name, reason)]);
            }
            let is_same = self
                .nodes
                .get(&holder)
                .is_some_and(|holder| Machine::of(&holder.request) == Machine::of(&request));
            let cause = if is_same { LossCause::StartedAgain } else { LossCause::Replaced };
            effects = self.on_lost(now, &holder, cause);
            if let Phase::Over { until, .. } = &mut self.phase {
                // That was one loss too many. The newcomer has yet to be notified.
                *until = Some(now + FAREWELL);
                effects.retain(|effect| !matches!(effect, Effect::Finish { .. }));
                return Ok(effects);
            }
        }
        self.terms.get_or_insert_with(|| request.terms.clone());
        if let Some(after) = request.after {
            // Rounds grow for all nodes, also for one that a master without state does not know.
            self.learn_round(after);
        }
        if let Some(before) = self.nodes.get(&node).and_then(|known| known.request.wish)
            && self.wishes.get(&before) == Some(&node)
        {
            // It may ask for another rank now. The old one is free.
            self.wishes.remove(&before);
        }
        if let Some(rank) = request.wish {
            self.wishes.insert(rank, node.clone());
        }
        let has_taken_assignment = self.nodes.get(&node).is_some_and(|known| known.has_taken_assignment);
        let (arrival, joined) = match self.nodes.get(&node) {
            Some(known) => (known.arrival, known.joined),
            None => {
                // It was in a round that this master does not know, or lost it in; so may be others.
                self.is_port_stale |= request.after.is_some();
                self.arrivals += 1;
                (self.arrivals, now)
            }
        };
        let known =
            Node { request, is_connected: true, assigned: None, has_taken_assignment, arrival, joined };
        if self.nodes.insert(node.clone(), known).is_none() {
            let name = self.name_of(&node);
            self.history.joined(now, &name);
            self.newcomer(now, &node);
        }
        Ok(effects)
    }

    /// The end of the last call of a first round, when there are enough nodes for one.
    pub(super) fn last_call(&self) -> Option<Moment> {
        let Phase::Gathering { since: Some(_), last_join, awaited, .. } = &self.phase else { return None };
        let terms = self.terms.as_ref()?;
        let is_enough = terms.world_of(self.waiting.len()).is_some();
        (is_enough && awaited.is_empty() && !self.has_run && !self.has_absent())
            .then(|| *last_join + terms.last_call)
    }

    /// Completes the round when it is time: at once with all the nodes it may have, or when every remaining member of
    /// the last round has come back; else after the last call.
    pub(super) fn complete(&mut self, now: Moment) -> Vec<Effect> {
        let Phase::Gathering { since: Some(_), awaited, .. } = &self.phase else { return Vec::new() };
        let is_awaited = !awaited.is_empty();
        let Some(terms) = &self.terms else { return Vec::new() };
        let Some(size) = terms.world_of(self.waiting.len()) else { return Vec::new() };
        let is_due = self.has_run || size == terms.most() || self.last_call().is_some_and(|due| due <= now);
        if is_awaited || !is_due || self.has_absent() {
            return Vec::new();
        }
        self.choose(now, size)
    }

    fn choose(&mut self, now: Moment, size: u32) -> Vec<Effect> {
        let nodes = &self.nodes;
        let mut chosen: Vec<&Node> = self.waiting.iter().filter_map(|node| nodes.get(node)).collect();
        // Members of the last round first; then nodes that asked for a rank, then in the order of joining.
        chosen.sort_by_key(|node| {
            let JoinRequest { node_id, wish, .. } = &node.request;
            (!self.node_ranks.contains_key(node_id), wish.is_none(), *wish, node.arrival)
        });
        chosen.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        // Requested ranks order the nodes. The rest keep the order of the last round, and newcomers come after them,
        // by address and, where that is the same, in the order of joining: only a request takes a rank from a node
        // that has it.
        chosen.sort_by(|a, b| {
            let key = |node: &Node| {
                let node_rank = self.node_ranks.get(&node.request.node_id);
                (node.request.wish.is_none(), node.request.wish, node_rank.is_none(), node_rank.copied())
            };
            let (x, y) = (&a.request.address, &b.request.address);
            key(a)
                .cmp(&key(b))
                .then_with(|| address_order(x).cmp(&address_order(y)))
                .then_with(|| a.arrival.cmp(&b.arrival))
        });
        let members: Vec<NodeId> = chosen.into_iter().map(|node| node.request.node_id.clone()).collect();
        for member in &members {
            self.waiting.remove(member);
        }
        if self.policy.has_topology && members.len() > 1 {
            self.phase = Phase::Placing { members, until: now + TOPOLOGY_TIMEOUT };
            return vec![Effect::ReadTopology];
        }
        self.phase = Phase::Placing { members, until: now };
        self.place(now)
    }

    pub(super) fn on_topology_read(
        &mut self,
        now: Moment,
        topology: Result<Topology, String>,
    ) -> Vec<Effect> {
        if !matches!(self.phase, Phase::Placing { .. }) {
            return Vec::new();
        }
        let mut effects = Vec::new();
        match topology {
            Ok(topology) => self.topology = topology,
            Err(reason) => effects.push(Effect::Log(Log::TopologyUnusable { reason })),
        }
        effects.extend(self.place(now));
        effects
    }

    /// Assigns the chosen members, has them checked, and asks the first to open the store.
    pub(super) fn place(&mut self, now: Moment) -> Vec<Effect> {
        let Phase::Placing { members, .. } = &self.phase else { return Vec::new() };
        let nodes: Vec<&Node> = members.iter().filter_map(|node| self.nodes.get(node)).collect();
        let addresses = nodes.iter().map(|node| {
            let JoinRequest { node_ip, address, .. } = &node.request;
            node_ip.as_deref().unwrap_or(address)
        });
        let listed: Vec<&str> = addresses.collect();
        let order = self.topology.order(listed.iter().copied());
        let in_order: Vec<NodeId> =
            order.by_rank.iter().map(|index| nodes[*index].request.node_id.clone()).collect();
        if self.wants_check(now, &in_order) {
            return self.begin_check(now, in_order, order.places);
        }
        let mut effects = Vec::new();
        if !self.topology.is_empty() {
            let unlisted = order.by_rank.iter().zip(&order.places).filter(|(_, place)| place.is_none());
            let addresses: Vec<String> = unlisted.map(|(index, _)| listed[*index].to_owned()).collect();
            if !addresses.is_empty() {
                effects.push(Effect::Log(Log::Unlisted { addresses }));
            }
        }
        let members: Vec<Member> = (0..)
            .map(NodeRank)
            .zip(&order.by_rank)
            .map(|(node_rank, index)| {
                let request = &nodes[*index].request;
                let last =
                    self.node_ranks.get(&request.node_id).map_or(*index, |node_rank| node_rank.0 as usize);
                request.member(!self.topology.is_empty() && last != node_rank.0 as usize)
            })
            .collect();
        let round = self.next_round;
        self.next_round = Round(round.0.saturating_add(1));
        let placed = order.by_rank.iter().zip(order.places).map(|(index, place)| {
            let host = nodes[*index].request.attributes.host_name.clone();
            (listed[*index].to_owned(), host, place.map(|place| place.switch))
        });
        effects.push(Effect::Log(Log::Placed { round, nodes: placed.collect() }));
        let Some(host) = members.first().map(|host| host.node_id.clone()) else { return effects };
        // A host that served an older round, with another one in between, may still have connections of its workers.
        let was_member = self.nodes.get(&host).is_some_and(|known| known.request.after.is_some());
        let served_last = self.node_ranks.get(&host) == Some(&NodeRank(0));
        // Nodes that go absent from now on concern the round after this one.
        let fresh_port = std::mem::take(&mut self.is_port_stale) || (was_member && !served_last);
        effects.push(Effect::Push { node: host, push: Push::Host { round, fresh_port } });
        let until = now + self.policy.host_timeout;
        self.phase = Phase::Hosting { round, members, fresh_port, until };
        effects
    }

    pub(super) fn on_hosted(
        &mut self,
        now: Moment,
        node: &NodeId,
        hosted: Round,
        address: Option<String>,
        master_port: u16,
    ) -> Vec<Effect> {
        let Phase::Hosting { round, members, .. } = &mut self.phase else { return Vec::new() };
        if *round != hosted || members.first().is_none_or(|host| host.node_id != *node) {
            return Vec::new();
        }
        let members = std::mem::take(members);
        // A node has meanwhile reported workers.
        if self.has_absent() {
            return self.gather_again(now, members.into_iter().map(|member| member.node_id).collect());
        }
        let Some(master_addr) = address.or_else(|| master_addr(&members)) else { return Vec::new() };
        let fence = self.policy.lease.map(|timeout| {
            let lease = silence_of(timeout, count(self.nodes.len()));
            FenceTerms::of(lease, &members, self.policy.host.is_some())
        });
        let (restore, decided) = self.memory_round_begins(now, hosted, &members);
        let world = World { round: hosted, members, master_addr, master_port, fence, restore };
        self.absent_nodes.begin(GenerationId::of(&world), world.fence.clone());
        let mut effects = self.settle();
        self.use_check();
        self.lost.clear();
        self.refused = None;
        for member in &world.members {
            if let Some(known) = self.nodes.get_mut(&member.node_id) {
                known.assigned = known.is_connected.then_some(hosted);
            }
        }
        self.node_ranks = (0..)
            .map(NodeRank)
            .zip(&world.members)
            .map(|(node_rank, it)| (it.node_id.clone(), node_rank))
            .collect();
        effects.extend(world.assignments().map(|(member, assignment)| Effect::Push {
            node: member.node_id.clone(),
            push: Push::Assigned(assignment),
        }));
        // After the assignments, of which they are a part.
        effects.extend(decided);
        self.first_failure = None;
        self.phase = Phase::Running { world, succeeded: BTreeSet::new(), grow_at: None };
        effects.extend(self.consider_growth(now));
        effects
    }

    /// The host of a round did not open its store in time.
    pub(super) fn on_host_silent(&mut self, now: Moment) -> Vec<Effect> {
        let Phase::Hosting { members, .. } = &self.phase else { return Vec::new() };
        let Some(host) = members.first().map(|host| host.node_id.clone()) else { return Vec::new() };
        self.on_lost(now, &host, LossCause::NoStore { timeout: self.policy.host_timeout })
    }

    /// Newcomers are gathered before the running group is stopped, so that many of them cost one restart. A job that
    /// is about to end is not stopped for them.
    pub(super) fn consider_growth(&mut self, now: Moment) -> Vec<Effect> {
        let Some(terms) = &self.terms else { return Vec::new() };
        let Phase::Running { world, succeeded, grow_at } = &mut self.phase else { return Vec::new() };
        let alive = world.members.iter().filter(|member| self.nodes.contains_key(&member.node_id)).count();
        let size = terms.world_of(alive + self.waiting.len());
        if !succeeded.is_empty() || size.is_none_or(|size| size <= count(world.members.len())) {
            *grow_at = None;
            return Vec::new();
        }
        let due = if size == Some(terms.most()) { now } else { now + terms.last_call };
        *grow_at = Some(due);
        if due <= now { self.grow(now) } else { Vec::new() }
    }

    /// Admits the newcomers.
    pub(super) fn grow(&mut self, now: Moment) -> Vec<Effect> {
        let Some(terms) = &self.terms else { return Vec::new() };
        let Phase::Running { world, .. } = &self.phase else { return Vec::new() };
        let size = terms.world_of(world.members.len() + self.waiting.len()).unwrap_or_default();
        let nodes = size.saturating_sub(count(world.members.len()));
        self.regroup(now, Regroup::Growth { nodes }, None)
    }

    /// Ends the running round: every remaining member but `except` is asked to stop and to join again.
    pub(super) fn regroup(&mut self, now: Moment, why: Regroup, except: Option<&NodeId>) -> Vec<Effect> {
        let (round, members): (Round, Vec<NodeId>) = match &self.phase {
            Phase::Running { world, .. } => {
                (world.round, world.members.iter().map(|member| member.node_id.clone()).collect())
            }
            Phase::Restoring { round, nodes, claims, .. } => {
                let is_all = claims.len() >= *nodes as usize;
                // Workers of those that did not come back yet may still use the store.
                self.is_port_stale = true;
                let known = (*round, claims.values().cloned().collect());
                if let Some(generation) = self.restored().filter(|_| !is_all) {
                    self.record_absent_generation(now, generation);
                }
                known
            }
            Phase::Gathering { .. }
            | Phase::Placing { .. }
            | Phase::Checking(_)
            | Phase::Measuring(_)
            | Phase::Hosting { .. }
            | Phase::Over { .. } => return Vec::new(),
        };
        let awaited: BTreeSet<NodeId> =
            members.into_iter().filter(|member| self.nodes.contains_key(member)).collect();
        let mut effects = vec![Effect::Log(Log::Regrouped { round, why: why.clone() })];
        effects.extend(
            awaited
                .iter()
                .filter(|member| except != Some(*member))
                .map(|member| Effect::Push { node: member.clone(), push: Push::regroup(round, &why) }),
        );
        effects.extend(self.settle());
        self.memory_round_ends();
        self.phase = Phase::gathering(now, awaited);
        effects
    }

    /// Members that have not stopped their workers in all that time are lost; what they run is still waited for.
    fn lose_slow_members(&mut self, now: Moment) -> Vec<Effect> {
        let Phase::Gathering { since, awaited, .. } = &mut self.phase else { return Vec::new() };
        *since = Some(now);
        let slow = awaited.clone();
        let timeout = self.terms.as_ref().map_or(Duration::ZERO, |terms| terms.join_timeout);
        let silent = LossCause::Slow { timeout };
        slow.iter().flat_map(|node| self.on_lost(now, node, silent)).collect()
    }

    /// The rendezvous has timed out.
    pub(super) fn on_gathering_deadline(&mut self, now: Moment) -> Vec<Effect> {
        self.lose_awaited_members(now);
        let Some(terms) = &self.terms else { return Vec::new() };
        let Phase::Gathering { since: Some(since), awaited, .. } = &self.phase else { return Vec::new() };
        let (is_timeout, is_awaited) = (*since + terms.join_timeout <= now, !awaited.is_empty());
        if !is_timeout {
            return self.complete(now);
        }
        if let Some(size) = terms.world_of(self.waiting.len())
            && !self.has_absent()
        {
            // A member that cannot stop its workers must not delay the others for ever; it may come back later.
            if is_awaited && self.policy.lease.is_some() {
                return self.lose_slow_members(now);
            }
            self.is_port_stale |= is_awaited;
            return self.choose(now, size);
        }
        let needed = terms.least();
        if terms.world_of(self.waiting.len()).is_some()
            && self.has_absent()
            && let Some(Pending::Fenced { nodes, more, .. }) = self.pending_absent(now, *since)
        {
            let names = named_and_more(&nodes, nodes.len() + more as usize);
            self.lost.push(format!(
                "no round began, because {names} may still run workers; make sure that these workers \
                 have ended before the job is started again"
            ));
        }
        let waited = terms.join_timeout;
        let failure = JobFailure::TimedOut {
            joined: count(self.waiting.len()),
            needed,
            waited,
            missing: self.missing(needed),
            losses: std::mem::take(&mut self.lost),
            refused: self.take_refused(),
        };
        self.end(now, JobVerdict::Failed(failure))
    }
}
