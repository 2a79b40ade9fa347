//! Hangs of the job: every node takes the stacks of its workers, the job master merges and analyzes them, and the policy
//! (on hang) is carried out.
//!
//! ```text
//! TrainingStalled -> Dumping --all dumps, or the timeout--> Judging --HangJudged--> Declared --TrainingAdvanced--> over
//!                       ^                                                |
//!                       +---------- Held: a checkpoint is written <------+
//! ```
//!
//! One verdict for each episode. An episode ends when a rank advances, or with its round.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{Effect, Job, Log, Phase, check_history::Machine};
use crate::{
    hang::{HangNotice, HangReport, HangTerms, HangVerdict, HangingNode, OnHang, Suspect},
    ids::{NodeId, Rank, Round, RunId},
    job_status::HangStatus,
    liveness::LONGEST_GAP,
    push::Push,
    verdict::{JobFailure, JobVerdict},
    world::World,
};
use diagnosis::moment::Moment;

/// How long the stacks of all nodes are waited for.
pub const DUMP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the shell may take to merge and write them.
const JUDGE_TIMEOUT: Duration = Duration::from_secs(30);

/// So many hangs that name a machine alone are a fault of the machine.
const CONFIRMED: u32 = 2;

/// Machines that are remembered.
const MAX_MACHINES: usize = 1024;

/// The hangs of a job so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Hangs {
    /// Episodes so far, declared or not: the number of the next one.
    episodes: u32,
    /// Hangs that were declared.
    declared: u32,
    open: Option<Episode>,
    /// When stacks were ordered last.
    ordered: Option<Moment>,
    /// How many hangs have named a machine, and no other one.
    named: BTreeMap<Machine, u32>,
    last: Option<Hang>,
}

/// An episode in which no rank advances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Episode {
    number: u32,
    round: Round,
    /// When a rank advanced last.
    since: Moment,
    state: EpisodeState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum EpisodeState {
    Dumping {
        awaited: BTreeSet<NodeId>,
        until: Moment,
    },
    Judging {
        until: Moment,
    },
    /// Stacks are ordered later: a rank writes a checkpoint, or they were ordered a moment ago.
    Held {
        until: Moment,
    },
    /// With `restart`, the workers of that node are to be restarted.
    Declared {
        restart: Option<NodeId>,
    },
}

/// A hang that was declared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hang {
    round: Round,
    at: Moment,
    /// For how long no rank had advanced.
    idle: Duration,
    verdict: HangVerdict,
    /// When a rank advanced again, or the round ended.
    over: Option<Moment>,
}

impl Job {
    /// No rank has advanced for so long.
    pub(super) fn on_training_stalled(&mut self, now: Moment, round: Round, idle: Duration) -> Vec<Effect> {
        let terms = self.terms.as_ref().and_then(|terms| terms.hang.as_ref());
        let Some(interval) = terms.map(HangTerms::dump_interval) else { return Vec::new() };
        let is_on = self.world().is_some_and(|world| world.round == round);
        if !is_on || self.hangs.open.is_some() {
            return Vec::new();
        }
        let since = Moment::new(now.since_start().saturating_sub(idle));
        let number = self.hangs.episodes;
        self.hangs.episodes = number.saturating_add(1);
        // A member can report in turn that its ranks are stalled and that they advance.
        let until = self.hangs.ordered.map_or(now, |ordered| ordered + interval);
        let state = EpisodeState::Held { until };
        self.hangs.open = Some(Episode { number, round, since, state });
        if now < until { Vec::new() } else { self.order_dumps(now) }
    }

    /// Orders the stacks of the open episode from every member.
    fn order_dumps(&mut self, now: Moment) -> Vec<Effect> {
        let Some(world) = self.world() else { return Vec::new() };
        let awaited: BTreeSet<NodeId> = world.members.iter().map(|member| member.node_id.clone()).collect();
        let Some(episode) = &mut self.hangs.open else { return Vec::new() };
        let push = Push::DumpStacks { round: episode.round, episode: episode.number };
        let to_all = awaited.iter().map(|node| Effect::Push { node: node.clone(), push: push.clone() });
        let effects =
            std::iter::once(Effect::CollectStacks { episode: episode.number }).chain(to_all).collect();
        episode.state = EpisodeState::Dumping { awaited, until: now + DUMP_TIMEOUT };
        self.hangs.ordered = Some(now);
        effects
    }

    /// A node has sent the stacks of all its workers.
    pub(super) fn on_stacks_sent(&mut self, now: Moment, node: &NodeId, of: u32) -> Vec<Effect> {
        let Some(Episode { number, state: EpisodeState::Dumping { awaited, .. }, .. }) = &mut self.hangs.open
        else {
            return Vec::new();
        };
        if *number != of || !awaited.remove(node) || !awaited.is_empty() {
            return Vec::new();
        }
        self.judge_hang(now)
    }

    /// Nothing is expected of a node that is gone.
    pub(super) fn expect_no_stacks_of(&mut self, now: Moment, node: &NodeId) -> Vec<Effect> {
        match self.hangs.open.as_ref().map(|episode| episode.number) {
            Some(number) => self.on_stacks_sent(now, node, number),
            None => Vec::new(),
        }
    }

    fn judge_hang(&mut self, now: Moment) -> Vec<Effect> {
        let Some(episode) = &mut self.hangs.open else { return Vec::new() };
        episode.state = EpisodeState::Judging { until: now + JUDGE_TIMEOUT };
        let episode = episode.number;
        let Some(world) = self.world().cloned() else { return Vec::new() };
        vec![Effect::JudgeStacks { episode, world: Box::new(world) }]
    }

    /// What the stacks say.
    pub(super) fn on_hang_judged(&mut self, now: Moment, of: u32, verdict: HangVerdict) -> Vec<Effect> {
        let terms = self.terms.as_ref().and_then(|terms| terms.hang.as_ref());
        let Some((timeout, grace, on_hang)) = terms.map(|it| (it.timeout, it.grace, it.on_hang)) else {
            return Vec::new();
        };
        let Some(world) = self.world().cloned() else { return Vec::new() };
        let Some(episode) = &mut self.hangs.open else { return Vec::new() };
        if episode.number != of || !matches!(episode.state, EpisodeState::Judging { .. }) {
            return Vec::new();
        }
        let (round, idle) = (episode.round, now - episode.since);
        if let Some(rank) = verdict.saving.filter(|_| idle < grace) {
            episode.state = EpisodeState::Held { until: now + timeout };
            return vec![Effect::Log(Log::HangHeld { idle, rank })];
        }
        self.hangs.declared = self.hangs.declared.saturating_add(1);
        let named: Vec<NodeId> = named_nodes(&world, &verdict.suspects);
        // Where all nodes are named, or two of them, no machine is at fault as far as the stacks say.
        if let ([node], true) = (&named[..], world.members.len() > 1) {
            self.hangs.remember(self.nodes.get(node).map(|known| Machine::of(&known.request)));
        }
        let report = self.hang_report(&world, (round, idle), &named, &verdict);
        let hang = Hang { round, at: now, idle, verdict: verdict.clone(), over: None };
        self.hangs.last = Some(hang);
        let HangVerdict { sentence, folder, .. } = verdict;
        let notice = HangNotice { round, idle, sentence, folder, restart: false };
        let mut effects = vec![Effect::Log(Log::Hang(notice.clone())), Effect::ReportHang(Box::new(report))];
        let tell = |restart: Option<&NodeId>| -> Vec<Effect> {
            let members = world.members.iter().map(|member| &member.node_id);
            let push = |node: &NodeId| {
                let notice = HangNotice { restart: restart == Some(node), ..notice.clone() };
                Effect::Push { node: node.clone(), push: Push::Hang(notice) }
            };
            members.map(push).collect()
        };
        // A node whose workers have all succeeded has none to restart.
        let is_running = |node: &&NodeId| match &self.phase {
            Phase::Running { succeeded, .. } => !succeeded.contains(*node),
            _ => true,
        };
        let mut members = world.members.iter().map(|member| &member.node_id);
        let first = named.iter().find(is_running).or_else(|| members.find(is_running)).cloned();
        let restart = first.clone().filter(|_| on_hang == OnHang::Restart);
        if let Some(episode) = &mut self.hangs.open {
            episode.state = EpisodeState::Declared { restart: restart.clone() };
        }
        if let (OnHang::Exit, Some(node)) = (on_hang, &first) {
            let failure = JobFailure::Node { node: self.name_of(node), reason: notice.to_string() };
            effects.extend(tell(None));
            effects.extend(self.end(now, JobVerdict::Failed(failure)));
            return effects;
        }
        effects.extend(tell(restart.as_ref()));
        effects
    }

    /// What speaks against each node of the odd ranks.
    fn hang_report(
        &self,
        world: &World,
        (round, idle): (Round, Duration),
        named: &[NodeId],
        verdict: &HangVerdict,
    ) -> HangReport {
        let nodes = named.iter().filter_map(|node| {
            let request = &self.nodes.get(node)?.request;
            let times_named = self
                .hangs
                .named
                .get(&Machine::of(request))
                .copied()
                .filter(|_| named.len() == 1)
                .unwrap_or(0);
            let ranks = world.ranks_of(node);
            Some(HangingNode {
                name: self.name_of(node),
                k8s_node: request.attributes.k8s_node_name.clone(),
                pod: request.attributes.pod_name.clone(),
                suspects: verdict.suspects.iter().filter(|it| ranks.contains(&it.rank.0)).cloned().collect(),
                times_named,
                tainted: times_named >= CONFIRMED,
            })
        });
        HangReport {
            job: self.name().cloned().unwrap_or_else(|| RunId(String::new())),
            hang: self.hangs.declared.saturating_sub(1),
            round,
            idle,
            sentence: verdict.sentence.clone(),
            folder: verdict.folder.clone(),
            nodes: nodes.collect(),
        }
    }

    /// A rank advances again.
    pub(super) fn on_training_advanced(&mut self, now: Moment) -> Vec<Effect> {
        match self.hangs.close(now) {
            Some(idle) => vec![Effect::Log(Log::HangOver { idle })],
            None => Vec::new(),
        }
    }

    /// An episode ends with its round.
    pub(super) fn end_hang_with_round(&mut self, now: Moment) {
        let is_on = |episode: &Episode| self.world().is_some_and(|world| world.round == episode.round);
        if self.hangs.open.as_ref().is_some_and(|episode| !is_on(episode)) {
            let _idle = self.hangs.close(now);
        }
    }

    /// The dumps that were ordered are lost with the master that did. They are ordered again as the nodes come back.
    pub(super) fn dump_anew(&mut self, now: Moment) -> Vec<Effect> {
        let grace = self.policy.reconnect_grace.max(LONGEST_GAP);
        if !matches!(
            self.hangs.open.as_ref().map(|episode| &episode.state),
            Some(EpisodeState::Dumping { .. } | EpisodeState::Judging { .. })
        ) {
            return Vec::new();
        }
        let mut effects = self.order_dumps(now);
        effects.retain(|effect| !matches!(effect, Effect::Push { .. }));
        if let Some(Episode { state: EpisodeState::Dumping { until, .. }, .. }) = &mut self.hangs.open {
            *until = now + grace + DUMP_TIMEOUT;
        }
        effects
    }

    /// A member whose stream was broken may have missed what it was told.
    pub(super) fn repeat_hang(&self, node: &NodeId) -> Vec<Effect> {
        let Some(episode) = &self.hangs.open else { return Vec::new() };
        let push = match (&episode.state, &self.hangs.last) {
            (EpisodeState::Dumping { awaited, .. }, _) if awaited.contains(node) => {
                Push::DumpStacks { round: episode.round, episode: episode.number }
            }
            (EpisodeState::Declared { restart: Some(named) }, Some(hang)) if named == node => {
                let HangVerdict { sentence, folder, .. } = hang.verdict.clone();
                let (round, idle) = (hang.round, hang.idle);
                Push::Hang(HangNotice { round, idle, sentence, folder, restart: true })
            }
            _ => return Vec::new(),
        };
        vec![Effect::Push { node: node.clone(), push }]
    }

    /// The round of an episode that is open.
    pub(crate) fn hanging_round(&self) -> Option<Round> {
        self.hangs.open.as_ref().map(|episode| episode.round)
    }

    pub(super) fn hang_deadline(&self) -> Option<Moment> {
        match self.hangs.open.as_ref()?.state {
            EpisodeState::Dumping { until, .. }
            | EpisodeState::Judging { until }
            | EpisodeState::Held { until } => Some(until),
            EpisodeState::Declared { .. } => None,
        }
    }

    pub(super) fn on_hang_deadline(&mut self, now: Moment) -> Vec<Effect> {
        if self.hang_deadline().is_none_or(|due| now < due) {
            return Vec::new();
        }
        match self.hangs.open.as_ref().map(|episode| (episode.number, &episode.state)) {
            Some((_, EpisodeState::Dumping { .. })) => self.judge_hang(now),
            Some((_, EpisodeState::Held { .. })) => self.order_dumps(now),
            Some((number, EpisodeState::Judging { .. })) => {
                let sentence = "the stacks could not be analyzed in time".to_owned();
                let verdict =
                    HangVerdict { sentence, suspects: Vec::new(), saving: None, folder: String::new() };
                self.on_hang_judged(now, number, verdict)
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn hang_status(&self, now: Moment) -> Option<HangStatus> {
        let hang = self.hangs.last.as_ref()?;
        Some(HangStatus {
            count: self.hangs.declared,
            round: hang.round.0,
            is_over: hang.over.is_some(),
            seconds_ago: (now - hang.at).as_secs_f64(),
            idle_seconds: (hang.over.unwrap_or(now) - hang.at + hang.idle).as_secs_f64(),
            sentence: hang.verdict.sentence.clone(),
            ranks: hang.verdict.suspects.iter().map(|suspect| suspect.rank.0).collect(),
            folder: hang.verdict.folder.clone(),
        })
    }
}

impl Hangs {
    /// Ends the open episode; returns for how long no rank had advanced, if it was declared.
    fn close(&mut self, now: Moment) -> Option<Duration> {
        let episode = self.open.take()?;
        if !matches!(episode.state, EpisodeState::Declared { .. }) {
            return None;
        }
        if let Some(last) = &mut self.last {
            last.over.get_or_insert(now);
        }
        Some(now - episode.since)
    }

    fn remember(&mut self, machine: Option<Machine>) {
        let Some(machine) = machine else { return };
        if self.named.len() < MAX_MACHINES || self.named.contains_key(&machine) {
            let count = self.named.entry(machine).or_default();
            *count = count.saturating_add(1);
        }
    }
}

/// The nodes of the odd ranks, the one with most of them first.
fn named_nodes(world: &World, suspects: &[Suspect]) -> Vec<NodeId> {
    let mut named: Vec<(usize, &NodeId)> = Vec::new();
    let mut first = 0_u32;
    for member in &world.members {
        let next = first.saturating_add(member.local_world_size);
        let is_here = |suspect: &&Suspect| (first..next).contains(&suspect.rank.0);
        let count = suspects.iter().filter(is_here).count();
        if count > 0 {
            named.push((count, &member.node_id));
        }
        first = next;
    }
    named.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    named.into_iter().map(|(_, node)| node.clone()).collect()
}

/// No rank advances because one of them writes a checkpoint.
#[must_use]
pub(super) fn held_message(idle: Duration, rank: Rank) -> String {
    format!(
        "no rank has made progress for {} s, but rank {rank} is writing a checkpoint; not a hang yet",
        idle.as_secs()
    )
}
