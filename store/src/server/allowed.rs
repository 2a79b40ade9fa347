use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use tokio::sync::watch;

/// The addresses that may connect to a store. All clones are one list. As long as it is not known, connections wait.
#[derive(Debug, Clone)]
pub struct Allowed {
    list: Arc<watch::Sender<Option<BTreeSet<IpAddr>>>>,
}

impl Default for Allowed {
    /// Not known yet.
    fn default() -> Self {
        Self { list: Arc::new(watch::Sender::new(None)) }
    }
}

impl Allowed {
    /// From now on whoever connects waits until the list is known.
    pub fn forget(&self) {
        self.list.send_replace(None);
    }

    /// These and no others. Connections that are open stay.
    pub fn set(&self, addresses: BTreeSet<IpAddr>) {
        self.list.send_replace(Some(addresses));
    }

    /// Waits until the list is known.
    pub(super) async fn is_known(&self) {
        // The sender is ours, so it cannot be gone.
        let mut list = self.list.subscribe();
        drop(list.wait_for(Option::is_some).await);
    }

    /// Whether the list has it. An IPv4 address in IPv6 form is the same.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.list.borrow().as_ref().is_some_and(|list| list.contains(&ip.to_canonical()))
    }
}
