//! Keys and values: bytes as received, shared by their clones.

use std::{fmt, sync::Arc};

/// A key as received. Torch's clients put a `/` before every key but their own `init/`.
///
/// A clone shares the bytes: the table, its waits and a list of keys refer to the same key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<[u8]>);

/// A value as received. A clone shares the bytes, so a large value in the send queues of many clients is in memory
/// once.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Value(Arc<Vec<u8>>);

impl Key {
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Value {
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Appends bytes; copies the value first if an unsent reply still refers to the shorter one.
    pub(crate) fn append(&mut self, more: &[u8]) {
        Arc::make_mut(&mut self.0).extend_from_slice(more);
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Key(Arc::from(bytes))
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Key(Arc::from(text.as_bytes()))
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Value(Arc::new(bytes))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value(Arc::new(text.as_bytes().to_vec()))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.0.escape_ascii())
    }
}

/// Shows the first bytes only: a value may be 8 MiB of tensor.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 64;
        let shown = &self.0[..self.0.len().min(SHOWN)];
        write!(f, "Value({}", shown.escape_ascii())?;
        if self.0.len() > SHOWN {
            write!(f, "... {} bytes", self.0.len())?;
        }
        f.write_str(")")
    }
}
