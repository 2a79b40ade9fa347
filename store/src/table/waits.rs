use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    ClientId,
    ledger::{Ledger, Refused},
};
use crate::codec::Key;

/// Who waits for what. Ids grow, so that the order of ids is the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Waits {
    next: WaitId,
    waits: HashMap<WaitId, Wait>,
    by_key: HashMap<Key, BTreeSet<WaitId>>,
    by_barrier: HashMap<Key, BTreeSet<WaitId>>,
    /// A client that obeys the protocol waits for one thing at a time; one that does not is answered for each.
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
    /// The keys that were missing at the start, and how many of them have not come since. One that came and
    /// was deleted again has come: torch counts the same.
    Keys {
        missing_at_start: Vec<Key>,
        still_missing: usize,
        /// All its keys are named.
        is_told: bool,
    },
    Barrier(Key),
}

impl Waits {
    /// A wait for the keys that [`Waits::add`] names. It ends by [`Waits::is_over`] or later.
    pub(super) fn begin(&mut self, client: ClientId) -> WaitId {
        let on = On::Keys { missing_at_start: Vec::new(), still_missing: 0, is_told: false };
        self.enter(client, on)
    }

    /// The wait is for this key too, which is missing. It may be named twice.
    pub(super) fn add(&mut self, id: WaitId, key: Key, ledger: &mut Ledger) -> Result<(), Refused> {
        let Some(Wait { on: On::Keys { missing_at_start, still_missing, .. }, .. }) = self.waits.get_mut(&id)
        else {
            return Ok(());
        };
        ledger.charge(place_cost(&key))?;
        if !self.by_key.entry(key.clone()).or_default().insert(id) {
            ledger.refund(place_cost(&key));
            return Ok(());
        }
        missing_at_start.push(key);
        *still_missing += 1;
        Ok(())
    }

    /// All keys are named. Whether the wait is over, because all of them have come since.
    pub(super) fn is_over(&mut self, id: WaitId, ledger: &mut Ledger) -> bool {
        if let Some(Wait { on: On::Keys { still_missing, is_told, .. }, .. }) = self.waits.get_mut(&id) {
            *is_told = true;
            if *still_missing > 0 {
                return false;
            }
        }
        self.leave(id, ledger).is_some()
    }

    pub(super) fn arrive(
        &mut self,
        client: ClientId,
        barrier: Key,
        ledger: &mut Ledger,
    ) -> Result<(), Refused> {
        ledger.charge(place_cost(&barrier))?;
        let id = self.enter(client, On::Barrier(barrier.clone()));
        self.by_barrier.entry(barrier).or_default().insert(id);
        Ok(())
    }

    /// The key is there now: each client whose wait that ends, in order of arrival.
    pub(super) fn on_key(&mut self, key: &Key, ledger: &mut Ledger, mut ended: impl FnMut(ClientId)) {
        for id in self.by_key.remove(key).unwrap_or_default() {
            if let Some(client) = self.on_key_for(id, ledger) {
                ended(client);
            }
        }
    }

    /// One thing was put into the queue `key`: it is for the first client that then has all it waited for, and
    /// only for it. For those before it, which wait for more, the key has come.
    pub(super) fn on_push(&mut self, key: &Key, ledger: &mut Ledger) -> Option<ClientId> {
        let mut ids = self.by_key.remove(key)?;
        let mut ended = None;
        while ended.is_none() && !ids.is_empty() {
            ended = ids.pop_first().and_then(|id| self.on_key_for(id, ledger));
        }
        if !ids.is_empty() {
            self.by_key.insert(key.clone(), ids);
        }
        ended
    }

    pub(super) fn on_barrier_full(
        &mut self,
        key: &Key,
        ledger: &mut Ledger,
        mut ended: impl FnMut(ClientId),
    ) {
        for id in self.by_barrier.remove(key).unwrap_or_default() {
            if let Some(wait) = self.leave(id, ledger) {
                ended(wait.client);
            }
        }
    }

    /// The client waits no more. Returns the barriers that it had arrived at.
    pub(super) fn drop_client(&mut self, client: ClientId, ledger: &mut Ledger) -> Vec<Key> {
        let mut barriers = Vec::new();
        for id in self.by_client.remove(&client).unwrap_or_default() {
            let Some(wait) = self.leave(id, ledger) else { continue };
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

    fn on_key_for(&mut self, id: WaitId, ledger: &mut Ledger) -> Option<ClientId> {
        if let On::Keys { still_missing, is_told, .. } = &mut self.waits.get_mut(&id)?.on {
            *still_missing -= 1;
            if *still_missing > 0 || !*is_told {
                return None;
            }
        }
        self.leave(id, ledger).map(|wait| wait.client)
    }

    fn enter(&mut self, client: ClientId, on: On) -> WaitId {
        self.next.0 += 1;
        self.waits.insert(self.next, Wait { client, on });
        self.by_client.entry(client).or_default().insert(self.next);
        self.next
    }

    fn leave(&mut self, id: WaitId, ledger: &mut Ledger) -> Option<Wait> {
        let wait = self.waits.remove(&id)?;
        match &wait.on {
            On::Keys { missing_at_start, .. } => {
                missing_at_start.iter().for_each(|key| ledger.refund(place_cost(key)));
            }
            On::Barrier(key) => ledger.refund(place_cost(key)),
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

    /// Whether nothing at all is left of any wait.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty()
            && self.by_key.is_empty()
            && self.by_barrier.is_empty()
            && self.by_client.is_empty()
    }
}

/// What a wait for one key costs: its place in the wait and the wait's place under the key.
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
