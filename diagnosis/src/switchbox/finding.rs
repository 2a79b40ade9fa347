//! The result of a check, and its messages.

use crate::counted::counted;
use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{FEWEST, Path, Rate, Repetition, SocketPair, Trouble, Verdict, Wrong};
use crate::network_check::{Component, LocalCheck, LocalFault};

/// The component of a node's local fault, and the value of its taint.
pub const COMPONENT: &str = "switchbox";

/// The result of one pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairFinding {
    /// Its sockets.
    pub pair: SocketPair,
    /// The devices of its sockets, as far as the probe knows: `GPU 3`, `GPU 3 (0000:5b:00.0)`.
    pub devices: Option<(String, String)>,
    /// Whether it is a channel.
    pub verdict: Verdict,
    /// What is wrong with it; `None` exactly when it is good.
    pub wrong: Option<Wrong>,
    /// The values behind the verdict.
    pub values: Vec<Repetition>,
    /// The path that the bytes took.
    pub path: Path,
    /// Nothing else was measured at the time.
    pub alone: bool,
}

impl PairFinding {
    /// Whether it counts as a channel.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.verdict == Verdict::Good
    }

    /// The lowest, the middle and the highest of some values; `None` without any.
    #[must_use]
    pub fn spread(values: impl IntoIterator<Item = Rate>) -> Option<(Rate, Rate, Rate)> {
        let mut values: Vec<Rate> = values.into_iter().collect();
        values.sort_unstable();
        Some((*values.first()?, *values.get(values.len() / 2)?, *values.last()?))
    }

    /// `3:5 (GPU 3 -> GPU 5)`.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.devices {
            Some((one, other)) => format!("{} ({one} -> {other})", self.pair),
            None => self.pair.to_string(),
        }
    }
}

/// The status of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchboxStatus {
    /// Every pair is good.
    Ok,
    /// Enough are good.
    Degraded,
    /// Too few could be measured: no tool, no permission, a probe that fails, an unknown path, no time. Too few are
    /// known to be broken.
    Untested,
    /// Too few are good.
    Fault,
}

impl SwitchboxStatus {
    /// The status as text and documents have it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Untested => "untested",
            Self::Fault => "node fault",
        }
    }
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchboxFinding {
    /// The probe's name for people.
    pub probe: String,
    pub min: Rate,
    /// The required number of good pairs.
    pub min_channels: u32,
    /// By pair, in the order given.
    pub pairs: Vec<PairFinding>,
    /// From its start to its end.
    pub took: Duration,
    /// Remarks that hold whatever the status is.
    pub remarks: Vec<String>,
}

impl SwitchboxFinding {
    /// The number of good pairs.
    #[must_use]
    pub fn good(&self) -> usize {
        self.pairs.iter().filter(|pair| pair.is_good()).count()
    }

    /// The status of the node.
    #[must_use]
    pub fn status(&self) -> SwitchboxStatus {
        let (good, least) = (self.good(), self.min_channels as usize);
        let untested = self.pairs.iter().filter(|pair| pair.verdict == Verdict::Untested).count();
        match good {
            good if good == self.pairs.len() => SwitchboxStatus::Ok,
            good if good >= least => SwitchboxStatus::Degraded,
            good if good + untested >= least => SwitchboxStatus::Untested,
            _ => SwitchboxStatus::Fault,
        }
    }

    /// One line for each pair that is not good: its name, the trouble, and the numbers.
    pub fn troubles(&self) -> impl Iterator<Item = String> {
        let name = |pair: &PairFinding, wrong: &Wrong| format!("pair {}: {wrong}", pair.name());
        self.pairs.iter().filter_map(move |pair| Some(name(pair, pair.wrong.as_ref()?)))
    }

    /// The fault that excludes the node, if any.
    #[must_use]
    pub fn fault(&self) -> Option<LocalFault> {
        let component = match self.status() {
            SwitchboxStatus::Ok | SwitchboxStatus::Degraded => return None,
            SwitchboxStatus::Untested => Component::SwitchboxProbe,
            SwitchboxStatus::Fault => Component::Switchbox,
        };
        let troubles: Vec<String> = self.troubles().collect();
        let reason = format!("{}; {}{}", self.score(), self.advice(), troubles.join("; "));
        Some(LocalFault { component, reason })
    }

    /// Adds it to the result of the self-test.
    pub fn add_to(&self, checked: &mut LocalCheck) {
        checked.fault = checked.fault.take().or_else(|| self.fault());
        checked.notes.extend(self.notes());
    }

    /// The notes on a node that passes.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let troubles = self.troubles().map(|trouble| format!("{COMPONENT} {trouble}"));
        let remarks = self.remarks.iter().map(|remark| format!("{COMPONENT}: {remark}"));
        match self.status() {
            SwitchboxStatus::Ok | SwitchboxStatus::Degraded => troubles.chain(remarks).collect(),
            SwitchboxStatus::Untested | SwitchboxStatus::Fault => Vec::new(),
        }
    }

    /// Advice on a probe that is broken itself; else empty.
    fn advice(&self) -> String {
        let probe = &self.probe;
        let has = |trouble| {
            self.pairs.iter().any(|pair| pair.wrong.as_ref().is_some_and(|wrong| wrong.trouble == trouble))
        };
        if has(Trouble::CannotStart) {
            format!("{probe} cannot be started: run it by hand on this node; `ldd` lists missing libraries; ")
        } else if has(Trouble::ProbeFailed) {
            format!("{probe} gave no usable answer for any pair: run it by hand on this node; ")
        } else {
            String::new()
        }
    }

    /// The number of good pairs, in the last line of a check and in the reason of a fault.
    fn score(&self) -> String {
        format!("{} of {} good, {} needed", self.good(), counted(self.pairs.len(), "pair"), self.min_channels)
    }
}

impl fmt::Display for SwitchboxFinding {
    /// The last line of a check.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (status, seconds) = (self.status().as_str(), self.took.as_secs_f64());
        write!(f, "{}: {status}, {seconds:.2} s", self.score())?;
        if let Some(advice) = self.advice().strip_suffix("; ") {
            write!(f, "; {advice}")?;
        }
        for remark in &self.remarks {
            write!(f, "; {remark}")?;
        }
        if self.pairs.iter().any(|pair| pair.path == Path::Host) {
            write!(f, "; bytes went through the host's memory, which tests no link")?;
        }
        Ok(())
    }
}

/// What is wrong with values that are too low, or too few.
pub(super) fn of_values(verdict: Verdict, min: Rate, values: &[Repetition], alone: bool) -> Option<Wrong> {
    let how = if alone { "" } else { " alongside other pairs" };
    let range = range_text(values)?;
    let good = values.iter().filter(|it| it.value() >= min).count();
    let is_dead = values.iter().all(|it| it.value() == Rate::default());
    let (times, weak) =
        (counted(values.len(), if alone { "solo run" } else { "run" }), weak_direction(min, values));
    let ways = if values.iter().any(|it| it.back.is_some()) { " both ways" } else { "" };
    let (trouble, message) = match verdict {
        Verdict::Good => return None,
        Verdict::Bad if is_dead => (Trouble::Dead, format!("0 MB/s in {times}{how}{weak}")),
        Verdict::Bad => (
            Trouble::Slow,
            format!("{range} in {times}{how}; {good} of {} reached {min} MB/s{ways}{weak}", values.len()),
        ),
        Verdict::Unstable => {
            (Trouble::Unstable, format!("{good} of {times}{how} reached {min} MB/s{ways}, {range}{weak}"))
        }
        Verdict::Untested if alone => (
            Trouble::Untested,
            format!("no time was left for more than {times}: {range}; {good} reached {min} MB/s{ways}"),
        ),
        Verdict::Untested => (
            Trouble::Untested,
            format!("no time was left to measure it alone; {range} in {times} alongside other pairs"),
        ),
    };
    Some(Wrong::new(trouble, message))
}

/// A remark on good pairs with fewer values than needed, because runs are slow.
pub(super) fn too_few_runs(pairs: &[PairFinding]) -> Option<String> {
    let few = |it: &&PairFinding| it.is_good() && it.values.len() < FEWEST as usize;
    let count = pairs.iter().filter(few).count();
    let times = pairs.iter().filter(few).map(|it| it.values.len()).min()?;
    Some(format!(
        "the probe is slow: {} had fewer than {FEWEST} runs (at least {times}), so an intermittent link may have been \
         missed",
        counted(count, "good pair")
    ))
}

/// The lowest and the highest of the values, by direction where there are two; `None` without any.
fn range_text(values: &[Repetition]) -> Option<String> {
    let range = |values: &[Rate]| {
        let (low, _, high) = PairFinding::spread(values.iter().copied())?;
        Some(if low == high { format!("{low} MB/s") } else { format!("{low} to {high} MB/s") })
    };
    let there = range(&values.iter().map(|it| it.there).collect::<Vec<_>>())?;
    let back = range(&values.iter().filter_map(|it| it.back).collect::<Vec<_>>());
    Some(back.map_or_else(|| there.clone(), |back| format!("first->second {there}, second->first {back}")))
}

/// The direction that is too slow, where the other is not: a transmitter and a receiver fail separately, so
/// it shows which end of the cable to check.
fn weak_direction(min: Rate, values: &[Repetition]) -> &'static str {
    let there = values.iter().any(|it| it.there < min);
    let back = values.iter().any(|it| it.back.is_some_and(|back| back < min));
    match (there, back, values.iter().any(|it| it.back.is_some())) {
        (true, false, true) => ", too slow only from the first socket to the second",
        (false, true, true) => ", too slow only from the second socket to the first",
        _ => "",
    }
}
