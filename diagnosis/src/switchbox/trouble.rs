//! What can be wrong with a pair. Each has another remedy, so they are kept apart.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What can be wrong with a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    /// Its bandwidth is too low, each time.
    Slow,
    /// Nothing comes through: no bandwidth at all, or no end within the time.
    Dead,
    /// Its bandwidth is enough at one time and too low at another.
    Unstable,
    /// The probe ended without a value.
    NoAnswer,
    /// There is no such program.
    ToolMissing,
    /// There is such a program, and it cannot be started here: a library that is missing, another machine's code.
    CannotStart,
    /// This user may not.
    NoPermission,
    /// The bytes went another way than over the link.
    WrongPath,
    /// The probe does not say which way the bytes went, and nothing else tells.
    UnknownPath,
    /// Other bytes arrived than were sent.
    DataMismatch,
    /// A socket without an accelerator.
    NoSuchDevice,
    /// One program measures all pairs, and it gave nothing that can be used. Where it did for another pair, this is
    /// [`Self::NoAnswer`].
    ProbeFailed,
    /// The time was over before enough was known of it.
    Untested,
}

impl Trouble {
    /// Every one.
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

    /// For people, and for documents.
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

    /// By its word.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|trouble| trouble.as_str() == text)
    }

    /// The pair was not measured, or not enough: that says nothing against its link.
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

    /// Another try may end otherwise: the others were busy at the same time.
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

/// What is wrong with a pair, and what shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrong {
    /// Which of them.
    pub trouble: Trouble,
    /// In words, with numbers and units; may be empty.
    pub message: String,
}

impl Wrong {
    /// It, and what shows it.
    #[must_use]
    pub fn new(trouble: Trouble, message: impl Into<String>) -> Self {
        Self { trouble, message: message.into() }
    }

    /// It says nothing against the pair's link.
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
