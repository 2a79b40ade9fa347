//! Default pairs on a host that they do not fit: a wrong configuration, not a broken node.
//!
//! Pairs that the user configures are what the host should have: a socket of theirs without an accelerator has lost
//! it. The default pairs are for a host of eight accelerators; where a few of those are missing, they are lost too,
//! and it is a fault of the node. Where half of them are missing, or none and they are elsewhere, it is another kind
//! of host, which cannot be distinguished from one that has lost so many.

use crate::counted::counted;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Settings, SocketPair, pairs_text};

/// Why the default pairs cannot be those of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Misfit {
    /// The number of accelerators, if the probe reports it.
    pub devices: Option<u32>,
    pub pairs: Vec<SocketPair>,
    /// Those with a socket that has no accelerator.
    pub lacking: Vec<SocketPair>,
    /// How many pairs are needed.
    pub min_channels: u32,
}

/// Whether these are the default pairs, and so many of them lack an accelerator that it is another kind of host.
pub(super) fn misfit(settings: &Settings, devices: Option<u32>, lacking: Vec<SocketPair>) -> Option<Misfit> {
    let Settings { pairs, min_channels, are_pairs_given, .. } = settings;
    let left = pairs.len() - lacking.len();
    if *are_pairs_given || lacking.is_empty() || left >= *min_channels as usize {
        return None;
    }
    let is_other_host = match devices.map(|devices| devices as usize) {
        Some(devices) => devices <= pairs.len() || devices >= 2 * pairs.len(),
        None => lacking.len() * 2 > pairs.len(),
    };
    let (pairs, min_channels) = (pairs.clone(), *min_channels);
    is_other_host.then_some(Misfit { devices, pairs, lacking, min_channels })
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { devices, pairs, lacking, min_channels } = self;
        let (all, without) = (pairs_text(pairs), pairs_text(lacking));
        match devices {
            Some(devices) => write!(f, "this host has {}", counted(*devices, "accelerator"))?,
            None => write!(f, "this host has too few accelerators")?,
        }
        let left = match min_channels {
            1 => "no pair is left".to_owned(),
            least => format!("fewer than {least} pairs are left"),
        };
        write!(
            f,
            ", and the default pairs {all} need an accelerator on each of {0} sockets (pairs that lack one: \
             {without}), so that {left}. Set --box-pairs to the pairs of this host's sockets; if the host should have \
             all {0} accelerators, set --box-pairs to {all}: missing accelerators are then a fault of the node",
            2 * pairs.len(),
        )
    }
}
