//! Reads the options' values.

use std::str::FromStr;

use super::{
    Wrong,
    fault::{FaultKind, Which},
};

/// What the number behind a node may be.
#[derive(Clone, Copy)]
pub(super) struct Range {
    letter: &'static str,
    words: &'static str,
    most: f64,
    may_be_zero: bool,
}

pub(super) const FACTOR: Range =
    Range { letter: "X", words: "above 0, at most 1000000", most: 1e6, may_be_zero: false };
pub(super) const PROBABILITY: Range =
    Range { letter: "P", words: "from 0 to 1", most: 1.0, may_be_zero: true };
pub(super) const SHARE: Range = Range { letter: "SHARE", words: "from 0 to 1", most: 1.0, may_be_zero: true };

impl Range {
    fn read(self, text: &str) -> Option<f64> {
        let is_fit =
            |number: &f64| *number <= self.most && (*number > 0.0 || self.may_be_zero && *number >= 0.0);
        text.parse().ok().filter(is_fit)
    }
}

/// One value of an option that breaks something.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub(super) option: &'static str,
    /// As it was given.
    pub(super) value: String,
    pub(super) kind: FaultKind,
    pub(super) which: Which,
}

/// An option and its value.
pub(super) type Given<'a> = (&'static str, &'a str);

/// A list option and its values.
pub(super) type List<'a> = (&'static str, &'a [String]);

/// Parses a number that must satisfy `is_fit`; `range` describes it.
pub(super) fn one<T: FromStr>(
    (option, value): Given<'_>,
    range: &str,
    is_fit: impl Fn(&T) -> bool,
) -> Result<T, Wrong> {
    value.parse().ok().filter(is_fit).ok_or_else(|| Wrong::value(option, value.to_owned(), range))
}

/// Parses one of some names.
pub(super) fn name<T: Copy>(
    (option, value): Given<'_>,
    range: &str,
    names: &[(&str, T)],
) -> Result<T, Wrong> {
    let known = names.iter().find(|(name, _)| *name == value);
    known.map(|(_, meaning)| *meaning).ok_or_else(|| Wrong::value(option, value.to_owned(), range))
}

fn faults(
    (option, values): List<'_>,
    range: &str,
    read: impl Fn(&str) -> Option<(Which, FaultKind)>,
) -> Result<Vec<Fault>, Wrong> {
    let read = |value: &String| match read(value.trim()) {
        Some((which, kind)) => Ok(Fault { option, value: value.clone(), kind, which }),
        None => Err(Wrong::value(option, value.clone(), range)),
    };
    values.iter().map(read).collect()
}

/// `NODE`, `random` or `random:COUNT`.
pub(super) fn numbers(list: List<'_>, what: &str, count: u32, kind: FaultKind) -> Result<Vec<Fault>, Wrong> {
    let range = format!("a {what} from 0 to {}, or random:COUNT", count - 1);
    faults(list, &range, |value| Some((some(value, count)?, kind)))
}

/// `A:B`, `random` or `random:COUNT`.
pub(super) fn pairs(list: List<'_>, what: &str, count: u32, kind: FaultKind) -> Result<Vec<Fault>, Wrong> {
    let range = format!("A:B, where A and B are two different {what}, 0 to {}, or random:COUNT", count - 1);
    let read = |value: &str| Some((random(value).or_else(|| pair(value, count))?, kind));
    faults(list, &range, read)
}

/// `A:B:X` or `random:X`.
pub(super) fn slow_links(list: List<'_>, nodes: u32) -> Result<Vec<Fault>, Wrong> {
    let (last, words) = (nodes - 1, FACTOR.words);
    let range =
        format!("A:B:X, where A and B are two different nodes, 0 to {last}, and X is {words}; or random:X");
    faults(list, &range, |value| {
        let (ends, factor) = value.rsplit_once(':')?;
        let ends = if ends == RANDOM { Which::Random(1) } else { pair(ends, nodes)? };
        Some((ends, FaultKind::SlowLink(FACTOR.read(factor)?)))
    })
}

/// `NODE:X` or `random:X`.
pub(super) fn factors(
    list: List<'_>,
    (what, count): (&str, u32),
    range: Range,
    kind: impl Fn(f64) -> FaultKind,
) -> Result<Vec<Fault>, Wrong> {
    let Range { letter, words, .. } = range;
    let (name, last) = (what.to_uppercase(), count - 1);
    let said = format!("{name}:{letter}, where {name} is 0 to {last} or random and {letter} is {words}");
    faults(list, &said, |value| {
        let (number, factor) = value.split_once(':')?;
        let which = if number == RANDOM { Which::Random(1) } else { some(number, count)? };
        Some((which, kind(range.read(factor)?)))
    })
}

/// `NODE@ROUND`, with any form of [`numbers`] before the `@`; without a round where `always` is given.
pub(super) fn after_round(
    list: List<'_>,
    (what, count): (&str, u32),
    always: Option<FaultKind>,
    kind: impl Fn(u32) -> FaultKind,
) -> Result<Vec<Fault>, Wrong> {
    let (name, last) = (what.to_uppercase(), count - 1);
    let form = if always.is_some() { format!("{name} or {name}@ROUND") } else { format!("{name}@ROUND") };
    let range =
        format!("{form}, where {name} is 0 to {last} or random:COUNT and ROUND is 0 to {}", u32::MAX - 1);
    faults(list, &range, |value| match value.split_once('@') {
        Some((number, round)) => {
            let round = round.parse().ok().filter(|round| *round < u32::MAX)?;
            Some((some(number, count)?, kind(round)))
        }
        None => Some((some(value, count)?, always?)),
    })
}
const RANDOM: &str = "random";

/// `random` or `random:COUNT`.
fn random(text: &str) -> Option<Which> {
    let count = match text.strip_prefix(RANDOM)? {
        "" => 1,
        rest => rest.strip_prefix(':')?.parse().ok().filter(|count| *count > 0)?,
    };
    Some(Which::Random(count))
}

fn some(text: &str, count: u32) -> Option<Which> {
    random(text).or_else(|| number(text, count).map(Which::One))
}

/// `A:B`, the lower first.
fn pair(text: &str, count: u32) -> Option<Which> {
    let (a, b) = text.split_once(':')?;
    let (a, b) = (number(a, count)?, number(b, count)?);
    (a != b).then_some(Which::Two(a.min(b), a.max(b)))
}

fn number(text: &str, count: u32) -> Option<u32> {
    text.parse().ok().filter(|number| *number < count)
}
