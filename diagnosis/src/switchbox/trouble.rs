//! What can be wrong with a pair. Each has its own remedy, so they are kept apart.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What can be wrong with a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    /// Its bandwidth is too low, each time.
    Slow,
    /// No bytes arrive: no bandwidth at all, or no end in time.
    Dead,
    /// Its bandwidth is enough at one time and too low at another.
    Unstable,
    /// The probe ended without a value.
    NoAnswer,
    /// There is no such program.
    ToolMissing,
    /// The program exists, and cannot be started here: a missing library, another architecture.
    CannotStart,
    /// This user has no permission.
    NoPermission,
    /// The bytes took another path than the link.
    WrongPath,
    /// The probe does not report the path, and it is not known otherwise.
    UnknownPath,
    /// Other bytes arrived than were sent.
    DataMismatch,
    /// A socket of the pair has no accelerator.
    NoSuchDevice,
    /// One program measures all pairs, and it gave no usable answer. If it did for another pair, this is
    /// [`Self::NoAnswer`].
    ProbeFailed,
    /// The time was over before enough was known of it.
    Untested,
}

impl Trouble {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Slow,
        Self::Dead,
        Self::Unstable,
        Self::NoAnswer,
        Self::ToolMissing,
        Self::CannotStart,
        Self::NoPermission,
        Self::WrongPath,
        Self::UnknownPath,
        Self::DataMismatch,
        Self::NoSuchDevice,
        Self::ProbeFailed,
        Self::Untested,
    ];

    /// The text for people and documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Dead => "dead",
            Self::Unstable => "unstable",
            Self::NoAnswer => "no answer",
            Self::ToolMissing => "tool missing",
            Self::CannotStart => "cannot start",
            Self::NoPermission => "no permission",
            Self::WrongPath => "wrong path",
            Self::UnknownPath => "unknown path",
            Self::DataMismatch => "data mismatch",
            Self::NoSuchDevice => "no such device",
            Self::ProbeFailed => "probe failed",
            Self::Untested => "untested",
        }
    }

    /// Parses that text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|trouble| trouble.as_str() == text)
    }

    /// The pair was not measured, or not enough: its link may be good.
    pub(super) const fn is_untested(self) -> bool {
        matches!(
            self,
            Self::ToolMissing
                | Self::CannotStart
                | Self::NoPermission
                | Self::UnknownPath
                | Self::ProbeFailed
                | Self::Untested
        )
    }

    /// Another attempt may succeed: the others were busy at the same time.
    pub(super) const fn is_worth_a_retry(self) -> bool {
        !matches!(
            self,
            Self::ToolMissing
                | Self::NoPermission
                | Self::WrongPath
                | Self::UnknownPath
                | Self::DataMismatch
                | Self::NoSuchDevice
        )
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is wrong with a pair, and the evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrong {
    pub trouble: Trouble,
    /// The evidence, with numbers and units; may be empty.
    pub message: String,
}

impl Wrong {
    /// It, and what shows it.
    #[must_use]
    pub fn new(trouble: Trouble, message: impl Into<String>) -> Self {
        Self { trouble, message: message.into() }
    }

    /// The pair's link may be good.
    pub(super) const fn is_untested(&self) -> bool {
        self.trouble.is_untested()
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.trouble.fmt(f)?;
        if self.message.is_empty() { Ok(()) } else { write!(f, ", {}", self.message) }
    }
}
