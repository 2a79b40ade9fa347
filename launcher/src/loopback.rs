//! Advice for a job of several nodes whose rendezvous is at a loopback address, which is the default of torchrun's
//! options: nodes of other hosts cannot reach it.

use crate::{endpoint::is_loopback, resolve::Rendezvous};

/// The option to give. `None` where other hosts may reach the endpoint, there is one node, or the address was not a
/// default of an option (`DLROVER_MASTER_ADDR`).
pub(crate) fn advice(rendezvous: &Rendezvous, max_nodes: u32) -> Option<&'static str> {
    let advice = match rendezvous {
        Rendezvous::C10d(_) => "give --rdzv-endpoint=HOST:PORT of a host that all nodes reach",
        Rendezvous::Static(_) => {
            "give --master-addr=HOST, or --rdzv-endpoint=HOST:PORT, of a host that all nodes reach"
        }
        Rendezvous::Loopback | Rendezvous::Master(_) => return None,
    };
    let is_loopback = rendezvous.endpoint().is_some_and(|endpoint| is_loopback(&endpoint.host));
    (max_nodes > 1 && is_loopback).then_some(advice)
}
