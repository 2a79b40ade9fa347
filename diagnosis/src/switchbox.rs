//! The switchbox check: whether the links between a node's accelerators and its switchbox have enough bandwidth.
//!
//! An accelerator cannot address the switchbox, so two accelerators that are connected to it are measured against each
//! other: A - switchbox - B. Such a pair is one channel.
//!
//! ```text
//! (Check, effects) = Check::new(now, settings, method)     // all pairs are measured, at the same time
//! check.handle(now, Answered { run, pair, answer })        // 5 times; what is in doubt is measured again, alone
//! ... -> Finish(SwitchboxFinding)                                   // pairs, good ones, and the status of the node
//! ```
//!
//! Only a pair that was measured alone can be bad: several at once may share a switch. How values are judged is in
//! [`Style`]; what can be wrong with a pair in [`Trouble`]; the result for the node in [`SwitchboxFinding`].

mod check;
mod finding;
mod judge;
mod misfit;
mod model;
mod pairs;
mod path;
mod rate;
mod trouble;

#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::{
    check::{Answer, Check, Effect, Event},
    finding::{COMPONENT, PairFinding, SwitchboxFinding, SwitchboxStatus},
    judge::{FEWEST, Repetition, Style, Verdict},
    misfit::Misfit,
    pairs::{MAX_PAIRS, PairsError, SocketPair, check_pairs, pairs_text},
    path::{Expected, Path},
    rate::Rate,
    trouble::{Trouble, Wrong},
};

/// The whole check ends by then, whatever hangs.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The message when no probe fits this host.
pub const NO_PROBE: &str = "no switchbox probe on this host: found neither MetaX's tool or driver nor an NVIDIA device \
                            that this program can use; choose a probe with --switchbox-probe \
                            (--switchbox-probe=cuda says what NVIDIA's driver reports)";

/// What is measured, and how much of it must be good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// See [`check_pairs`].
    pub pairs: Vec<SocketPair>,
    /// The user has configured these pairs. Else they are the default, for a host of eight.
    pub are_pairs_given: bool,
    /// Below this a pair is bad; this itself is good.
    pub min: Rate,
    /// With fewer good pairs the node is faulty; from 1 to the number of pairs.
    pub min_channels: u32,
    /// The path that the bytes must take.
    pub expected: Expected,
    /// The models of this host's accelerators, as far as known: they decide which links there should be, where no
    /// pair shows one.
    pub models: Vec<String>,
}

/// How a probe measures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Method {
    /// The probe's name for people.
    pub probe: String,
    /// The result of one measurement.
    pub style: Style,
    /// How long the measurement of one pair may take.
    pub timeout: Duration,
    /// One program measures the pairs of a run one after another: their times add up, and a pair that hangs delays
    /// the answers of the others.
    pub is_serial: bool,
}

impl Method {
    /// The timeout of a run of so many pairs. If one pair delays all of a serial run, and then its own, there is
    /// still time for the others alone: hence a third.
    #[must_use]
    pub fn timeout_for(&self, pairs: usize) -> Duration {
        let times = if self.is_serial { u32::try_from(pairs).unwrap_or(u32::MAX).max(1) } else { 1 };
        self.timeout.saturating_mul(times).min(DEADLINE / 3)
    }
}
