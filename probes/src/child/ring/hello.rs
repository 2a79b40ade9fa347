//! The first messages on a connection: they identify the peer and the test.

/// `DLRVRING`.
const MAGIC: [u8; 8] = *b"DLRVRING";

/// Version of the protocol. All nodes of a job run the same version; others are rejected.
const VERSION: u32 = 1;

/// Bytes of a [`Hello`].
pub(crate) const LENGTH: usize = 48;

/// The kind of a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// From the dialling end, which will lead (measure round trips).
    Lead,
    /// From the dialling end; the other end leads. Used by `dlrover-diag pair`, where one end dials both connections.
    Follow,
    /// Reply: accepted.
    Accepted,
    /// Reply: this is another test.
    Rejected,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Lead, Self::Follow, Self::Accepted, Self::Rejected];
}

/// The first message of either end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) kind: Kind,
    /// Identifies the test.
    pub(crate) token: u64,
    pub(crate) members: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let kind = Kind::ALL.iter().position(|kind| *kind == self.kind).unwrap_or_default();
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = u8::try_from(kind).unwrap_or_default();
        for (index, number) in [self.token, self.members, self.from, self.to].into_iter().enumerate() {
            bytes[16 + 8 * index..24 + 8 * index].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Decodes it. `None`: not a hello of this version.
    pub(crate) fn decode(bytes: &[u8; LENGTH]) -> Option<Self> {
        if bytes[..8] != MAGIC || bytes[8..12] != VERSION.to_le_bytes() {
            return None;
        }
        let kind = *Kind::ALL.get(usize::from(bytes[12]))?;
        let number = |index: usize| {
            let start = 16 + 8 * index;
            Some(u64::from_le_bytes(bytes.get(start..start + 8)?.try_into().ok()?))
        };
        Some(Self { kind, token: number(0)?, members: number(1)?, from: number(2)?, to: number(3)? })
    }

    /// Whether the bytes received so far, at most [`LENGTH`], may be the beginning of a hello.
    pub(crate) fn may_begin_with(bytes: &[u8]) -> bool {
        bytes.iter().zip(&MAGIC).all(|(theirs, ours)| theirs == ours)
    }

    /// The reply to it.
    pub(crate) fn answer(&self, kind: Kind) -> Self {
        Self { kind, from: self.to, to: self.from, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_decoded_as_encoded_and_other_bytes_are_refused() {
        for kind in Kind::ALL {
            let hello = Hello { kind, token: u64::MAX - 3, members: 3, from: 1, to: 2 };
            assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        }
        let bytes = Hello { kind: Kind::Lead, token: 1, members: 2, from: 0, to: 1 }.encode();
        for at in 0..13 {
            let mut other = bytes;
            other[at] ^= 0x80;
            assert_eq!(Hello::decode(&other), None, "byte {at}");
        }
        assert_eq!(Hello::decode(&[0; LENGTH]), None);
        assert!(
            Hello::may_begin_with(b"") && Hello::may_begin_with(&bytes[..3]) && Hello::may_begin_with(&bytes)
        );
        assert!(!Hello::may_begin_with(b"DLX") && !Hello::may_begin_with(b"SSH-2.0"));
    }
}
