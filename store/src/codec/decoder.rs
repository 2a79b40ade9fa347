//! The decoder: the bytes of one client to requests, however they are cut.

use std::{borrow::Cow, mem};

use thiserror::Error;

use super::{
    key::{Key, Value},
    op::{MAGIC, Op},
    request::Request,
};
use crate::limits::Limits;

/// Decodes requests, one field at a time.
///
/// A partial request is kept as fields, not as bytes: a list of 131072 pairs in small pieces is not parsed again at
/// each piece, and an announced length allocates nothing. After an error the connection must be closed and the
/// decoder dropped: the begin of the next request is unknown.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    validated: bool,
    field: Field,
    draft: Draft,
    /// The bytes so far of a fixed-size field, and how many they are.
    fixed: ([u8; 8], usize),
    /// The bytes so far of a key or value.
    body: Vec<u8>,
    /// The bytes announced by this request so far, compared with `max_request_bytes`.
    announced: usize,
    /// The bytes of the finished fields of this request.
    held: usize,
    /// The bytes of the request before.
    request_bytes: usize,
}

/// Why a client's bytes are not a request. Its connection must be closed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("the connection began with operation {op} instead of VALIDATE")]
    NotValidated { op: u8 },
    #[error("VALIDATE came twice")]
    ValidatedTwice,
    #[error("VALIDATE carried {magic:#010x}, which is not the magic number")]
    WrongMagic { magic: u32 },
    #[error("operation {op} is unknown")]
    UnknownOp { op: u8 },
    #[error("a key of {len} bytes is longer than {max}")]
    KeyTooLong { len: u64, max: usize },
    #[error("a value of {len} bytes is longer than {max}")]
    ValueTooLong { len: u64, max: usize },
    #[error("a list of {len} items is longer than {max}")]
    ListTooLong { len: u64, max: usize },
    #[error("a request is longer than {max} bytes")]
    RequestTooLong { max: usize },
}

/// The field that the next bytes belong to.
#[derive(Debug, Clone, Copy)]
enum Field {
    Op,
    Magic,
    Nonce,
    Number,
    ListLen,
    KeyLen,
    Key(usize),
    ValueLen,
    Value(usize),
}

/// The fields of the partial request so far.
#[derive(Debug)]
struct Draft {
    op: Op,
    key: Option<Key>,
    expected: Option<Value>,
    list_len: usize,
    keys: Vec<Key>,
    pairs: Vec<(Key, Value)>,
}

/// The cost of a key or value beyond its bytes: its allocation and its place in a list.
const PART_OVERHEAD: usize = 64;

impl Decoder {
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Decoder {
            limits,
            validated: false,
            field: Field::Op,
            draft: Draft::new(Op::Validate),
            fixed: ([0; 8], 0),
            body: Vec::new(),
            announced: 0,
            held: 0,
            request_bytes: 0,
        }
    }

    /// Consumes `input` until one request is complete. `None`: all was consumed and more is needed. Call again with
    /// the rest for the requests behind it.
    ///
    /// # Errors
    /// The bytes are not a request, or exceed the limits.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Request>, DecodeError> {
        loop {
            let request = match self.field {
                Field::Op => match self.take_fixed(1, input) {
                    Some(fixed) => self.on_op(fixed[0])?,
                    None => return Ok(None),
                },
                Field::Magic => match self.take_u32(input) {
                    Some(MAGIC) => {
                        self.validated = true;
                        Some(Request::Validate)
                    }
                    Some(magic) => return Err(DecodeError::WrongMagic { magic }),
                    None => return Ok(None),
                },
                Field::Nonce => match self.take_u32(input) {
                    Some(nonce) => Some(Request::Ping { nonce }),
                    None => return Ok(None),
                },
                Field::Number => match self.take_fixed(8, input) {
                    Some(fixed) => self.draft.on_number(i64::from_le_bytes(fixed)),
                    None => return Ok(None),
                },
                Field::ListLen => match self.take_fixed(8, input) {
                    Some(fixed) => self.on_list_len(u64::from_le_bytes(fixed))?,
                    None => return Ok(None),
                },
                Field::KeyLen => match self.take_fixed(8, input) {
                    Some(fixed) => {
                        let (len, max) = (u64::from_le_bytes(fixed), self.limits.max_key_bytes);
                        let len = fits(len, max).ok_or(DecodeError::KeyTooLong { len, max })?;
                        self.announce(len)?;
                        self.field = Field::Key(len);
                        continue;
                    }
                    None => return Ok(None),
                },
                Field::ValueLen => match self.take_fixed(8, input) {
                    Some(fixed) => {
                        let (len, max) = (u64::from_le_bytes(fixed), self.limits.max_value_bytes);
                        let len = fits(len, max).ok_or(DecodeError::ValueTooLong { len, max })?;
                        self.announce(len)?;
                        self.field = Field::Value(len);
                        continue;
                    }
                    None => return Ok(None),
                },
                Field::Key(len) => match self.take_body(len, input) {
                    Some(bytes) => self.draft.on_key(Key::from(&*bytes), &mut self.field),
                    None => return Ok(None),
                },
                Field::Value(len) => match self.take_body(len, input) {
                    Some(bytes) => self.draft.on_value(Value::from(bytes.into_owned()), &mut self.field),
                    None => return Ok(None),
                },
            };
            if request.is_some() {
                self.field = Field::Op;
                (self.announced, self.held, self.request_bytes) = (0, 0, self.held);
                return Ok(request);
            }
        }
    }

    /// The memory of the partial request, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.held + self.body.capacity()
    }

    /// The memory of the last complete request, in bytes.
    #[must_use]
    pub fn request_bytes(&self) -> usize {
        self.request_bytes
    }

    fn on_op(&mut self, byte: u8) -> Result<Option<Request>, DecodeError> {
        let op = Op::from_byte(byte).ok_or(DecodeError::UnknownOp { op: byte })?;
        match (op, self.validated) {
            (Op::Validate, true) => return Err(DecodeError::ValidatedTwice),
            (Op::Validate, false) | (_, true) => {}
            (_, false) => return Err(DecodeError::NotValidated { op: byte }),
        }
        self.draft.op = op;
        self.field = match op {
            Op::Validate => Field::Magic,
            Op::Ping => Field::Nonce,
            Op::CountKeys => return Ok(Some(Request::CountKeys)),
            Op::CancelWait => return Ok(Some(Request::CancelWait)),
            Op::ListKeys => return Ok(Some(Request::ListKeys)),
            Op::Check | Op::Wait | Op::MultiGet | Op::MultiSet => Field::ListLen,
            Op::Set
            | Op::CompareSet
            | Op::Get
            | Op::Add
            | Op::Delete
            | Op::Append
            | Op::QueuePush
            | Op::QueuePop
            | Op::QueueLen
            | Op::Barrier => Field::KeyLen,
        };
        Ok(None)
    }

    fn on_list_len(&mut self, len: u64) -> Result<Option<Request>, DecodeError> {
        let max = self.limits.max_list_len;
        self.draft.list_len = fits(len, max).ok_or(DecodeError::ListTooLong { len, max })?;
        self.field = Field::KeyLen;
        Ok(if len == 0 { self.draft.finish_list() } else { None })
    }

    fn announce(&mut self, len: usize) -> Result<(), DecodeError> {
        self.announced += len + PART_OVERHEAD;
        if self.announced > self.limits.max_request_bytes {
            return Err(DecodeError::RequestTooLong { max: self.limits.max_request_bytes });
        }
        Ok(())
    }

    fn take_u32(&mut self, input: &mut &[u8]) -> Option<u32> {
        let [a, b, c, d, ..] = self.take_fixed(4, input)?;
        Some(u32::from_le_bytes([a, b, c, d]))
    }

    /// The next `len` bytes, at most eight, once all are there.
    fn take_fixed(&mut self, len: usize, input: &mut &[u8]) -> Option<[u8; 8]> {
        let (fixed, have) = &mut self.fixed;
        let taken = (len - *have).min(input.len());
        let (head, rest) = input.split_at(taken);
        fixed[*have..*have + taken].copy_from_slice(head);
        *input = rest;
        *have += taken;
        if *have < len {
            return None;
        }
        *have = 0;
        Some(*fixed)
    }

    /// The next `len` bytes once all are there; borrowed if they are contiguous, as they nearly always are.
    fn take_body<'a>(&mut self, len: usize, input: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let taken = (len - self.body.len()).min(input.len());
        let (head, rest) = input.split_at(taken);
        *input = rest;
        if taken == len {
            self.held += len + PART_OVERHEAD;
            return Some(Cow::Borrowed(head));
        }
        // Room for the received bytes and at most as much again: the announced length may never arrive.
        let missing = len - self.body.len();
        if self.body.capacity() - self.body.len() < taken {
            self.body.reserve_exact(missing.min(taken.max(self.body.len())));
        }
        self.body.extend_from_slice(head);
        if self.body.len() < len {
            return None;
        }
        self.held += len + PART_OVERHEAD;
        Some(Cow::Owned(mem::take(&mut self.body)))
    }
}

impl Draft {
    fn new(op: Op) -> Self {
        Draft { op, key: None, expected: None, list_len: 0, keys: Vec::new(), pairs: Vec::new() }
    }

    fn on_key(&mut self, key: Key, next: &mut Field) -> Option<Request> {
        match self.op {
            Op::Get => return Some(Request::Get(key)),
            Op::Delete => return Some(Request::Delete(key)),
            Op::QueuePop => return Some(Request::QueuePop(key)),
            Op::QueueLen => return Some(Request::QueueLen(key)),
            Op::Check | Op::Wait | Op::MultiGet => {
                self.keys.push(key);
                *next = Field::KeyLen;
                return if self.keys.len() == self.list_len { self.finish_list() } else { None };
            }
            Op::Add | Op::Barrier => *next = Field::Number,
            Op::Set | Op::CompareSet | Op::Append | Op::QueuePush | Op::MultiSet => *next = Field::ValueLen,
            Op::Validate | Op::Ping | Op::CountKeys | Op::CancelWait | Op::ListKeys => {
                unreachable!("{:?} has no key", self.op)
            }
        }
        self.key = Some(key);
        None
    }

    fn on_value(&mut self, value: Value, next: &mut Field) -> Option<Request> {
        if self.op == Op::CompareSet && self.expected.is_none() {
            self.expected = Some(value);
            *next = Field::ValueLen;
            return None;
        }
        let key = self.key.take()?;
        Some(match self.op {
            Op::Set => Request::Set { key, value },
            Op::Append => Request::Append { key, value },
            Op::QueuePush => Request::QueuePush { key, value },
            Op::CompareSet => Request::CompareSet { key, expected: self.expected.take()?, desired: value },
            Op::MultiSet => {
                self.pairs.push((key, value));
                *next = Field::KeyLen;
                return if self.pairs.len() == self.list_len { self.finish_list() } else { None };
            }
            Op::Validate
            | Op::Get
            | Op::Add
            | Op::Check
            | Op::Wait
            | Op::CountKeys
            | Op::Delete
            | Op::MultiGet
            | Op::CancelWait
            | Op::Ping
            | Op::QueuePop
            | Op::QueueLen
            | Op::ListKeys
            | Op::Barrier => unreachable!("{:?} has no value", self.op),
        })
    }

    fn on_number(&mut self, number: i64) -> Option<Request> {
        let key = self.key.take()?;
        Some(if self.op == Op::Barrier {
            Request::Barrier { key, world_size: number }
        } else {
            Request::Add { key, delta: number }
        })
    }

    fn finish_list(&mut self) -> Option<Request> {
        let keys = mem::take(&mut self.keys);
        Some(if self.op == Op::MultiSet {
            Request::MultiSet(mem::take(&mut self.pairs))
        } else if self.op == Op::MultiGet {
            Request::MultiGet(keys)
        } else if self.op == Op::Wait {
            Request::Wait(keys)
        } else {
            Request::Check(keys)
        })
    }
}

fn fits(len: u64, max: usize) -> Option<usize> {
    usize::try_from(len).ok().filter(|len| *len <= max)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    type Decoded = (Vec<Request>, Option<DecodeError>);

    pub(crate) fn decode_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limits: Limits) -> Decoded {
        let mut decoder = Decoder::new(limits);
        let mut requests = Vec::new();
        for mut piece in pieces {
            loop {
                match decoder.decode(&mut piece) {
                    Ok(Some(request)) => requests.push(request),
                    Ok(None) => break,
                    Err(error) => return (requests, Some(error)),
                }
            }
            assert!(piece.is_empty(), "bytes were left though more were asked for");
        }
        (requests, None)
    }

    pub(crate) fn bytes_of(requests: &[Request]) -> Vec<u8> {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.encode(&mut bytes));
        bytes
    }

    fn fails_with(behind_validate: &[u8]) -> DecodeError {
        let bytes = [&bytes_of(&[Request::Validate])[..], behind_validate].concat();
        decode_pieces([&bytes[..]], Limits::default()).1.expect("the bytes are wrong")
    }

    #[test]
    fn the_bytes_seen_from_a_torch_client_are_understood() {
        let seen = b"\x00\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04\x01\x03\0\0\0\0\0\0\0/k1\x02\0\0\0\0\0\0\0v1\
            \x06\x01\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0/k1\x03\x03\0\0\0\0\0\0\0/k1";
        assert_eq!(
            decode_pieces([&seen[..]], Limits::default()),
            (
                vec![
                    Request::Validate,
                    Request::Ping { nonce: 0x0403_0201 },
                    Request::Set { key: "/k1".into(), value: "v1".into() },
                    Request::Wait(vec!["/k1".into()]),
                    Request::Get("/k1".into()),
                ],
                None
            )
        );
    }

    #[test]
    fn a_connection_must_begin_with_the_magic_number() {
        let first = |bytes: &[u8]| decode_pieces([bytes], Limits::default()).1;
        assert_eq!(first(b"\x00\xce\xf7\x85\x3d"), Some(DecodeError::WrongMagic { magic: 0x3d85_f7ce }));
        assert_eq!(first(b"\x07"), Some(DecodeError::NotValidated { op: 7 }));
        assert_eq!(first(b"PRI * HTTP/2.0"), Some(DecodeError::UnknownOp { op: b'P' }));
        assert_eq!(fails_with(b"\x00"), DecodeError::ValidatedTwice);
    }

    #[test]
    fn a_length_beyond_the_limits_is_refused() {
        let op_and = |op: Op, number: u64| [&[op.byte()][..], &number.to_le_bytes()].concat();
        assert_eq!(fails_with(&op_and(Op::Get, 8193)), DecodeError::KeyTooLong { len: 8193, max: 8192 });
        assert_eq!(
            fails_with(&op_and(Op::Get, u64::MAX)),
            DecodeError::KeyTooLong { len: u64::MAX, max: 8192 }
        );
        assert_eq!(
            fails_with(&op_and(Op::Check, 131_073)),
            DecodeError::ListTooLong { len: 131_073, max: 131_072 }
        );
        let mut set = bytes_of(&[Request::Get("k".into())]);
        set[0] = Op::Set.byte();
        set.extend_from_slice(&((8 << 20) + 1u64).to_le_bytes());
        assert_eq!(fails_with(&set), DecodeError::ValueTooLong { len: (8 << 20) + 1, max: 8 << 20 });
    }

    #[test]
    fn parts_within_limits_may_not_exceed_the_request_limit() {
        let limits = Limits { max_request_bytes: 1000, ..Limits::default() };
        let wait = |n: usize| bytes_of(&[Request::Validate, Request::Wait(vec!["0123456789".into(); n])]);
        assert_eq!(decode_pieces([&wait(13)[..]], limits).1, None);
        assert_eq!(decode_pieces([&wait(14)[..]], limits).1, Some(DecodeError::RequestTooLong { max: 1000 }));
    }

    #[test]
    fn an_announced_length_allocates_nothing() {
        let mut decoder = Decoder::new(Limits::default());
        let mut bytes = bytes_of(&[Request::Validate]);
        bytes.push(Op::Set.byte());
        bytes.extend_from_slice(b"\x01\0\0\0\0\0\0\0k");
        bytes.extend_from_slice(&(8u64 << 20).to_le_bytes());
        bytes.extend_from_slice(b"tiny");
        let mut input = &bytes[..];
        assert_eq!(decoder.decode(&mut input), Ok(Some(Request::Validate)));
        assert_eq!(decoder.decode(&mut input), Ok(None));
        assert!(decoder.held_bytes() < 256, "{} bytes", decoder.held_bytes());
    }

    #[test]
    fn a_large_value_in_small_pieces_is_decoded() {
        let set = Request::Set { key: "big".into(), value: vec![7; 8 << 20].into() };
        let bytes = bytes_of(&[Request::Validate, set.clone()]);
        assert_eq!(
            decode_pieces(bytes.chunks(1500), Limits::default()),
            (vec![Request::Validate, set], None)
        );
    }
}
