//! Replies, and how they become bytes.

use super::key::Value;

/// A reply to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// GET, COMPARE_SET.
    Value(Value),
    /// MULTI_GET, in the order of the request.
    Values(Vec<Value>),
    /// ADD, GETNUMKEYS, DELETE_KEY, QUEUE_LEN.
    Number(i64),
    /// CHECK.
    Present(bool),
    /// WAIT and BARRIER: done.
    StopWaiting,
    /// CANCEL_WAIT.
    WaitCanceled,
    /// PING: echoes the client's number.
    Pong {
        nonce: u32,
    },
    /// QUEUE_POP: the length before, and the oldest value.
    Popped {
        before: i64,
        value: Option<Value>,
    },
    /// LIST_KEYS, in pieces: the number of keys, then each key after its length.
    KeyCount(u64),
    KeyPart(Vec<u8>),
}

/// Receives encoded replies. The send queue of a connection shares a large value instead of copying it.
pub trait ReplySink {
    fn put_bytes(&mut self, bytes: &[u8]);
    fn put_value(&mut self, value: &Value);
}

impl ReplySink for Vec<u8> {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn put_value(&mut self, value: &Value) {
        self.extend_from_slice(value.as_bytes());
    }
}

impl Reply {
    /// Its length on the wire, so that one that is too long is refused before it is made.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        const LENGTH: usize = 8;
        match self {
            Reply::Value(value) => LENGTH + value.as_bytes().len(),
            Reply::Values(values) => values.iter().map(|value| LENGTH + value.as_bytes().len()).sum(),
            Reply::Number(_) | Reply::KeyCount(_) => 8,
            Reply::KeyPart(part) => part.len(),
            Reply::Present(_) | Reply::StopWaiting | Reply::WaitCanceled => 1,
            Reply::Pong { .. } => 4,
            Reply::Popped { value, .. } => 8 + value.as_ref().map_or(0, |v| LENGTH + v.as_bytes().len()),
        }
    }

    pub fn encode(&self, out: &mut impl ReplySink) {
        match self {
            Reply::Value(value) => put_value(out, value),
            Reply::Values(values) => values.iter().for_each(|value| put_value(out, value)),
            Reply::Number(number) => out.put_bytes(&number.to_le_bytes()),
            Reply::Present(present) => out.put_bytes(&[u8::from(!present)]),
            Reply::StopWaiting => out.put_bytes(&[0]),
            Reply::WaitCanceled => out.put_bytes(&[1]),
            Reply::Pong { nonce } => out.put_bytes(&nonce.to_le_bytes()),
            Reply::Popped { before, value } => {
                out.put_bytes(&before.to_le_bytes());
                if let Some(value) = value {
                    put_value(out, value);
                }
            }
            Reply::KeyCount(keys) => out.put_bytes(&keys.to_le_bytes()),
            Reply::KeyPart(part) => out.put_bytes(part),
        }
    }
}

fn put_value(out: &mut impl ReplySink, value: &Value) {
    out.put_bytes(&(value.as_bytes().len() as u64).to_le_bytes());
    out.put_value(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_have_the_bytes_of_torch_and_the_computed_length() {
        let cases: [(Reply, &[u8]); 12] = [
            (Reply::Value("v1".into()), b"\x02\0\0\0\0\0\0\0v1"),
            (Reply::Values(vec!["".into(), "x".into()]), b"\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0x"),
            (Reply::Number(-7), b"\xf9\xff\xff\xff\xff\xff\xff\xff"),
            (Reply::Present(true), b"\0"),
            (Reply::Present(false), b"\x01"),
            (Reply::StopWaiting, b"\0"),
            (Reply::WaitCanceled, b"\x01"),
            (Reply::Pong { nonce: 0x0403_0201 }, b"\x01\x02\x03\x04"),
            (Reply::Popped { before: 0, value: None }, b"\0\0\0\0\0\0\0\0"),
            (Reply::Popped { before: 2, value: Some("q".into()) }, b"\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0q"),
            (Reply::KeyCount(1), b"\x01\0\0\0\0\0\0\0"),
            (Reply::KeyPart(b"\x02\0\0\0\0\0\0\0/k".to_vec()), b"\x02\0\0\0\0\0\0\0/k"),
        ];
        for (reply, bytes) in cases {
            let mut out = Vec::new();
            reply.encode(&mut out);
            assert_eq!(out, bytes, "{reply:?}");
            assert_eq!(reply.encoded_len(), bytes.len(), "{reply:?}");
        }
    }
}
