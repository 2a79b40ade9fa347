//! Which ranks are elsewhere, in words: `rank 6 is in data_loader.py:41 next_batch; 0-5,7 wait in all_reduce`.
//!
//! Ranks that wait for their peers are the victims of a hang, so they are suspects only when nothing else is known: when
//! all wait, but not all in the same call. Of several groups the largest is taken for the victims; when there are two
//! of that size, the smaller ones are named. When all are of one size, the ranks that are ahead by their counted steps
//! are named, because they have left out what their peers wait in; else all are. When all ranks wait in the same
//! call, none is named: the stacks do not say then what they wait for.

mod exchange;

use std::collections::BTreeMap;

use crate::{
    folding::Ranks,
    model::{Frame, RankDump},
    place::Place,
    suspects::{Doing, Reason, Suspects},
    words,
};

/// Ranks without a dump that are named at most; the size of the world may be any number that a file's name has.
const MAX_MISSING: usize = 1 << 16;

/// Odd ranks that have a line of their own.
const MAX_DETAILS: usize = 16;

/// Groups in a sentence; the rest is counted.
const MAX_GROUPS: usize = 8;

/// What the stacks of a job say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub world_size: u32,
    pub suspects: Suspects,
    /// One sentence for the log; empty without dumps.
    pub headline: String,
    /// A line for each suspect, up to a limit, with its host, what it does, and its calls.
    pub details: Vec<String>,
}

impl Verdict {
    /// Judges the dumps of one job, whose order does not matter. A rank of the world that has no dump and is not said to
    /// be gone is unknown.
    #[must_use]
    pub fn of<'a>(dumps: impl IntoIterator<Item = &'a RankDump>) -> Self {
        let dumps: BTreeMap<u32, &RankDump> = dumps.into_iter().map(|dump| (dump.rank, dump)).collect();
        let world_size = dumps.values().map(|dump| dump.world_size).max().unwrap_or(0);
        let mut sorted = Sorted::default();
        for dump in dumps.values() {
            sorted.add(dump);
        }
        if !dumps.is_empty() {
            let missing = (0..world_size).filter(|rank| !dumps.contains_key(rank)).take(MAX_MISSING);
            sorted.missing = missing.collect();
        }
        let (suspects, clauses) = sorted.judged(&dumps);
        let details = suspects
            .keys()
            .filter_map(|rank| dumps.get(rank))
            .take(MAX_DETAILS)
            .map(|dump| words::detail(dump));
        Self { world_size, headline: clauses.join("; "), details: details.collect(), suspects }
    }

    /// Returns whether some ranks are suspects and others are not: only then a node can be singled out.
    #[must_use]
    pub fn singles_out(&self) -> bool {
        !self.suspects.is_empty() && self.suspects.len() < self.world_size as usize
    }
}

/// The ranks by what is known of them.
#[derive(Default)]
struct Sorted {
    gone: Ranks,
    without_main: Ranks,
    stopped: Ranks,
    traced: Ranks,
    uninterruptible: BTreeMap<Option<String>, Ranks>,
    waiting: BTreeMap<u32, Place>,
    elsewhere: BTreeMap<u32, Place>,
    unread: BTreeMap<String, Ranks>,
    missing: Ranks,
}

impl Sorted {
    fn add(&mut self, dump: &RankDump) {
        let rank = dump.rank;
        let state = dump.state.as_deref().unwrap_or_default().chars().next();
        match (state, Place::of(dump)) {
            _ if dump.gone => self.gone.insert(rank),
            // Its state is that of its first thread.
            (Some('Z' | 'X'), _) => self.without_main.insert(rank),
            (Some('T'), _) => self.stopped.insert(rank),
            (Some('D'), _) => {
                let wchan = dump.wchan.as_deref().map(words::printable);
                let wchan = wchan.filter(|wchan| !wchan.is_empty() && wchan != "0");
                self.uninterruptible.entry(wchan).or_default().insert(rank);
            }
            (_, Some(place)) if place.waits_in.is_some() => drop(self.waiting.insert(rank, place)),
            (_, Some(place)) => drop(self.elsewhere.insert(rank, place)),
            (Some('t'), None) => self.traced.insert(rank),
            (_, None) => {
                let why = dump
                    .notes
                    .first()
                    .map_or_else(|| "no stacks in the dump".to_owned(), |why| words::printable(why));
                self.unread.entry(why).or_default().insert(rank);
            }
        }
    }

    fn judged(mut self, dumps: &BTreeMap<u32, &RankDump>) -> (Suspects, Vec<String>) {
        let mut suspects = Suspects::new();
        let mut clauses = Vec::new();
        self.name_processes(&mut suspects, &mut clauses);
        let has_odd_process = !suspects.is_empty();
        if self.waiting.is_empty() {
            self.take_readers_for_waiting(dumps, has_odd_process);
        } else if !has_odd_process && self.is_exchange_of_victims(dumps) {
            let exchange = std::mem::take(&mut self.elsewhere);
            self.waiting.extend(exchange.into_iter().map(|(rank, place)| (rank, place.waiting())));
        }
        let has_unknown = !self.unread.is_empty() || !self.missing.is_empty();
        if !self.elsewhere.is_empty() {
            self.name_elsewhere(dumps, has_odd_process, &mut suspects, &mut clauses);
            self.list_waiting(&mut clauses);
        } else if has_odd_process {
            self.list_waiting(&mut clauses);
        } else {
            self.name_waiting(dumps, has_unknown, &mut suspects, &mut clauses);
            if suspects.is_empty() && !self.waiting.is_empty() {
                self.suspect_unknown(&mut suspects);
            }
        }
        self.list_unknown(&mut clauses);
        (suspects, clauses)
    }

    /// Ranks whose process is in a state in which nothing advances.
    fn name_processes(&self, suspects: &mut Suspects, clauses: &mut Vec<String>) {
        let plain = [
            (&self.gone, Reason::Gone, ("has no process", "have no process")),
            (
                &self.without_main,
                Reason::WithoutMain,
                ("has no main thread any more", "have no main thread any more"),
            ),
            (&self.stopped, Reason::Stopped, ("is stopped (SIGSTOP)", "are stopped (SIGSTOP)")),
            (&self.traced, Reason::Traced, ("is stopped by a debugger", "are stopped by a debugger")),
        ];
        for (ranks, reason, (one, many)) in plain.into_iter().filter(|(ranks, ..)| !ranks.is_empty()) {
            suspects.extend(ranks.iter().map(|rank| (rank, reason.clone())));
            clauses.push(words::ranks(ranks, one, many));
        }
        for (wchan, ranks) in &self.uninterruptible {
            let reason = Reason::Uninterruptible { wchan: wchan.clone() };
            suspects.extend(ranks.iter().map(|rank| (rank, reason.clone())));
            let sleep =
                words::ranks(ranks, "is in uninterruptible sleep (D)", "are in uninterruptible sleep (D)");
            clauses
                .push(wchan.as_ref().map_or(sleep.clone(), |wchan| format!("{sleep}, waiting in {wchan}")));
        }
    }

    /// Ranks that neither wait nor are in an odd state. They are suspects when others wait; when none does, those are
    /// that are not where most are.
    fn name_elsewhere(
        &self,
        dumps: &BTreeMap<u32, &RankDump>,
        has_odd_process: bool,
        suspects: &mut Suspects,
        clauses: &mut Vec<String>,
    ) {
        let groups = self.places();
        // All wait for each other, as in a collective.
        let is_one_exchange = self.waiting.is_empty()
            && self.elsewhere.len() > 1
            && groups.len() == 1
            && self.elsewhere.values().all(|place| place.reads_socket);
        if is_one_exchange {
            clauses.extend(groups.iter().map(|(frame, ranks)| {
                let place = words::place(frame);
                let place = match self.elsewhere.values().next().and_then(Place::called_by_script) {
                    Some(call) => format!("{place}, called from {}", words::printable(call)),
                    None => place,
                };
                words::ranks(ranks, &format!("waits in {place}"), &format!("wait in {place}"))
            }));
            return;
        }
        let odd = if !self.waiting.is_empty() {
            groups.iter().collect()
        } else if has_odd_process {
            Vec::new()
        } else {
            odd_ones(&groups)
        };
        for (frame, ranks) in &odd {
            for rank in ranks.iter() {
                let doing = dumps.get(&rank).map_or(Doing::Unknown, |dump| Doing::of(dump));
                suspects.insert(rank, Reason::Elsewhere { place: words::place(frame), doing });
            }
        }
        let named = odd.iter().take(MAX_GROUPS).map(|(frame, ranks)| {
            let place = words::place(frame);
            words::ranks(ranks, &format!("is in {place}"), &format!("are in {place}"))
        });
        clauses.extend(named);
        let rest: Vec<_> = groups.iter().filter(|group| !odd.contains(group)).collect();
        let others = rest
            .iter()
            .take(MAX_GROUPS)
            .map(|(frame, ranks)| format!("{} in {}", ranks.listed(), words::place(frame)));
        let others: Vec<String> = others.collect();
        // No suspects, and a reader must see that.
        if !others.is_empty() {
            clauses.push(format!("the other ranks: {}", others.join(", ")));
        }
        let more = odd.len().saturating_sub(MAX_GROUPS) + rest.len().saturating_sub(MAX_GROUPS);
        if more > 0 {
            let places = if more == 1 { "place" } else { "places" };
            clauses.push(format!("{more} more {places}"));
        }
    }

    /// What the victims wait in.
    fn list_waiting(&self, clauses: &mut Vec<String>) {
        let groups = grouped(self.waiting.iter().map(|(rank, place)| (place.waits_in.clone(), *rank)));
        for (waits_in, ranks) in groups.into_iter().take(MAX_GROUPS) {
            clauses.push(format!("{} in {}", words::peers(&ranks), waits_in.unwrap_or_default()));
        }
    }

    /// All ranks that are known wait. Those in another call than most are suspects.
    fn name_waiting(
        &self,
        dumps: &BTreeMap<u32, &RankDump>,
        has_unknown: bool,
        suspects: &mut Suspects,
        clauses: &mut Vec<String>,
    ) {
        let calls = self.calls();
        let [(call, ranks)] = &calls[..] else {
            let mut odd = odd_ones(&calls);
            let mut ahead = None;
            if odd.len() == calls.len()
                && let Some((groups, step)) = ahead_ones(&calls, dumps)
            {
                let ranks: Ranks = groups.iter().flat_map(|(_, ranks)| ranks.iter()).collect();
                ahead = Some(words::ranks(
                    &ranks,
                    &format!("is ahead (step {step})"),
                    &format!("are ahead (step {step})"),
                ));
                odd = groups;
            }
            // The call alone does not tell them apart when it is the same one from another line.
            let of_same_name =
                |call: &Call| calls.iter().filter(|(other, _)| other.name == call.name).count() > 1;
            let named = |call: &Call| match of_same_name(call) {
                true => format!("{} at {}", call.name, call.place),
                false => call.name.clone(),
            };
            let sentences = odd.iter().take(MAX_GROUPS).map(|(call, ranks)| {
                let call = named(call);
                words::ranks(ranks, &format!("waits in {call}"), &format!("wait in {call}"))
            });
            let sentences: Vec<String> = sentences.collect();
            let rest = calls.iter().filter(|group| !odd.contains(group)).take(MAX_GROUPS);
            let rest: Vec<String> =
                rest.map(|(call, ranks)| format!("{} in {}", words::peers(ranks), named(call))).collect();
            for (call, ranks) in &odd {
                let reason =
                    Reason::OtherCollective { waits_in: call.name.clone(), place: call.place.clone() };
                suspects.extend(ranks.iter().map(|rank| (rank, reason.clone())));
            }
            match (sentences.is_empty(), rest.is_empty()) {
                (true, _) => {}
                (false, true) => clauses.push(sentences.join(" while ")),
                (false, false) => clauses.push(format!("{} while {}", sentences.join(", "), rest.join(", "))),
            }
            clauses.extend(ahead);
            return;
        };
        let at = format!("{} at {}", call.name, call.place);
        clauses.push(match (has_unknown, ranks.len()) {
            (false, 2..) => format!("all {} ranks wait in {at}", ranks.len()),
            _ => words::ranks(ranks, &format!("waits in {at}"), &format!("wait in {at}")),
        });
    }

    /// The calls that ranks wait in: told apart by the line of the user's code that has made them, and only when all are
    /// the same, by the lines that lead there. A rank may well take another way to the same call.
    fn calls(&self) -> Vec<(Call, Ranks)> {
        let name = |place: &Place| place.waits_in.clone().unwrap_or_default();
        let of_call = self.waiting.iter().map(|(rank, place)| ((name(place), place.frame.clone()), *rank));
        let by_call = grouped(of_call);
        if by_call.len() > 1 {
            let call = |((name, frame), ranks): ((String, Frame), Ranks)| {
                (Call { name, place: words::place(&frame) }, ranks)
            };
            return by_call.into_iter().map(call).collect();
        }
        let by_path = grouped(self.waiting.iter().map(|(rank, place)| (place.path.clone(), *rank)));
        let first = by_path.first().map_or(&[][..], |(path, _)| path);
        let is_common = |depth: &usize| by_path.iter().all(|(path, _)| path.get(*depth) == first.get(*depth));
        let differs = (0..first.len()).find(|depth| !is_common(depth)).unwrap_or(0);
        let places: Vec<(Call, Ranks)> = by_path
            .iter()
            .filter_map(|(path, ranks)| {
                let of_rank = self.waiting.get(&ranks.first()?)?;
                let frame = path.get(differs).unwrap_or(&of_rank.frame);
                Some((Call { name: name(of_rank), place: words::place(frame) }, ranks.clone()))
            })
            .collect();
        places
    }

    fn suspect_unknown(&self, suspects: &mut Suspects) {
        for (why, ranks) in &self.unread {
            suspects.extend(ranks.iter().map(|rank| (rank, Reason::Unread { why: why.clone() })));
        }
        let why = "it has no dump".to_owned();
        suspects.extend(self.missing.iter().map(|rank| (rank, Reason::Unread { why: why.clone() })));
    }

    fn list_unknown(&self, clauses: &mut Vec<String>) {
        for (why, ranks) in self.unread.iter().take(MAX_GROUPS) {
            clauses.push(format!("{}: {why}", words::ranks(ranks, "could not be read", "could not be read")));
        }
        if !self.missing.is_empty() {
            clauses.push(words::ranks(&self.missing, "has no dump", "have no dump"));
        }
    }
}

/// A call that ranks wait in, and where it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    name: String,
    place: String,
}

/// Ranks by a key, in the order of their first ranks.
fn grouped<K: Ord>(ranks: impl Iterator<Item = (K, u32)>) -> Vec<(K, Ranks)> {
    let mut groups: BTreeMap<K, Ranks> = BTreeMap::new();
    for (key, rank) in ranks {
        groups.entry(key).or_default().insert(rank);
    }
    let mut groups: Vec<(K, Ranks)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, ranks)| ranks.first());
    groups
}

/// The groups that are smaller than the largest; all, when all are of one size.
fn odd_ones<K>(groups: &[(K, Ranks)]) -> Vec<&(K, Ranks)> {
    let largest = groups.iter().map(|(_, ranks)| ranks.len()).max().unwrap_or(0);
    let smaller: Vec<&(K, Ranks)> = groups.iter().filter(|(_, ranks)| ranks.len() < largest).collect();
    if smaller.is_empty() { groups.iter().collect() } else { smaller }
}

/// The groups whose ranks have all finished a step that no rank of the others has, and that step; none when that cannot
/// be told.
fn ahead_ones<'a>(
    calls: &'a [(Call, Ranks)],
    dumps: &BTreeMap<u32, &RankDump>,
) -> Option<(Vec<&'a (Call, Ranks)>, u64)> {
    let step = |rank: u32| dumps.get(&rank).and_then(|dump| dump.step);
    let steps: Vec<Vec<u64>> =
        calls.iter().map(|(_, ranks)| ranks.iter().map(step).collect()).collect::<Option<_>>()?;
    let last = *steps.iter().flatten().max()?;
    let is_ahead = |steps: &Vec<u64>| steps.iter().all(|step| *step == last);
    let is_behind = |steps: &Vec<u64>| steps.iter().all(|step| *step < last);
    let ahead: Vec<_> =
        calls.iter().zip(&steps).filter(|(_, steps)| is_ahead(steps)).map(|(call, _)| call).collect();
    let is_clear = steps.iter().all(|steps| is_ahead(steps) || is_behind(steps));
    (is_clear && ahead.len() < calls.len()).then_some((ahead, last))
}

#[cfg(test)]
#[path = "verdict/tests.rs"]
mod tests;
