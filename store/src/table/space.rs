//! The table: the keys, queues and waits of one generation, and what each request does to them.

use std::collections::{BTreeMap, HashMap, VecDeque, btree_map, hash_map::Entry};

use super::{
    ClientId,
    long_request::{LongRequest, Step},
    number,
    quota::{Quota, Refused},
    waits::Waits,
};
use crate::{
    codec::{Key, Reply, Request, Value},
    limits::Limits,
};

/// One key space: all keys, queues and waits of a generation.
#[derive(Debug)]
pub struct Table {
    /// In order, so that a list of all keys can be made in steps while others change.
    pub(super) values: BTreeMap<Key, Value>,
    /// Separate from the values, as in torch: a queue is visible to WAIT, CHECK and QUEUE_* only. An empty queue is
    /// not stored.
    pub(super) queues: HashMap<Key, VecDeque<Value>>,
    pub(super) waits: Waits,
    pub(super) quota: Quota,
}

/// The replies to a request, in the order in which they must be sent.
pub type Replies = Vec<(ClientId, Reply)>;

impl Table {
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Table {
            values: BTreeMap::new(),
            queues: HashMap::new(),
            waits: Waits::default(),
            quota: Quota::new(limits),
        }
    }

    /// Handles a request of `client` and appends all replies, including those to other waiting clients, to `replies`.
    /// A list of the caller is used because allocating one per request would be a good part of its cost.
    ///
    /// # Errors
    /// The client must be closed. `replies` must be sent nevertheless: other clients may have been waiting.
    pub fn handle(
        &mut self,
        client: ClientId,
        request: Request,
        replies: &mut Replies,
    ) -> Result<(), Refused> {
        let mut rest = self.begin(client, request, replies)?.rest;
        while let Some(long_request) = rest {
            rest = self.resume(long_request, replies)?.rest;
        }
        Ok(())
    }

    /// As [`Table::handle`], but of a request for many keys only the first step: pass the rest to [`Table::resume`]
    /// before any other request of this client.
    ///
    /// # Errors
    /// As [`Table::handle`].
    pub fn begin(
        &mut self,
        client: ClientId,
        request: Request,
        replies: &mut Replies,
    ) -> Result<Step, Refused> {
        match LongRequest::new(client, request) {
            Ok(long_request) => self.resume(long_request, replies),
            Err(request) => {
                self.handle_short(client, request, replies).map(|()| Step { work: 1, rest: None })
            }
        }
    }

    fn handle_short(
        &mut self,
        client: ClientId,
        request: Request,
        replies: &mut Replies,
    ) -> Result<(), Refused> {
        let reply = match request {
            Request::MultiSet(_)
            | Request::MultiGet(_)
            | Request::Check(_)
            | Request::Wait(_)
            | Request::ListKeys => unreachable!("{:?} is a long request", request.op()),
            Request::Validate => return Ok(()),
            Request::Set { key, value } => return self.on_set(key, value, replies),
            Request::Append { key, value } => return self.on_append(key, value, replies),
            Request::QueuePush { key, value } => return self.on_queue_push(key, value, replies),
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
            Request::CountKeys => Reply::Number(count(self.values.len())),
            Request::Ping { nonce } => Reply::Pong { nonce },
            Request::QueuePop(key) => self.on_queue_pop(key),
            Request::QueueLen(key) => Reply::Number(count(self.queues.get(&key).map_or(0, VecDeque::len))),
        };
        replies.push((client, reply));
        Ok(())
    }

    /// The client has disconnected or cancels its waits: they are not answered, and barriers no longer count it.
    /// (Torch's server continues to count it, and so may open a barrier before all clients are there.)
    pub fn disconnect(&mut self, client: ClientId) {
        for barrier in self.waits.drop_client(client, &mut self.quota) {
            self.uncount(barrier);
        }
    }

    fn uncount(&mut self, barrier: Key) {
        match self.values.get(&barrier).and_then(|value| number::parse(value.as_bytes())) {
            Some(arrived) if arrived > 1 => {
                // A smaller number is never longer, so there is always room for it.
                let _ = self.put(barrier, decimal(arrived - 1));
            }
            Some(_) => {
                self.remove(&barrier);
            }
            None => {}
        }
    }

    pub(super) fn on_set(&mut self, key: Key, value: Value, replies: &mut Replies) -> Result<(), Refused> {
        self.put(key.clone(), value)?;
        self.wake(&key, replies);
        Ok(())
    }

    fn on_append(&mut self, key: Key, more: Value, replies: &mut Replies) -> Result<(), Refused> {
        match self.values.get_mut(&key) {
            Some(value) => {
                let len = value.as_bytes().len();
                self.quota.resize(len, len + more.as_bytes().len())?;
                value.append(more.as_bytes());
                self.wake(&key, replies);
                Ok(())
            }
            None => self.on_set(key, more, replies),
        }
    }

    /// Returns the value that the key has afterwards. A missing key matches only an empty expectation; else nothing
    /// is stored and the expectation itself is returned. (Torch wakes waits even then; here nothing was set, so they
    /// continue.)
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

    /// The number of arrivals is stored under the key, as in torch: a completed barrier stays open until its key is
    /// deleted.
    fn on_barrier(
        &mut self,
        client: ClientId,
        key: Key,
        world_size: i64,
        replies: &mut Replies,
    ) -> Result<(), Refused> {
        let arrived = self.on_add(key.clone(), 1, replies)?;
        if arrived < world_size {
            let waits = self.waits.arrive(client, key.clone(), &mut self.quota);
            return waits.inspect_err(|_| self.uncount(key));
        }
        self.waits.on_barrier_full(&key, &mut self.quota, |peer| replies.push((peer, Reply::StopWaiting)));
        replies.push((client, Reply::StopWaiting));
        Ok(())
    }

    fn on_queue_push(&mut self, key: Key, value: Value, replies: &mut Replies) -> Result<(), Refused> {
        match self.queues.entry(key.clone()) {
            Entry::Occupied(mut queue) => {
                self.quota.charge(value.as_bytes().len())?;
                queue.get_mut().push_back(value);
            }
            Entry::Vacant(place) => {
                self.quota.charge_key(key.as_bytes().len())?;
                if let Err(full) = self.quota.charge(value.as_bytes().len()) {
                    self.quota.refund_key(key.as_bytes().len());
                    return Err(full);
                }
                place.insert(VecDeque::from([value]));
            }
        }
        if let Some(waiter) = self.waits.on_push(&key, &mut self.quota) {
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
            self.quota.refund(value.as_bytes().len());
        }
        if queue.get().is_empty() {
            let (key, _) = queue.remove_entry();
            self.quota.refund_key(key.as_bytes().len());
        }
        Reply::Popped { before, value }
    }

    pub(super) fn is_present(&self, key: &Key) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    pub(super) fn value_or_empty(&self, key: &Key) -> Value {
        self.values.get(key).cloned().unwrap_or_default()
    }

    fn wake(&mut self, key: &Key, replies: &mut Replies) {
        self.waits.on_key(key, &mut self.quota, |client| replies.push((client, Reply::StopWaiting)));
    }

    fn put(&mut self, key: Key, value: Value) -> Result<(), Refused> {
        let new_len = value.as_bytes().len();
        match self.values.entry(key) {
            btree_map::Entry::Occupied(mut place) => {
                self.quota.resize(place.get().as_bytes().len(), new_len)?;
                place.insert(value);
            }
            btree_map::Entry::Vacant(place) => {
                self.quota.charge_key(place.key().as_bytes().len() + new_len)?;
                place.insert(value);
            }
        }
        Ok(())
    }

    fn remove(&mut self, key: &Key) -> bool {
        let Some(value) = self.values.remove(key) else { return false };
        self.quota.refund_key(key.as_bytes().len() + value.as_bytes().len());
        true
    }
}

fn count(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

fn decimal(number: i64) -> Value {
    Value::from(number.to_string().into_bytes())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const C: ClientId = ClientId(3);

    pub(crate) fn table() -> Table {
        Table::new(&Limits::default())
    }

    pub(crate) fn ask(table: &mut Table, client: ClientId, request: Request) -> Replies {
        let mut replies = Vec::new();
        table.handle(client, request, &mut replies).expect("the request is fine");
        replies
    }

    /// The only reply, to the client that asked.
    fn answer(table: &mut Table, request: Request) -> Reply {
        match &ask(table, A, request)[..] {
            [(A, reply)] => reply.clone(),
            others => panic!("not one reply: {others:?}"),
        }
    }

    pub(crate) fn set(key: &str, value: &str) -> Request {
        Request::Set { key: key.into(), value: value.into() }
    }

    pub(crate) fn add(key: &str, delta: i64) -> Request {
        Request::Add { key: key.into(), delta }
    }

    pub(crate) fn compare_set(key: &str, expected: &str, desired: &str) -> Request {
        Request::CompareSet { key: key.into(), expected: expected.into(), desired: desired.into() }
    }

    pub(crate) fn push(key: &str, value: &str) -> Request {
        Request::QueuePush { key: key.into(), value: value.into() }
    }

    pub(crate) fn barrier(key: &str, world_size: i64) -> Request {
        Request::Barrier { key: key.into(), world_size }
    }

    pub(crate) fn keys(names: &[&str]) -> Vec<Key> {
        names.iter().map(|name| Key::from(*name)).collect()
    }

    fn wait(names: &[&str]) -> Request {
        Request::Wait(keys(names))
    }

    fn value(text: &str) -> Reply {
        Reply::Value(text.into())
    }

    fn stop(client: ClientId) -> (ClientId, Reply) {
        (client, Reply::StopWaiting)
    }

    #[test]
    fn a_set_key_is_read_and_a_missing_one_is_empty() {
        let mut table = table();
        assert_eq!(ask(&mut table, A, set("k", "v")), []);
        assert_eq!(answer(&mut table, Request::Get("k".into())), value("v"));
        assert_eq!(answer(&mut table, Request::Get("none".into())), value(""));
        assert_eq!(
            answer(&mut table, Request::MultiGet(keys(&["none", "k"]))),
            Reply::Values(vec!["".into(), "v".into()])
        );
    }

    #[test]
    fn an_add_is_stored_in_decimal_and_wraps() {
        let mut table = table();
        assert_eq!(answer(&mut table, add("n", 2)), Reply::Number(2));
        assert_eq!(answer(&mut table, Request::Get("n".into())), value("2"));
        assert_eq!(answer(&mut table, add("n", -9)), Reply::Number(-7));
        assert_eq!(answer(&mut table, add("m", i64::MAX)), Reply::Number(i64::MAX));
        assert_eq!(answer(&mut table, add("m", 1)), Reply::Number(i64::MIN));
    }

    #[test]
    fn an_add_to_text_is_refused_and_changes_nothing() {
        let mut table = table();
        ask(&mut table, A, set("word", "abc"));
        assert_eq!(table.handle(A, add("word", 1), &mut Vec::new()), Err(Refused::NotANumber));
        assert_eq!(answer(&mut table, Request::Get("word".into())), value("abc"));
    }

    #[test]
    fn compare_set_stores_only_what_was_expected() {
        let mut table = table();
        assert_eq!(answer(&mut table, compare_set("k", "x", "new")), value("x"));
        assert_eq!(answer(&mut table, Request::Check(keys(&["k"]))), Reply::Present(false));
        assert_eq!(answer(&mut table, compare_set("k", "", "one")), value("one"));
        assert_eq!(answer(&mut table, compare_set("k", "", "two")), value("one"));
        assert_eq!(answer(&mut table, compare_set("k", "one", "two")), value("two"));
    }

    #[test]
    fn append_makes_a_key_and_then_a_longer_one() {
        let mut table = table();
        for part in ["a", "bc"] {
            assert_eq!(ask(&mut table, A, Request::Append { key: "k".into(), value: part.into() }), []);
        }
        assert_eq!(answer(&mut table, Request::Get("k".into())), value("abc"));
    }

    #[test]
    fn keys_are_counted_listed_and_deleted_and_queues_are_not() {
        let mut table = table();
        let pairs = vec![("a".into(), "1".into()), ("b".into(), "2".into()), ("a".into(), "3".into())];
        assert_eq!(ask(&mut table, A, Request::MultiSet(pairs)), []);
        ask(&mut table, A, push("q", "x"));
        assert_eq!(answer(&mut table, Request::CountKeys), Reply::Number(2));
        let listed = [
            (A, Reply::KeyCount(2)),
            (A, Reply::KeyPart(b"\x01\0\0\0\0\0\0\0a\x01\0\0\0\0\0\0\0b".to_vec())),
        ];
        assert_eq!(ask(&mut table, A, Request::ListKeys), listed);
        assert_eq!(answer(&mut table, Request::Get("a".into())), value("3"));
        assert_eq!(answer(&mut table, Request::Delete("a".into())), Reply::Number(1));
        assert_eq!(answer(&mut table, Request::Delete("a".into())), Reply::Number(0));
        assert_eq!(answer(&mut table, Request::Delete("q".into())), Reply::Number(0));
        assert_eq!(answer(&mut table, Request::CountKeys), Reply::Number(1));
    }

    #[test]
    fn a_wait_is_answered_when_its_last_key_arrives() {
        let mut table = table();
        ask(&mut table, A, set("there", ""));
        assert_eq!(ask(&mut table, B, wait(&["there"])), [stop(B)]);
        assert_eq!(ask(&mut table, B, wait(&[])), [stop(B)]);
        assert_eq!(ask(&mut table, B, wait(&["there", "x", "y", "x"])), []);
        assert_eq!(ask(&mut table, A, set("x", "1")), []);
        assert_eq!(ask(&mut table, A, set("x", "2")), []);
        assert_eq!(ask(&mut table, A, set("y", "1")), [stop(B)]);
        assert_eq!(ask(&mut table, A, set("y", "2")), []);
    }

    #[test]
    fn a_key_that_was_set_and_deleted_ends_a_wait() {
        let mut table = table();
        ask(&mut table, B, wait(&["x", "y"]));
        ask(&mut table, A, set("x", "1"));
        ask(&mut table, A, Request::Delete("x".into()));
        assert_eq!(ask(&mut table, A, set("y", "1")), [stop(B)]);
    }

    #[test]
    fn every_way_to_make_a_key_ends_waits_in_order_of_arrival() {
        let makes = [
            set("k", "1"),
            add("k", 1),
            Request::Append { key: "k".into(), value: "1".into() },
            Request::MultiSet(vec![("k".into(), "1".into())]),
            compare_set("k", "", "1"),
        ];
        for make in makes {
            let mut table = table();
            ask(&mut table, C, wait(&["k"]));
            ask(&mut table, B, wait(&["k"]));
            let mut replies = ask(&mut table, A, make.clone());
            replies.truncate(2);
            assert_eq!(replies, [stop(C), stop(B)], "{make:?}");
        }
    }

    #[test]
    fn a_compare_set_that_stores_nothing_ends_no_wait() {
        let mut table = table();
        ask(&mut table, B, wait(&["k"]));
        assert_eq!(ask(&mut table, A, compare_set("k", "x", "y")), [(A, value("x"))]);
    }

    #[test]
    fn a_canceled_wait_is_not_answered_again() {
        let mut table = table();
        ask(&mut table, B, wait(&["k"]));
        assert_eq!(ask(&mut table, B, Request::CancelWait), [(B, Reply::WaitCanceled)]);
        assert_eq!(ask(&mut table, A, set("k", "1")), []);
        // A race: the key was set first, so the client reads both replies.
        assert_eq!(ask(&mut table, B, wait(&["k"])), [stop(B)]);
        assert_eq!(ask(&mut table, B, Request::CancelWait), [(B, Reply::WaitCanceled)]);
    }

    #[test]
    fn a_push_wakes_only_the_client_that_waited_longest() {
        let mut table = table();
        ask(&mut table, C, wait(&["q"]));
        ask(&mut table, B, wait(&["q"]));
        assert_eq!(ask(&mut table, A, push("q", "1")), [stop(C)]);
        assert_eq!(ask(&mut table, A, push("q", "2")), [stop(B)]);
    }

    #[test]
    fn a_push_skips_clients_that_wait_for_more_keys() {
        let mut table = table();
        ask(&mut table, C, wait(&["q", "more"]));
        ask(&mut table, B, wait(&["q"]));
        ask(&mut table, A, wait(&["q"]));
        assert_eq!(ask(&mut table, A, push("q", "1")), [stop(B)]);
        assert_eq!(ask(&mut table, B, set("more", "1")), [stop(C)]);
        assert_eq!(ask(&mut table, B, push("q", "2")), [stop(A)]);
    }

    #[test]
    fn a_queue_gives_its_oldest_and_is_present_while_it_has_one() {
        let mut table = table();
        let popped = |before, text: Option<&str>| Reply::Popped { before, value: text.map(Value::from) };
        ask(&mut table, A, push("q", "1"));
        ask(&mut table, A, push("q", "2"));
        assert_eq!(answer(&mut table, Request::QueueLen("q".into())), Reply::Number(2));
        assert_eq!(answer(&mut table, Request::Check(keys(&["q"]))), Reply::Present(true));
        assert_eq!(answer(&mut table, Request::Get("q".into())), value(""));
        assert_eq!(answer(&mut table, Request::QueuePop("q".into())), popped(2, Some("1")));
        assert_eq!(answer(&mut table, Request::QueuePop("q".into())), popped(1, Some("2")));
        assert_eq!(answer(&mut table, Request::QueuePop("q".into())), popped(0, None));
        assert_eq!(answer(&mut table, Request::Check(keys(&["q"]))), Reply::Present(false));
        assert_eq!(answer(&mut table, Request::QueueLen("q".into())), Reply::Number(0));
    }

    #[test]
    fn a_barrier_opens_for_all_with_the_last_arrival_and_stays_open() {
        let mut table = table();
        assert_eq!(ask(&mut table, B, barrier("b", 3)), []);
        assert_eq!(ask(&mut table, C, barrier("b", 3)), []);
        assert_eq!(ask(&mut table, A, barrier("b", 3)), [stop(B), stop(C), stop(A)]);
        assert_eq!(ask(&mut table, A, barrier("b", 3)), [stop(A)]);
        assert_eq!(ask(&mut table, A, barrier("of none", 0)), [stop(A)]);
    }

    #[test]
    fn a_client_that_disconnected_is_not_counted_by_a_barrier() {
        let mut table = table();
        ask(&mut table, A, barrier("b", 3));
        ask(&mut table, B, barrier("b", 3));
        ask(&mut table, A, Request::CancelWait);
        table.disconnect(B);
        assert_eq!(ask(&mut table, A, barrier("b", 3)), []);
        assert_eq!(ask(&mut table, B, barrier("b", 3)), []);
        assert_eq!(ask(&mut table, C, barrier("b", 3)), [stop(A), stop(B), stop(C)]);
    }

    #[test]
    fn a_disconnected_client_waits_no_more() {
        let mut table = table();
        ask(&mut table, B, wait(&["x", "y"]));
        ask(&mut table, C, barrier("b", 2));
        table.disconnect(B);
        table.disconnect(C);
        assert!(table.waits.is_empty());
        assert_eq!(table.quota.bytes(), 0);
    }

    #[test]
    fn a_full_table_refuses_and_keeps_what_it_has() {
        let limits = Limits { max_table_bytes: 1000, max_keys: 3, ..Limits::default() };
        let mut table = Table::new(&limits);
        ask(&mut table, A, set("a", "1"));
        let too_much = set("b", &"x".repeat(1000));
        let full = Err(Refused::TableFull { max: 1000 });
        assert_eq!(table.handle(A, too_much, &mut Vec::new()), full);
        let append = Request::Append { key: "a".into(), value: vec![0; 1000].into() };
        assert_eq!(table.handle(A, append, &mut Vec::new()), full);
        assert_eq!(table.handle(A, push("q", &"x".repeat(800)), &mut Vec::new()), full);
        assert_eq!(table.handle(A, Request::Wait(vec!["x".repeat(900)[..].into()]), &mut Vec::new()), full);
        ask(&mut table, A, push("b", "2"));
        ask(&mut table, A, set("c", "3"));
        assert_eq!(table.handle(A, set("d", "4"), &mut Vec::new()), Err(Refused::TooManyKeys { max: 3 }));
        assert_eq!(answer(&mut table, Request::Get("a".into())), value("1"));
        ask(&mut table, A, Request::Delete("a".into()));
        ask(&mut table, A, set("d", "4"));
    }
}
