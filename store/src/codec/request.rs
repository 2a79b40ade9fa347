//! Requests, and how they become bytes.

use super::{
    key::{Key, Value},
    op::{MAGIC, Op},
};

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The client has sent the magic number.
    Validate,
    Set {
        key: Key,
        value: Value,
    },
    CompareSet {
        key: Key,
        expected: Value,
        desired: Value,
    },
    Get(Key),
    Add {
        key: Key,
        delta: i64,
    },
    Check(Vec<Key>),
    Wait(Vec<Key>),
    CountKeys,
    Delete(Key),
    Append {
        key: Key,
        value: Value,
    },
    MultiGet(Vec<Key>),
    MultiSet(Vec<(Key, Value)>),
    CancelWait,
    Ping {
        nonce: u32,
    },
    QueuePush {
        key: Key,
        value: Value,
    },
    QueuePop(Key),
    QueueLen(Key),
    ListKeys,
    /// Signed as on the wire: a world of zero or less is complete with the first arrival, as in torch.
    Barrier {
        key: Key,
        world_size: i64,
    },
}

impl Request {
    #[must_use]
    pub fn op(&self) -> Op {
        match self {
            Request::Validate => Op::Validate,
            Request::Set { .. } => Op::Set,
            Request::CompareSet { .. } => Op::CompareSet,
            Request::Get(_) => Op::Get,
            Request::Add { .. } => Op::Add,
            Request::Check(_) => Op::Check,
            Request::Wait(_) => Op::Wait,
            Request::CountKeys => Op::CountKeys,
            Request::Delete(_) => Op::Delete,
            Request::Append { .. } => Op::Append,
            Request::MultiGet(_) => Op::MultiGet,
            Request::MultiSet(_) => Op::MultiSet,
            Request::CancelWait => Op::CancelWait,
            Request::Ping { .. } => Op::Ping,
            Request::QueuePush { .. } => Op::QueuePush,
            Request::QueuePop(_) => Op::QueuePop,
            Request::QueueLen(_) => Op::QueueLen,
            Request::ListKeys => Op::ListKeys,
            Request::Barrier { .. } => Op::Barrier,
        }
    }

    /// Encodes the request as a client does; used by tests and the load generator.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.op().byte());
        match self {
            Request::Validate => out.extend_from_slice(&MAGIC.to_le_bytes()),
            Request::Ping { nonce } => out.extend_from_slice(&nonce.to_le_bytes()),
            Request::CountKeys | Request::CancelWait | Request::ListKeys => {}
            Request::Get(key) | Request::Delete(key) | Request::QueuePop(key) | Request::QueueLen(key) => {
                put(out, key.as_bytes());
            }
            Request::Set { key, value }
            | Request::Append { key, value }
            | Request::QueuePush { key, value } => {
                put(out, key.as_bytes());
                put(out, value.as_bytes());
            }
            Request::CompareSet { key, expected, desired } => {
                put(out, key.as_bytes());
                put(out, expected.as_bytes());
                put(out, desired.as_bytes());
            }
            Request::Add { key, delta: number } | Request::Barrier { key, world_size: number } => {
                put(out, key.as_bytes());
                out.extend_from_slice(&number.to_le_bytes());
            }
            Request::Check(keys) | Request::Wait(keys) | Request::MultiGet(keys) => {
                out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
                for key in keys {
                    put(out, key.as_bytes());
                }
            }
            Request::MultiSet(pairs) => {
                out.extend_from_slice(&(pairs.len() as u64).to_le_bytes());
                for (key, value) in pairs {
                    put(out, key.as_bytes());
                    put(out, value.as_bytes());
                }
            }
        }
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}
