//! How long workers may continue without the master.

use std::time::Duration;

use rules::fence::{FenceTerms, Juror, MAX_JURORS};

use super::{ConvertError, millis, name, node_id, port};
use crate::pb;

/// The shortest lease that a node accepts: it asks every sixth of it.
const MIN_LEASE: u64 = 100;

/// The longest lease: a month.
const MAX_LEASE: u64 = 31 * 24 * 3600 * 1000;

impl From<FenceTerms> for pb::Fence {
    fn from(FenceTerms { lease, jury, is_master_within }: FenceTerms) -> Self {
        let jury = jury.into_iter().map(|Juror { node, address, port }| pb::Juror {
            node_id: node.0,
            address,
            port: u32::from(port),
        });
        Self { lease_millis: millis(lease), jury: jury.collect(), is_master_embedded: is_master_within }
    }
}

impl TryFrom<pb::Fence> for FenceTerms {
    type Error = ConvertError;

    fn try_from(wire: pb::Fence) -> Result<Self, ConvertError> {
        if !(MIN_LEASE..=MAX_LEASE).contains(&wire.lease_millis) {
            let (value, expected) = (wire.lease_millis, "100 to 2678400000");
            return Err(ConvertError::Range { field: "fence.lease_millis", value, expected });
        }
        let length = wire.jury.len();
        if length > MAX_JURORS {
            return Err(ConvertError::TooMany { field: "fence.jury", length, max: MAX_JURORS });
        }
        let jury = wire.jury.into_iter().map(|juror| {
            Ok(Juror {
                node: node_id(juror.node_id, "fence.jury.node_id")?,
                address: name(juror.address, "fence.jury.address")?,
                port: port(juror.port, "fence.jury.port")?,
            })
        });
        Ok(Self {
            lease: Duration::from_millis(wire.lease_millis),
            jury: jury.collect::<Result<_, _>>()?,
            is_master_within: wire.is_master_embedded,
        })
    }
}
