//! The path of the bytes of a measurement.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Trouble, Wrong, model::Equipment};

/// The path of the bytes, as reported by the probe.
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
    /// The probe reports no path, or one that is not in this list.
    #[default]
    Unknown,
}

impl Path {
    /// The text of documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Metaxlink => "metaxlink",
            Self::Nvlink => "nvlink",
            Self::Pcie => "pcie",
            Self::Host => "host",
            Self::Loopback => "loopback",
            Self::Unknown => "unknown",
        }
    }

    /// Parses that text; anything else is [`Path::Unknown`].
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let all = [Self::Metaxlink, Self::Nvlink, Self::Pcie, Self::Host, Self::Loopback];
        all.into_iter().find(|path| path.as_str() == text).unwrap_or_default()
    }

    /// It is a link of accelerators, and nothing of the host.
    pub(super) const fn is_link(self) -> bool {
        matches!(self, Self::Metaxlink | Self::Nvlink)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The required path. A lost link falls back to PCIe, which is fast enough for the default bandwidth: only the path
/// shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expected {
    /// The pairs of one switchbox are wired alike: where one of them uses a link, all must. Where none does, their model
    /// decides what they should have.
    #[default]
    Alike,
    /// Every path.
    Any,
    /// This one only; an unknown path does not match.
    Exactly(Path),
}

impl Expected {
    /// Parses the value of the option: `auto`, `any`, `metaxlink`, `nvlink`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Alike),
            "any" => Some(Self::Any),
            "metaxlink" => Some(Self::Exactly(Path::Metaxlink)),
            "nvlink" => Some(Self::Exactly(Path::Nvlink)),
            _ => None,
        }
    }

    /// What is wrong with the path of a pair that is fast enough; `None`: nothing.
    pub(super) fn missed(self, measured_path: &MeasuredPath<'_>) -> Option<Wrong> {
        let MeasuredPath { is_itself, path, linked, equipment } = measured_path;
        let went = |message: fmt::Arguments<'_>| {
            let text = match path {
                Path::Unknown => {
                    format!("the probe does not report the path that the bytes took; it must be {message}")
                }
                Path::Loopback => {
                    format!(
                        "the bytes stayed within one accelerator (loopback) and did not go over {message}"
                    )
                }
                Path::Host => format!("the bytes went through the host's memory and not over {message}"),
                _ => format!("the bytes went over {path} and not over {message}"),
            };
            Some(Wrong::new(Trouble::WrongPath, text))
        };
        match self {
            Self::Any => None,
            Self::Exactly(expected) if *path == expected => None,
            Self::Exactly(expected) => went(format_args!("{expected}")),
            Self::Alike => match (path, linked, equipment) {
                (path, _, _) if path.is_link() => None,
                (Path::Loopback, _, _) if *is_itself => None,
                (_, Some(link), _) => went(format_args!("{link}, which another pair of this switchbox uses")),
                (Path::Loopback, None, _) => {
                    let message = "the bytes stayed within one accelerator (loopback), and the pair has two";
                    Some(Wrong::new(Trouble::WrongPath, message))
                }
                (Path::Unknown, None, Equipment::Bus(_)) => None,
                (Path::Unknown, None, _) => {
                    let message = "the probe does not report the path that the bytes took; set \
                                   --switchbox-path=any to accept every path";
                    Some(Wrong::new(Trouble::UnknownPath, message))
                }
                (_, None, Equipment::Link(link, model)) => went(format_args!(
                    "{link}, which {model} has; if this host has no such link, set --switchbox-path=any"
                )),
                (_, None, Equipment::Bus(_) | Equipment::Unknown) => None,
            },
        }
    }

    /// A remark on the path of a pair that passes.
    pub(super) fn remark(self, measured_path: &MeasuredPath<'_>) -> Option<String> {
        let is_compared = self == Self::Alike && measured_path.linked.is_none() && !measured_path.is_itself;
        match &measured_path.equipment {
            _ if !is_compared => None,
            Equipment::Bus(model) if measured_path.path == Path::Unknown => Some(format!(
                "the probe does not report the path that the bytes took, and {model} is not known to have a link"
            )),
            Equipment::Bus(model) => {
                Some(format!("no pair used a link, and {model} is not known to have one"))
            }
            Equipment::Unknown => Some(
                "no pair used a link, and whether this model of accelerator should have one is not known: if it \
                 should, set --switchbox-path to metaxlink or nvlink; if not, to any"
                    .to_owned(),
            ),
            Equipment::Link(..) => None,
        }
    }
}

/// The path of a pair, and what to compare it with.
#[derive(Debug)]
pub(super) struct MeasuredPath<'a> {
    /// The pair is a socket with itself.
    pub(super) is_itself: bool,
    pub(super) path: Path,
    /// The link that any pair of the same switchbox used.
    pub(super) linked: Option<Path>,
    /// The links of the accelerators' model.
    pub(super) equipment: Equipment<'a>,
}
