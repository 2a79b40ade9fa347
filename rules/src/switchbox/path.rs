//! Which way the bytes of a measurement took.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which way the bytes took, as the probe says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// MetaX's link.
    Metaxlink,
    /// NVIDIA's link.
    Nvlink,
    /// The host's bus.
    Pcie,
    /// The host's memory: no link was tested at all.
    Host,
    /// Within one accelerator.
    Loopback,
    /// The probe does not say, or says something that is not in this list.
    #[default]
    Unknown,
}

impl Path {
    /// As documents spell it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Metaxlink => "metaxlink",
            Self::Nvlink => "nvlink",
            Self::Pcie => "pcie",
            Self::Host => "host",
            Self::Loopback => "loopback",
            Self::Unknown => "unknown",
        }
    }

    /// By its word; other words are [`Path::Unknown`].
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        let all = [Self::Metaxlink, Self::Nvlink, Self::Pcie, Self::Host, Self::Loopback];
        all.into_iter().find(|path| path.word() == word).unwrap_or_default()
    }

    const fn is_link(self) -> bool {
        matches!(self, Self::Metaxlink | Self::Nvlink)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Which way the bytes must take. A link that is lost falls back to PCIe, which is fast enough for the default
/// bandwidth: only the path tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expected {
    /// The pairs of one box are wired alike: where one of them goes over a link, none may go over PCIe or the host.
    #[default]
    Alike,
    /// Whatever it is.
    Any,
    /// This and nothing else; a path that is not known is not it.
    Exactly(Path),
}

impl Expected {
    /// By the option's word: `auto`, `any`, `metaxlink`, `nvlink`.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "auto" => Some(Self::Alike),
            "any" => Some(Self::Any),
            "metaxlink" => Some(Self::Exactly(Path::Metaxlink)),
            "nvlink" => Some(Self::Exactly(Path::Nvlink)),
            _ => None,
        }
    }

    /// What the bytes of a pair must have taken, when every pair took these; `None`: its own path will do.
    pub(super) fn missed(self, path: Path, mut all: impl Iterator<Item = Path>) -> Option<Path> {
        match self {
            Self::Any => None,
            Self::Exactly(expected) => (path != expected).then_some(expected),
            Self::Alike if matches!(path, Path::Pcie | Path::Host) => all.find(|path| path.is_link()),
            Self::Alike => None,
        }
    }
}
