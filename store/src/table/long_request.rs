//! Requests for many keys, in steps: between two steps the server serves others.
//!
//! A list of up to [`KEYS_PER_STEP`] keys is served in one step, so it is atomic; a longer one sees the table as it
//! is at each step. LIST_KEYS names every key that exists all the time once, and none twice: it walks the keys in
//! order. Their number comes first on the wire, so they are gathered before any is sent.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    vec,
};

use super::{ClientId, Refused, Replies, Table, waits::WaitId};
use crate::codec::{Key, Reply, Request, Value};

/// Keys of one step. It takes about a tenth of a millisecond.
pub const KEYS_PER_STEP: usize = 1024;

/// Bytes of keys or values that are copied in one step; one item more is possible.
const BYTES_PER_STEP: usize = 256 << 10;

/// The rest of a request. No other request of its client is served before it is done.
#[derive(Debug)]
pub struct LongRequest {
    client: ClientId,
    what: What,
}

/// The result of a first step.
#[derive(Debug)]
pub struct Step {
    /// The number of keys handled; a request without keys counts as one.
    pub work: usize,
    /// What is left to do.
    pub rest: Option<LongRequest>,
}

#[derive(Debug)]
enum What {
    Set(vec::IntoIter<(Key, Value)>),
    Get(vec::IntoIter<Key>),
    Check(vec::IntoIter<Key>),
    /// With the wait for the keys that were missing so far.
    Wait(vec::IntoIter<Key>, Option<WaitId>),
    Gather(Gathered),
    Tell(Gathered),
}

/// Keys in wire format, and the last of them.
#[derive(Debug, Default)]
struct Gathered {
    keys: u64,
    last: Option<Key>,
    pieces: VecDeque<Vec<u8>>,
    /// Of all pieces together.
    bytes: usize,
}

impl LongRequest {
    /// `Err`: the request is for at most one key.
    pub(super) fn new(client: ClientId, request: Request) -> Result<Self, Request> {
        let what = match request {
            Request::MultiSet(pairs) => What::Set(pairs.into_iter()),
            Request::MultiGet(keys) => What::Get(keys.into_iter()),
            Request::Check(keys) => What::Check(keys.into_iter()),
            Request::Wait(keys) => What::Wait(keys.into_iter(), None),
            Request::ListKeys => What::Gather(Gathered::default()),
            other => return Err(other),
        };
        Ok(LongRequest { client, what })
    }

    /// The bytes that it has gathered for its reply.
    #[must_use]
    pub fn gathered_bytes(&self) -> usize {
        match &self.what {
            What::Gather(gathered) | What::Tell(gathered) => gathered.bytes,
            What::Set(_) | What::Get(_) | What::Check(_) | What::Wait(..) => 0,
        }
    }
}

impl Table {
    /// Runs one step of a long request.
    ///
    /// # Errors
    /// As [`Table::handle`].
    pub fn resume(&mut self, long_request: LongRequest, replies: &mut Replies) -> Result<Step, Refused> {
        let LongRequest { client, what } = long_request;
        let mut work = 0;
        let rest = match what {
            What::Set(mut pairs) => {
                for (key, value) in pairs.by_ref().take(KEYS_PER_STEP) {
                    work += 1;
                    self.on_set(key, value, replies)?;
                }
                (pairs.len() > 0).then_some(What::Set(pairs))
            }
            What::Get(mut keys) => {
                let (mut values, mut bytes) = (Vec::new(), 0);
                while work < KEYS_PER_STEP && bytes < BYTES_PER_STEP {
                    let Some(key) = keys.next() else { break };
                    let value = self.value_or_empty(&key);
                    work += 1;
                    bytes += value.as_bytes().len();
                    values.push(value);
                }
                replies.push((client, Reply::Values(values)));
                (keys.len() > 0).then_some(What::Get(keys))
            }
            What::Check(mut keys) => {
                let is_present = keys.by_ref().take(KEYS_PER_STEP).all(|key| {
                    work += 1;
                    self.is_present(&key)
                });
                if is_present && keys.len() > 0 {
                    Some(What::Check(keys))
                } else {
                    replies.push((client, Reply::Present(is_present)));
                    None
                }
            }
            What::Wait(mut keys, mut wait) => {
                for key in keys.by_ref().take(KEYS_PER_STEP) {
                    work += 1;
                    if !self.is_present(&key) {
                        let wait = *wait.get_or_insert_with(|| self.waits.begin(client));
                        self.waits.add(wait, key, &mut self.quota)?;
                    }
                }
                if keys.len() > 0 {
                    Some(What::Wait(keys, wait))
                } else {
                    if wait.is_none_or(|wait| self.waits.is_over(wait, &mut self.quota)) {
                        replies.push((client, Reply::StopWaiting));
                    }
                    None
                }
            }
            What::Gather(mut gathered) => {
                let is_all;
                (work, is_all) = gathered.step(&self.values);
                if is_all {
                    replies.push((client, Reply::KeyCount(gathered.keys)));
                    gathered.tell(client, replies)
                } else {
                    Some(What::Gather(gathered))
                }
            }
            What::Tell(gathered) => {
                // The keys gathered by one step.
                work = KEYS_PER_STEP;
                gathered.tell(client, replies)
            }
        };
        Ok(Step { work: work.max(1), rest: rest.map(|what| LongRequest { client, what }) })
    }
}

impl Gathered {
    /// Returns the number of keys handled, and whether these were the last.
    fn step(&mut self, values: &BTreeMap<Key, Value>) -> (usize, bool) {
        let from = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut keys = values.range::<Key, _>((from, Bound::Unbounded)).map(|(key, _)| key);
        let (mut work, mut piece, mut last) = (0, Vec::new(), None);
        while work < KEYS_PER_STEP && piece.len() < BYTES_PER_STEP {
            last = keys.next();
            let Some(key) = last else { break };
            work += 1;
            self.last = Some(key.clone());
            piece.extend_from_slice(&(key.as_bytes().len() as u64).to_le_bytes());
            piece.extend_from_slice(key.as_bytes());
        }
        let is_all = last.is_none() || keys.next().is_none();
        self.keys += work as u64;
        self.bytes += piece.len();
        if !piece.is_empty() {
            piece.shrink_to_fit();
            self.pieces.push_back(piece);
        }
        (work, is_all)
    }

    fn tell(mut self, client: ClientId, replies: &mut Replies) -> Option<What> {
        if let Some(piece) = self.pieces.pop_front() {
            self.bytes -= piece.len();
            replies.push((client, Reply::KeyPart(piece)));
        }
        (!self.pieces.is_empty()).then_some(What::Tell(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        limits::Limits,
        table::space::tests::{A, ask, set, table},
    };

    const B: ClientId = ClientId(2);

    fn name(number: usize) -> Key {
        Key::from(&*format!("key {number:07}"))
    }

    fn filled(keys: usize) -> Table {
        let mut table = Table::new(&Limits { max_keys: keys + 10, ..Limits::default() });
        let pairs = (0..keys).map(|number| (name(number), number.to_string().into_bytes().into())).collect();
        ask(&mut table, B, Request::MultiSet(pairs));
        table
    }

    /// The keys of a whole list, and the announced number.
    fn listed(replies: Replies) -> (u64, Vec<Vec<u8>>) {
        let (mut count, mut keys) = (0, Vec::new());
        for (_, reply) in replies {
            match reply {
                Reply::KeyCount(announced) => count = announced,
                Reply::KeyPart(part) => keys.extend(parse(&part)),
                other => panic!("not of a list: {other:?}"),
            }
        }
        (count, keys)
    }

    fn parse(mut part: &[u8]) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        while let Some((len, rest)) = part.split_first_chunk() {
            let (key, rest) = rest.split_at(usize::try_from(u64::from_le_bytes(*len)).unwrap());
            keys.push(key.to_vec());
            part = rest;
        }
        keys
    }

    #[test]
    fn a_list_of_all_keys_is_made_and_sent_in_steps() {
        const KEYS: usize = 20_000;
        let mut table = filled(KEYS);
        let mut told = Vec::new();
        let mut step = table.begin(A, Request::ListKeys, &mut told).unwrap();
        let mut steps = 1;
        while let Some(long_request) = step.rest {
            // Behind the current position, ahead of it, and new ones on both sides.
            table.handle(B, Request::Delete(name(steps)), &mut Vec::new()).unwrap();
            table.handle(B, Request::Delete(name(KEYS - steps)), &mut Vec::new()).unwrap();
            ask(&mut table, B, set(&format!("a {steps}"), ""));
            ask(&mut table, B, Request::Delete(format!("a {steps}").as_str().into()));
            ask(&mut table, B, set(&format!("z {steps}"), ""));
            ask(&mut table, B, Request::Delete(format!("z {steps}").as_str().into()));
            let before = told.len();
            step = table.resume(long_request, &mut told).unwrap();
            assert!(step.work <= KEYS_PER_STEP, "{} keys in one step", step.work);
            for (_, reply) in &told[before..] {
                if let Reply::KeyPart(part) = reply {
                    assert!(
                        parse(part).len() <= KEYS_PER_STEP,
                        "{} keys told in one step",
                        parse(part).len()
                    );
                }
            }
            steps += 1;
        }
        assert!(steps >= 2 * KEYS / KEYS_PER_STEP, "{steps}");
        let (count, mut keys) = listed(told);
        assert_eq!(count, keys.len() as u64);
        assert!(keys.is_sorted());
        keys.dedup();
        assert_eq!(count, keys.len() as u64, "a key was told twice");
        for number in steps..=KEYS - steps {
            assert!(
                keys.binary_search(&name(number).as_bytes().to_vec()).is_ok(),
                "{number} was there all the time"
            );
        }
    }

    #[test]
    fn many_keys_are_set_read_and_checked_in_steps() {
        const KEYS: usize = 10 * KEYS_PER_STEP;
        let mut table = table();
        let names: Vec<Key> = (0..KEYS).map(name).collect();
        let pairs = names.iter().map(|key| (key.clone(), "v".into())).collect();
        for request in [Request::MultiSet(pairs), Request::MultiGet(names.clone()), Request::Check(names)] {
            let mut replies = Vec::new();
            let op = request.op();
            let mut step = table.begin(A, request, &mut replies).unwrap();
            let mut steps = 1;
            while let Some(long_request) = step.rest {
                assert!(step.work <= KEYS_PER_STEP);
                step = table.resume(long_request, &mut replies).unwrap();
                steps += 1;
            }
            assert_eq!(steps, 10, "{op:?}");
            let values = replies.iter().map(|(_, reply)| match reply {
                Reply::Values(values) => values.iter().filter(|value| **value == "v".into()).count(),
                Reply::Present(true) => 0,
                other => panic!("{other:?}"),
            });
            assert_eq!(values.sum::<usize>(), if op == crate::codec::Op::MultiGet { KEYS } else { 0 });
        }
    }

    #[test]
    fn large_values_are_read_in_small_steps() {
        let mut table = table();
        ask(&mut table, A, Request::Set { key: "k".into(), value: vec![7; 200_000].into() });
        let mut replies = Vec::new();
        let step = table.begin(A, Request::MultiGet(vec!["k".into(); 100]), &mut replies).unwrap();
        assert!(step.rest.is_some());
        assert_eq!(replies[0].1.encoded_len(), 2 * 200_008);
    }

    #[test]
    fn a_wait_for_many_keys_sees_keys_that_are_set_meanwhile() {
        const KEYS: usize = 3 * KEYS_PER_STEP;
        for (first, then) in [(0, KEYS - 1), (KEYS - 1, 0)] {
            let mut table = filled(KEYS);
            for missing in [first, then] {
                ask(&mut table, B, Request::Delete(name(missing)));
            }
            let mut replies = Vec::new();
            let step = table.begin(A, Request::Wait((0..KEYS).map(name).collect()), &mut replies).unwrap();
            let put = |number: usize| Request::Set { key: name(number), value: "".into() };
            assert_eq!(ask(&mut table, B, put(first)), []);
            let step = table.resume(step.rest.unwrap(), &mut replies).unwrap();
            let step = table.resume(step.rest.unwrap(), &mut replies).unwrap();
            assert!(step.rest.is_none());
            assert_eq!(replies, []);
            assert_eq!(ask(&mut table, B, put(then)), [(A, Reply::StopWaiting)]);
            assert!(table.waits.is_empty());
        }
        // All are set before its end: it is answered at its end, once.
        let mut table = filled(KEYS);
        ask(&mut table, B, Request::Delete(name(5)));
        let mut replies = Vec::new();
        let step = table.begin(A, Request::Wait((0..KEYS).map(name).collect()), &mut replies).unwrap();
        assert_eq!(ask(&mut table, B, Request::Set { key: name(5), value: "".into() }), []);
        let mut rest = step.rest;
        while let Some(long_request) = rest {
            assert_eq!(replies, []);
            rest = table.resume(long_request, &mut replies).unwrap().rest;
        }
        assert_eq!(replies, [(A, Reply::StopWaiting)]);
        assert!(table.waits.is_empty());
        // Or its client disconnects in the middle of it.
        ask(&mut table, B, Request::Delete(name(5)));
        let step = table.begin(A, Request::Wait((0..KEYS).map(name).collect()), &mut replies).unwrap();
        drop(step);
        table.disconnect(A);
        assert!(table.waits.is_empty());
    }
}
