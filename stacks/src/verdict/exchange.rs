//! Exchanges of a program's own, which have no name that tells: ranks that wait for their peers in them, by a socket.

use std::collections::{BTreeMap, BTreeSet};

use super::{Sorted, grouped};
use crate::{
    folding::Ranks,
    model::{Frame, RankDump},
    place::{Place, last_name},
    suspects::Doing,
    words,
};

impl Sorted {
    /// When no rank waits in a call that is known as one, those that wait for a socket or for input are taken for
    /// waiting, if there are others: a trainer may have an exchange of its own, of any name.
    pub(super) fn take_readers_for_waiting(
        &mut self,
        dumps: &BTreeMap<u32, &RankDump>,
        has_odd_process: bool,
    ) {
        let is_reader = |rank: &u32| {
            let doing = dumps.get(rank).map(|dump| Doing::of(dump));
            matches!(doing, Some(Doing::WaitingForSocket | Doing::WaitingForInput))
        };
        let (readers, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.elsewhere).into_iter().partition(|(rank, _)| is_reader(rank));
        if readers.is_empty() || others.is_empty() && !has_odd_process {
            self.elsewhere = readers.into_iter().chain(others).collect();
            return;
        }
        self.elsewhere = others;
        self.waiting = readers.into_iter().map(|(rank, place)| (rank, place.waiting())).collect();
    }

    /// Whether some ranks wait in a call that is known as one, and all others in one exchange of the program's own. Then
    /// those are the odd ones that are ahead by their counted steps; when steps are not counted, the fewer.
    pub(super) fn is_exchange_of_victims(&self, dumps: &BTreeMap<u32, &RankDump>) -> bool {
        let mut places = self.elsewhere.values();
        let Some(first) = places.next().filter(|place| place.reads_socket) else { return false };
        let functions = first.functions();
        if !places.all(|place| place.reads_socket && place.functions() == functions) {
            return false;
        }
        let steps = |ranks: &BTreeMap<u32, Place>| -> Option<Vec<u64>> {
            ranks.keys().map(|rank| dumps.get(rank).and_then(|dump| dump.step)).collect()
        };
        match (steps(&self.waiting), steps(&self.elsewhere)) {
            (Some(waiting), Some(exchange)) => waiting.iter().min() > exchange.iter().max(),
            _ => self.elsewhere.len() > self.waiting.len(),
        }
    }

    /// Ranks that are elsewhere by their places. Those that read sockets are told apart by the functions that have led
    /// there, since many read them by the same function.
    pub(super) fn places(&self) -> Vec<(Frame, Ranks)> {
        let mut known: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for function in self.elsewhere.values().chain(self.waiting.values()).flat_map(Place::functions) {
            *known.entry(function).or_default() += 1;
        }
        let groups = grouped(self.elsewhere.iter().map(|(rank, place)| (Key::of(place), *rank)));
        let named = |(key, ranks): (Key<'_>, Ranks)| {
            let place = ranks.first().and_then(|rank| self.elsewhere.get(&rank))?;
            // The innermost function in which no other rank is.
            let is_theirs = |frame: &&Frame| {
                known.get(&(frame.file.as_str(), frame.function.as_str())) == Some(&ranks.len())
            };
            let telling = || place.frames.iter().find(is_theirs).unwrap_or(&place.frame).clone();
            Some((key.frame.cloned().unwrap_or_else(telling), ranks))
        };
        groups.into_iter().filter_map(named).collect()
    }
}

/// What ranks of one group have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key<'a> {
    frame: Option<&'a Frame>,
    functions: Vec<(&'a str, &'a str)>,
}

impl<'a> Key<'a> {
    fn of(place: &'a Place) -> Self {
        if place.reads_socket {
            Self { frame: None, functions: place.functions() }
        } else {
            Self { frame: Some(&place.frame), functions: Vec::new() }
        }
    }
}

impl Place {
    /// The place of a rank that is taken for waiting, in a call of any name.
    pub(super) fn waiting(self) -> Self {
        Self { waits_in: Some(words::place(&self.frame)), ..self }
    }

    /// The function that the script calls in another file of the user's, outside of the innermost one; none when all is in
    /// one file.
    pub(super) fn called_by_script(&self) -> Option<&str> {
        let script = &self.frames.last()?.file;
        let (depth, call) = self.frames.iter().enumerate().rev().find(|(_, frame)| frame.file != *script)?;
        (depth > 0).then(|| last_name(&call.function))
    }

    /// The functions of the user's code, by their files, each once, innermost first. Expressions are none.
    fn functions(&self) -> Vec<(&str, &str)> {
        let mut known = BTreeSet::new();
        let named = self.frames.iter().map(|frame| (frame.file.as_str(), frame.function.as_str()));
        let functions = named.filter(|(_, function)| !function.ends_with('>') || *function == "<module>");
        functions.filter(|function| known.insert(*function)).collect()
    }
}
