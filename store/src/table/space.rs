use std::collections::{HashMap, VecDeque, hash_map::Entry};

use super::{
    ClientId,
    ledger::{Ledger, Refused},
    number,
    waits::Waits,
};
use crate::{
    codec::{Key, Reply, Request, Value},
    limits::Limits,
};

/// One key space: all keys, queues and waits of a generation.
#[derive(Debug)]
pub struct Table {
    values: HashMap<Key, Value>,
    /// Apart from the values, as in torch: a queue is seen by WAIT, CHECK and QUEUE_*, and by nothing else.
    /// An empty queue is not kept.
    queues: HashMap<Key, VecDeque<Value>>,
    waits: Waits,
    ledger: Ledger,
}

/// The replies to a request, in the order in which they must be sent.
pub type Replies = Vec<(ClientId, Reply)>;

impl Table {
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Table {
            values: HashMap::new(),
            queues: HashMap::new(),
            waits: Waits::default(),
            ledger: Ledger::new(limits),
        }
    }

    /// Does what `client` asks and adds to `replies` what it and those who waited are told. They are added to
    /// a list of the caller, and not returned in one, because a list a request would be a good part of its cost.
    ///
    /// # Errors
    /// The client must be closed. What is in `replies` even so must be sent: others may have been waiting.
    pub fn handle(
        &mut self,
        client: ClientId,
        request: Request,
        replies: &mut Replies,
    ) -> Result<(), Refused> {
        let reply = match request {
            Request::Validate => return Ok(()),
            Request::Set { key, value } => return self.on_set(key, value, replies),
            Request::Append { key, value } => return self.on_append(key, value, replies),
            Request::MultiSet(pairs) => {
                for (key, value) in pairs {
                    self.on_set(key, value, replies)?;
                }
                return Ok(());
            }
            Request::QueuePush { key, value } => return self.on_queue_push(key, value, replies),
            Request::Wait(keys) => return self.on_wait(client, keys, replies),
            Request::Barrier { key, world_size } => {
                return self.on_barrier(client, key, world_size, replies);
            }
            Request::CompareSet { key, expected, desired } => {
                Reply::Value(self.on_compare_set(key, expected, desired, replies)?)
            }
            Request::Add { key, delta } => Reply::Number(self.on_add(key, delta, replies)?),
            Request::CancelWait => {
                self.disconnect(client);
                Reply::WaitCanceled
            }
            Request::Delete(key) => Reply::Number(i64::from(self.remove(&key))),
            Request::Get(key) => Reply::Value(self.value_or_empty(&key)),
            Request::MultiGet(keys) => {
                Reply::Values(keys.iter().map(|key| self.value_or_empty(key)).collect())
            }
            Request::Check(keys) => Reply::Present(keys.iter().all(|key| self.is_present(key))),
            Request::CountKeys => Reply::Number(count(self.values.len())),
            Request::ListKeys => Reply::Keys(self.values.keys().cloned().collect()),
            Request::Ping { nonce } => Reply::Pong { nonce },
            Request::QueuePop(key) => self.on_queue_pop(key),
            Request::QueueLen(key) => Reply::Number(count(self.queues.get(&key).map_or(0, VecDeque::len))),
        };
        replies.push((client, reply));
        Ok(())
    }

    /// The client is gone, or will wait no more: what it waited for is not answered, and a barrier that it had
    /// reached counts it no more. (Torch's server goes on counting it, and then opens a barrier that a client
    /// reached twice, or reached and died, before all are there.)
    pub fn disconnect(&mut self, client: ClientId) {
        for barrier in self.waits.drop_client(client, &mut self.ledger) {
            match self.values.get(&barrier).and_then(|value| number::parse(value.as_bytes())) {
                Some(arrived) if arrived > 1 => {
                    // One less is never longer, so there is always room for it.
                    let _ = self.put(barrier, decimal(arrived - 1));
                }
                Some(_) => {
                    self.remove(&barrier);
                }
                None => {}
            }
        }
    }

    fn on_set(&mut self, key: Key, value: Value, replies: &mut Replies) -> Result<(), Refused> {
        self.put(key.clone(), value)?;
        self.wake(&key, replies);
        Ok(())
    }

    fn on_append(&mut self, key: Key, more: Value, replies: &mut Replies) -> Result<(), Refused> {
        match self.values.get_mut(&key) {
            Some(value) => {
                let len = value.as_bytes().len();
                self.ledger.resize(len, len + more.as_bytes().len())?;
                value.append(more.as_bytes());
                self.wake(&key, replies);
                Ok(())
            }
            None => self.on_set(key, more, replies),
        }
    }

    /// The value that the key has afterwards. A missing key matches only an empty expectation; else nothing is
    /// stored and the expectation itself comes back. (Torch wakes waits even then; nothing came, so we do not.)
    fn on_compare_set(
        &mut self,
        key: Key,
        expected: Value,
        desired: Value,
        replies: &mut Replies,
    ) -> Result<Value, Refused> {
        match self.values.get(&key) {
            Some(current) if *current != expected => return Ok(current.clone()),
            None if expected != Value::default() => return Ok(expected),
            Some(_) | None => {}
        }
        self.on_set(key, desired.clone(), replies)?;
        Ok(desired)
    }

    /// Wraps at 64 bits, as torch's server does.
    fn on_add(&mut self, key: Key, delta: i64, replies: &mut Replies) -> Result<i64, Refused> {
        let before = match self.values.get(&key) {
            Some(value) => number::parse(value.as_bytes()).ok_or(Refused::NotANumber)?,
            None => 0,
        };
        let after = before.wrapping_add(delta);
        self.on_set(key, decimal(after), replies)?;
        Ok(after)
    }

    fn on_wait(
        &mut self,
        client: ClientId,
        mut keys: Vec<Key>,
        replies: &mut Replies,
    ) -> Result<(), Refused> {
        keys.retain(|key| !self.is_present(key));
        if keys.is_empty() {
            replies.push((client, Reply::StopWaiting));
            return Ok(());
        }
        self.waits.wait(client, keys, &mut self.ledger)
    }

    /// The number of arrivals is kept under the key, as in torch: a barrier that was full stays open until its
    /// key is deleted.
    fn on_barrier(
        &mut self,
        client: ClientId,
        key: Key,
        world_size: i64,
        replies: &mut Replies,
    ) -> Result<(), Refused> {
        let arrived = self.on_add(key.clone(), 1, replies)?;
        if arrived < world_size {
            return self.waits.arrive(client, key, &mut self.ledger);
        }
        self.waits.on_barrier_full(&key, &mut self.ledger, |peer| replies.push((peer, Reply::StopWaiting)));
        replies.push((client, Reply::StopWaiting));
        Ok(())
    }

    fn on_queue_push(&mut self, key: Key, value: Value, replies: &mut Replies) -> Result<(), Refused> {
        match self.queues.entry(key.clone()) {
            Entry::Occupied(mut queue) => {
                self.ledger.charge(value.as_bytes().len())?;
                queue.get_mut().push_back(value);
            }
            Entry::Vacant(place) => {
                self.ledger.charge_key(key.as_bytes().len())?;
                if let Err(full) = self.ledger.charge(value.as_bytes().len()) {
                    self.ledger.refund_key(key.as_bytes().len());
                    return Err(full);
                }
                place.insert(VecDeque::from([value]));
            }
        }
        if let Some(waiter) = self.waits.on_push(&key, &mut self.ledger) {
            replies.push((waiter, Reply::StopWaiting));
        }
        Ok(())
    }

    fn on_queue_pop(&mut self, key: Key) -> Reply {
        let Entry::Occupied(mut queue) = self.queues.entry(key) else {
            return Reply::Popped { before: 0, value: None };
        };
        let before = count(queue.get().len());
        let value = queue.get_mut().pop_front();
        if let Some(value) = &value {
            self.ledger.refund(value.as_bytes().len());
        }
        if queue.get().is_empty() {
            let (key, _) = queue.remove_entry();
            self.ledger.refund_key(key.as_bytes().len());
        }
        Reply::Popped { before, value }
    }

    fn is_present(&self, key: &Key) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    fn value_or_empty(&self, key: &Key) -> Value {
        self.values.get(key).cloned().unwrap_or_default()
    }

    fn wake(&mut self, key: &Key, replies: &mut Replies) {
        self.waits.on_key(key, &mut self.ledger, |client| replies.push((client, Reply::StopWaiting)));
    }

    fn put(&mut self, key: Key, value: Value) -> Result<(), Refused> {
        let new_len = value.as_bytes().len();
        match self.values.entry(key) {
            Entry::Occupied(mut place) => {
                self.ledger.resize(place.get().as_bytes().len(), new_len)?;
                place.insert(value);
            }
            Entry::Vacant(place) => {
                self.ledger.charge_key(place.key().as_bytes().len() + new_len)?;
                place.insert(value);
            }
        }
        Ok(())
    }

    fn remove(&mut self, key: &Key) -> bool {
        let Some(value) = self.values.remove(key) else { return false };
        self.ledger.refund_key(key.as_bytes().len() + value.as_bytes().len());
        true
    }
}

fn count(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

fn decimal(number: i64) -> Value {
    Value::from(number.to_string().into_bytes())
}
