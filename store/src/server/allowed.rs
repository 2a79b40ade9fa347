//! The addresses that may connect to a store.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use tokio::sync::watch;

/// The addresses that may connect to a store. Clones share one list. While it is unknown, connections wait.
#[derive(Debug, Clone)]
pub struct Allowed {
    list: Arc<watch::Sender<Option<BTreeSet<IpAddr>>>>,
}

impl Default for Allowed {
    /// Unknown.
    fn default() -> Self {
        Self { list: Arc::new(watch::Sender::new(None)) }
    }
}

impl Allowed {
    /// Makes the list unknown: new connections wait.
    pub fn forget(&self) {
        self.list.send_replace(None);
    }

    /// Allows these addresses only. Open connections stay.
    pub fn set(&self, addresses: BTreeSet<IpAddr>) {
        self.list.send_replace(Some(addresses));
    }

    /// Waits until the list is known.
    pub(super) async fn is_known(&self) {
        // The sender is in `self`, so it exists.
        let mut list = self.list.subscribe();
        drop(list.wait_for(Option::is_some).await);
    }

    /// Whether the list contains the address. An IPv4 address in IPv6 form is the same.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.list.borrow().as_ref().is_some_and(|list| list.contains(&ip.to_canonical()))
    }
}
