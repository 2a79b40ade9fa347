//! The waits of all clients: for keys (WAIT), and for other clients (BARRIER).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    ClientId,
    quota::{Quota, Refused},
};
use crate::codec::Key;

/// The waits of all clients. Ids grow, so that the order of ids is the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Waits {
    next: WaitId,
    waits: HashMap<WaitId, Wait>,
    by_key: HashMap<Key, BTreeSet<WaitId>>,
    by_barrier: HashMap<Key, BTreeSet<WaitId>>,
    /// A client that follows the protocol has one wait at a time; one that does not is answered for each.
    by_client: BTreeMap<ClientId, BTreeSet<WaitId>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(super) struct WaitId(u64);

#[derive(Debug)]
struct Wait {
    client: ClientId,
    on: On,
}

#[derive(Debug)]
enum On {
    /// The keys that were missing at the start, and how many of them have not been set since. A key that was set and
    /// deleted again counts as set, as in torch.
    Keys {
        missing_at_start: Vec<Key>,
        still_missing: usize,
        /// All its keys were added.
        is_complete: bool,
    },
    Barrier(Key),
}

impl Waits {
    /// Begins a wait for the keys that [`Waits::add`] adds. It ends with [`Waits::is_over`] or later.
    pub(super) fn begin(&mut self, client: ClientId) -> WaitId {
        let on = On::Keys { missing_at_start: Vec::new(), still_missing: 0, is_complete: false };
        self.enter(client, on)
    }

    /// Adds a missing key to the wait. It may be added twice.
    pub(super) fn add(&mut self, id: WaitId, key: Key, quota: &mut Quota) -> Result<(), Refused> {
        let Some(Wait { on: On::Keys { missing_at_start, still_missing, .. }, .. }) = self.waits.get_mut(&id)
        else {
            return Ok(());
        };
        quota.charge(place_cost(&key))?;
        if !self.by_key.entry(key.clone()).or_default().insert(id) {
            quota.refund(place_cost(&key));
            return Ok(());
        }
        missing_at_start.push(key);
        *still_missing += 1;
        Ok(())
    }

    /// All keys were added. Returns whether the wait is over, because all of them have been set since.
    pub(super) fn is_over(&mut self, id: WaitId, quota: &mut Quota) -> bool {
        if let Some(Wait { on: On::Keys { still_missing, is_complete, .. }, .. }) = self.waits.get_mut(&id) {
            *is_complete = true;
            if *still_missing > 0 {
                return false;
            }
        }
        self.leave(id, quota).is_some()
    }

    pub(super) fn arrive(
        &mut self,
        client: ClientId,
        barrier: Key,
        quota: &mut Quota,
    ) -> Result<(), Refused> {
        quota.charge(place_cost(&barrier))?;
        let id = self.enter(client, On::Barrier(barrier.clone()));
        self.by_barrier.entry(barrier).or_default().insert(id);
        Ok(())
    }

    /// The key was set: calls `end` for each client whose wait ends, in order of arrival.
    pub(super) fn on_key(&mut self, key: &Key, quota: &mut Quota, mut ended: impl FnMut(ClientId)) {
        for id in self.by_key.remove(key).unwrap_or_default() {
            if let Some(client) = self.on_key_for(id, quota) {
                ended(client);
            }
        }
    }

    /// A value was pushed to the queue `key`: it ends the wait of the first client that then has all its keys, and
    /// only that one. For earlier clients, which wait for more keys, the key counts as set.
    pub(super) fn on_push(&mut self, key: &Key, quota: &mut Quota) -> Option<ClientId> {
        let mut ids = self.by_key.remove(key)?;
        let mut ended = None;
        while ended.is_none() && !ids.is_empty() {
            ended = ids.pop_first().and_then(|id| self.on_key_for(id, quota));
        }
        if !ids.is_empty() {
            self.by_key.insert(key.clone(), ids);
        }
        ended
    }

    pub(super) fn on_barrier_full(&mut self, key: &Key, quota: &mut Quota, mut ended: impl FnMut(ClientId)) {
        for id in self.by_barrier.remove(key).unwrap_or_default() {
            if let Some(wait) = self.leave(id, quota) {
                ended(wait.client);
            }
        }
    }

    /// Drops the client's waits. Returns the barriers that it had reached.
    pub(super) fn drop_client(&mut self, client: ClientId, quota: &mut Quota) -> Vec<Key> {
        let mut barriers = Vec::new();
        for id in self.by_client.remove(&client).unwrap_or_default() {
            let Some(wait) = self.leave(id, quota) else { continue };
            match wait.on {
                On::Keys { missing_at_start, .. } => {
                    for key in &missing_at_start {
                        forget(&mut self.by_key, key, id);
                    }
                }
                On::Barrier(key) => {
                    forget(&mut self.by_barrier, &key, id);
                    barriers.push(key);
                }
            }
        }
        barriers
    }

    fn on_key_for(&mut self, id: WaitId, quota: &mut Quota) -> Option<ClientId> {
        if let On::Keys { still_missing, is_complete, .. } = &mut self.waits.get_mut(&id)?.on {
            *still_missing -= 1;
            if *still_missing > 0 || !*is_complete {
                return None;
            }
        }
        self.leave(id, quota).map(|wait| wait.client)
    }

    fn enter(&mut self, client: ClientId, on: On) -> WaitId {
        self.next.0 += 1;
        self.waits.insert(self.next, Wait { client, on });
        self.by_client.entry(client).or_default().insert(self.next);
        self.next
    }

    fn leave(&mut self, id: WaitId, quota: &mut Quota) -> Option<Wait> {
        let wait = self.waits.remove(&id)?;
        match &wait.on {
            On::Keys { missing_at_start, .. } => {
                missing_at_start.iter().for_each(|key| quota.refund(place_cost(key)));
            }
            On::Barrier(key) => quota.refund(place_cost(key)),
        }
        if let Some(ids) = self.by_client.get_mut(&wait.client) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_client.remove(&wait.client);
            }
        }
        Some(wait)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waits.len()
    }

    /// Whether no wait is left.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty()
            && self.by_key.is_empty()
            && self.by_barrier.is_empty()
            && self.by_client.is_empty()
    }
}

/// The cost of a wait for one key: its place in the wait and the wait's place under the key.
fn place_cost(key: &Key) -> usize {
    key.as_bytes().len()
}

fn forget(places: &mut HashMap<Key, BTreeSet<WaitId>>, key: &Key, id: WaitId) {
    if let Some(ids) = places.get_mut(key) {
        ids.remove(&id);
        if ids.is_empty() {
            places.remove(key);
        }
    }
}
