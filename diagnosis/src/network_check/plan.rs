//! The tests of the next round.

use crate::rng::Rng;
use std::collections::BTreeSet;

use super::{
    Group, Kind,
    check_log::{CheckLog, Pair},
    facts::Facts,
    links::{self, Edge},
    partial_uplinks::{self, PartialUplinkFault},
    paths, suspect_pairs, witness,
};

/// Random stream: the witness of a suspect.
const WITNESSES: u64 = 2;

/// Further partners of a condemned node while links are in doubt, in rounds that run anyway: it may have met two bad
/// links instead.
const SECOND_THOUGHTS: u32 = 2;

/// A round being planned.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) groups: Vec<Group>,
    used: Vec<bool>,
}

impl Draft {
    fn new(log: &CheckLog) -> Self {
        let used = log.nodes.iter().map(super::check_log::Node::is_gone).collect();
        Self { groups: Vec::new(), used }
    }

    pub(super) fn is_free(&self, node: u32) -> bool {
        self.used.get(node as usize).is_some_and(|used| !used)
    }

    pub(super) fn add(&mut self, kind: Kind, members: &[u32]) {
        for member in members {
            if let Some(used) = self.used.get_mut(*member as usize) {
                *used = true;
            }
        }
        let id = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        self.groups.push(Group { id, kind, members: members.to_vec() });
    }

    /// All nodes that are not needed wait.
    fn idle(mut self, log: &CheckLog) -> Vec<Group> {
        let free: Vec<u32> = log.live().filter(|node| self.is_free(*node)).collect();
        for node in free {
            self.add(Kind::Idle, &[node]);
        }
        self.groups
    }
}

/// The first round; `None` for fewer than two nodes.
pub(super) fn first_round(log: &CheckLog) -> Option<Vec<Group>> {
    let mut draft = Draft::new(log);
    let order = &log.order;
    if order.len() < 2 {
        return None;
    }
    let threes = order.len() % 2 * 3;
    let (pairs, last) = order.split_at(order.len() - threes);
    for members in pairs.chunks(2).chain((threes > 0).then_some(last)) {
        draft.add(Kind::Screen, members);
    }
    Some(draft.idle(log))
}

/// A later round; `None` when no further test is useful or allowed.
pub(super) fn next(log: &mut CheckLog, facts: &Facts) -> Option<Vec<Group>> {
    let round = log.round();
    if round >= log.policy.max_rounds.max(1) {
        return None;
    }
    let mut draft = Draft::new(log);
    let suspects = suspects(log, facts);
    let mut witnesses: Vec<u32> = log.live().filter(|node| facts.is(*node, |it| it.is_witness())).collect();
    Rng::new(log.policy.seed, WITNESSES.wrapping_add(u64::from(round) << 8)).shuffle(&mut witnesses);

    let partial = partial_uplinks::uplinks(log, facts);
    let retests = if log.policy.diagnose_links { due_retests(log, facts, &partial) } else { Vec::new() };
    // With spare witnesses the ends of links need not wait for a round of their own.
    if witnesses.len() >= suspects.len() + 4 * retests.len() {
        retest(log, facts, &retests, &mut draft);
    }
    paths::look_inside(log, facts, &mut draft, |rack| facts.racks.is_suspicious(rack));
    if witnesses.is_empty() {
        paths::look_inside(log, facts, &mut draft, |rack| facts.racks.has_no_witness(rack));
        suspect_pairs::by_step(log, facts, &suspects, &mut draft);
    } else {
        witness::assign_inside(log, facts, &suspects, &mut draft);
        // Those that wait for a test inside their rack were tested outside often enough.
        let others: Vec<u32> =
            suspects.iter().copied().filter(|node| !facts.is(*node, |it| it.is_held)).collect();
        witness::assign(log, facts, &others, &mut witnesses, &mut draft);
        paths::look_inside(log, facts, &mut draft, |rack| facts.racks.has_no_witness(rack));
    }
    suspect_pairs::leftovers(facts, &suspects, &mut draft);
    if log.policy.diagnose_links {
        retest(log, facts, &retests, &mut draft);
        probe(log, facts, &partial, &mut witnesses, &mut draft);
        paths::tell_apart(log, facts, &mut draft);
        paths::spread(log, facts, &mut draft);
        meet_each_other(log, facts, &mut draft);
    }
    if draft.groups.is_empty() {
        return None;
    }
    if log.policy.diagnose_links {
        let of_threes: Vec<Pair> = links::of_threes(log, facts).into_iter().map(|(ends, _)| ends).collect();
        retest(log, facts, &of_threes, &mut draft);
    }
    if facts.has_link_trouble() {
        let enough = log.policy.confirm.max(1).saturating_add(SECOND_THOUGHTS) as usize;
        let is_in_doubt = |node: &u32| {
            facts.is(*node, |it| it.condemned && !it.is_gone && !it.slow && it.evidence.len() < enough)
        };
        let doubtful: Vec<u32> = log.live().filter(is_in_doubt).collect();
        witness::assign(log, facts, &doubtful, &mut witnesses, &mut draft);
    }
    if round == 1 {
        witness::cover(log, facts, &witnesses, &mut draft);
    }
    Some(draft.idle(log))
}

/// Those with the least evidence first. Of two that failed together in the first round one comes long before the
/// other: its result is evidence on both.
fn suspects(log: &CheckLog, facts: &Facts) -> Vec<u32> {
    let (first, second): (Vec<_>, Vec<_>) =
        log.order.iter().enumerate().partition(|(place, _)| place % 2 == 0);
    let halves = first.into_iter().chain(second).map(|(_, node)| *node);
    let mut suspects: Vec<u32> = halves.filter(|node| facts.is(*node, |it| it.is_suspect())).collect();
    suspects.sort_by_key(|node| facts.node(*node).map_or(0, |node| node.evidence.len()));
    suspects
}

/// Links whose failure was not repeated yet, or whose slowness not often enough; and those of failed groups of three.
/// Of these first the ones that may use a bad path between racks, for a second pair over it is better evidence than
/// the same one again.
fn due_retests(log: &CheckLog, facts: &Facts, partial: &[PartialUplinkFault]) -> Vec<Pair> {
    let is_due = |(ends, edge): &(&Pair, &Edge)| {
        facts.are_good(**ends)
            && !is_settled(log, facts, partial, **ends)
            && (edge.fails > 0 && edge.seen() < 2 || edge.is_slow() && edge.slows < facts.slow_confirmations)
    };
    let edges = facts.edges.iter().filter(is_due).map(|(ends, _)| *ends);
    let of_threes = links::of_threes(log, facts).into_iter().filter(|(_, is_sure)| *is_sure);
    let is_path_suspect = |ends: &Pair| facts.suspect_paths.contains(&log.racks_of(*ends));
    let (mut due, later): (Vec<Pair>, Vec<Pair>) = of_threes.map(|(ends, _)| ends).partition(is_path_suspect);
    due.extend(edges);
    due.extend(later);
    due
}

/// Whether it is known why tests of the two fail: so many failed over a dead element between them that these are no
/// links, or one of them is flaky.
fn is_settled(log: &CheckLog, facts: &Facts, partial: &[PartialUplinkFault], ends: Pair) -> bool {
    const SETTLED: usize = 3;
    let is_dead = |ends: &Pair| facts.edges.get(ends).is_some_and(Edge::is_dead);
    let mut blamed = facts.fabric.blamed_over(log, ends);
    let is_flaky = |end: u32| facts.is(end, |node| node.surely_flaky);
    let is_partial = partial.iter().any(|it| it.dead.len() >= SETTLED && it.has(log, ends));
    is_partial
        || blamed.any(|it| it.pairs.len() >= SETTLED || it.pairs.iter().any(is_dead))
        || is_flaky(ends.0)
        || is_flaky(ends.1)
}

/// The same two again, and at the same time two others of the same two racks.
fn retest(log: &CheckLog, facts: &Facts, retests: &[Pair], draft: &mut Draft) {
    for (a, b) in retests {
        if draft.is_free(*a) && draft.is_free(*b) {
            draft.add(Kind::Retest, &[*a, *b]);
        }
    }
    let past = log.rounds.iter().flat_map(|round| &round.tests).map(|test| (test.kind, &test.members));
    let now = draft.groups.iter().map(|group| (group.kind, &group.members));
    let siblings = past.chain(now).filter(|(kind, _)| *kind == Kind::Sibling);
    let ends = siblings.filter_map(|(_, members)| Some((*members.first()?, *members.get(1)?)));
    let mut asked: BTreeSet<Pair> = ends.map(|ends| log.racks_of(ends)).collect();
    for (a, b) in retests {
        let racks = log.racks_of((*a, *b));
        let is_open = facts.suspect_paths.contains(&racks);
        if racks.0 == racks.1 || !is_open || !asked.insert(racks) {
            continue;
        }
        let of = |rack: u32, draft: &Draft| -> Vec<u32> {
            let is_fit = |node: &u32| {
                log.rack(*node) == rack && draft.is_free(*node) && facts.is(*node, |it| it.is_witness())
            };
            log.live().filter(is_fit).collect()
        };
        let (first, second) = (of(racks.0, draft), of(racks.1, draft));
        let mut pairs = first.iter().flat_map(|a| second.iter().map(move |b| [*a, *b]));
        if let Some(sibling) = pairs.find(|[a, b]| !facts.have_met(*a, *b)) {
            draft.add(Kind::Sibling, &sibling);
        }
    }
}

/// Both ends of a failed link, each with a good node that it has not met: a link is blamed only when its ends are
/// healthy.
fn probe(
    log: &mut CheckLog,
    facts: &Facts,
    partial: &[PartialUplinkFault],
    witnesses: &mut Vec<u32>,
    draft: &mut Draft,
) {
    let (mut probed, mut paired) = (Vec::new(), BTreeSet::new());
    for (ends, edge) in &facts.edges {
        let is_due = edge.fails > 0 && edge.seen() >= 2;
        if !is_due
            || !facts.are_good(*ends)
            || log.probed.contains(ends)
            || is_settled(log, facts, partial, *ends)
        {
            continue;
        }
        // The end of another link that is its witness is tested as well.
        let is_open = |end: u32| draft.is_free(end) || paired.contains(&end);
        if !is_open(ends.0) || !is_open(ends.1) {
            continue;
        }
        for end in [ends.0, ends.1] {
            if facts.is(end, |it| edge.is_probed_at(it.last_pass)) {
                continue;
            }
            let others = |witness: u32| witness != ends.0 && witness != ends.1;
            if draft.is_free(end)
                && let Some(witness) = witness::best(log, facts, end, witnesses, draft, others)
            {
                draft.add(Kind::Probe, &[end, witness]);
                paired.extend([end, witness]);
            }
        }
        if paired.contains(&ends.0) || paired.contains(&ends.1) {
            probed.push(*ends);
        }
    }
    log.probed.extend(probed);
}

/// Without known racks: condemned nodes that have met none of the others. If they pass, they are an island of healthy
/// nodes that the rest does not reach.
fn meet_each_other(log: &CheckLog, facts: &Facts, draft: &mut Draft) {
    /// A round of its own is worth it where the limits of rounds leave one: three for a quarter of broken nodes.
    const LAST: u32 = 2;
    if log.racks.len() > 1 || draft.groups.is_empty() && log.round() > LAST {
        return;
    }
    let is_condemned = |node: u32| facts.is(node, |it| it.condemned && !it.is_gone && !it.slow);
    let has_met_one = |node: u32| facts.is(node, |it| it.met.iter().any(|other| is_condemned(*other)));
    let mut lonely: Vec<u32> = log
        .order
        .iter()
        .copied()
        .filter(|node| is_condemned(*node) && !has_met_one(*node) && draft.is_free(*node))
        .collect();
    while let (Some(a), Some(b)) = (lonely.pop(), lonely.pop()) {
        draft.add(Kind::RackDiagnosis, &[a, b]);
    }
}
