//! Bytes of the journal: one header for the file, one frame for each commit.
//!
//! ```text
//! header: magic 8 | format u32 | life u64 | salt u32 | release 16 | crc u32
//! frame:  length u32 | crc of the payload u32 | crc of these eight bytes u32 | payload
//! ```
//!
//! Numbers are little-endian. A commit is one frame, and the next is written only when it is durable, so all bytes
//! before a complete frame were durable. Every checksum starts from the file's own salt, so that neither bytes of an
//! older file on the same blocks nor bytes that a node sent look like a frame.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher as _, Hasher as _},
    ops::Range,
};

/// The first bytes of every journal.
const MAGIC: [u8; 8] = *b"DLRVJRNL";

/// Changes with every change of the records.
pub(super) const FORMAT: u32 = 11;

/// The release that writes.
pub(super) const RELEASE: &str = env!("CARGO_PKG_VERSION");

const RELEASE_BYTES: usize = 16;

/// Length of the file's header in bytes.
pub(super) const HEADER: usize = 8 + 4 + 8 + 4 + RELEASE_BYTES + 4;

/// Length of a frame's head in bytes.
pub(super) const HEAD: usize = 12;

/// The unit of a disk's writes. A sector that was never written reads as zeros.
const SECTOR: usize = 512;

/// The header of a journal's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// The life of the master that writes it, from 1.
    pub(super) life: u64,
    salt: u32,
}

/// Why a header is invalid.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadHeader {
    /// The header's bytes have changed since they were written.
    Damaged,
    /// Another release wrote it.
    Other { release: String, format: u32 },
}

/// What is found at an offset.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameAt {
    /// A complete frame; its payload.
    Frame(Range<usize>),
    /// An incomplete frame at the end: usually a commit that was being written when the master died, for which no call
    /// was answered. A file that was truncated later looks the same.
    Torn,
    /// Bytes that were durable once and have changed.
    Damaged,
}

impl Header {
    pub(super) fn new(life: u64) -> Self {
        Self { life, salt: random() as u32 }
    }

    pub(super) fn to_bytes(self) -> [u8; HEADER] {
        let mut release = [0; RELEASE_BYTES];
        for (to, from) in release.iter_mut().zip(RELEASE.bytes()) {
            *to = from;
        }
        let mut bytes = [0; HEADER];
        let parts: [&[u8]; 5] =
            [&MAGIC, &FORMAT.to_le_bytes(), &self.life.to_le_bytes(), &self.salt.to_le_bytes(), &release];
        let (body, crc) = bytes.split_at_mut(HEADER - 4);
        for (to, from) in body.iter_mut().zip(parts.concat()) {
            *to = from;
        }
        crc.copy_from_slice(&crc32fast::hash(body).to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, BadHeader> {
        let Some((header, _)) = bytes.split_first_chunk::<HEADER>() else { return Err(BadHeader::Damaged) };
        let (body, crc) = header.split_at(HEADER - 4);
        if !body.starts_with(&MAGIC) || crc != crc32fast::hash(body).to_le_bytes() {
            return Err(BadHeader::Damaged);
        }
        let format = number(&body[8..12]);
        let release = body[24..].iter().take_while(|byte| **byte != 0).copied().collect();
        let release = String::from_utf8(release).map_err(|_| BadHeader::Damaged)?;
        let is_ours = RELEASE.bytes().take(RELEASE_BYTES).eq(release.bytes());
        if format != FORMAT || !is_ours {
            return Err(BadHeader::Other { release, format });
        }
        let life = u64::from(number(&body[12..16])) | u64::from(number(&body[16..20])) << 32;
        Ok(Self { life, salt: number(&body[20..24]) })
    }

    /// Returns a frame with `payload`; `None` when it is too large.
    pub(super) fn frame(self, payload: &[u8]) -> Option<Vec<u8>> {
        let length = u32::try_from(payload.len()).ok()?;
        let mut frame = Vec::with_capacity(HEAD + payload.len());
        frame.extend(length.to_le_bytes());
        frame.extend(self.crc(payload).to_le_bytes());
        frame.extend(self.crc(&frame).to_le_bytes());
        frame.extend_from_slice(payload);
        Some(frame)
    }

    /// Returns what is at `offset`, the end of the header or of a frame.
    pub(super) fn at(self, file: &[u8], offset: usize) -> FrameAt {
        let rest = &file[offset..];
        if let Some(payload) = self.whole(rest) {
            return FrameAt::Frame(offset + HEAD..offset + HEAD + payload);
        }
        let is_short =
            rest.len() < HEAD || self.length(rest).is_some_and(|length| rest.len() - HEAD < length);
        if is_short {
            return FrameAt::Torn;
        }
        // A frame that follows was written after this one was durable.
        if (1..rest.len()).any(|later| self.whole(&rest[later..]).is_some()) {
            return FrameAt::Damaged;
        }
        if has_unwritten_sector(file, offset) { FrameAt::Torn } else { FrameAt::Damaged }
    }

    /// Returns the length of the payload when `bytes` begin with a complete frame.
    fn whole(self, bytes: &[u8]) -> Option<usize> {
        let length = self.length(bytes)?;
        let payload = bytes.get(HEAD..HEAD.checked_add(length)?)?;
        (number(&bytes[4..8]) == self.crc(payload)).then_some(length)
    }

    /// Returns the length in a frame's head, if it is valid.
    fn length(self, bytes: &[u8]) -> Option<usize> {
        let head = bytes.first_chunk::<HEAD>()?;
        let is_head = number(&head[8..]) == self.crc(&head[..8]);
        is_head.then(|| usize::try_from(number(&head[..4])).ok()).flatten()
    }

    fn crc(self, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.salt);
        hasher.update(bytes);
        hasher.finalize()
    }
}

/// Returns whether a sector from `offset` on is all zeros: the file was extended before its bytes were written.
fn has_unwritten_sector(file: &[u8], offset: usize) -> bool {
    let first_end = (offset / SECTOR + 1) * SECTOR;
    let (first, others) = file[offset..].split_at(file.len().min(first_end) - offset);
    std::iter::once(first).chain(others.chunks(SECTOR)).any(|sector| sector.iter().all(|byte| *byte == 0))
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Returns a random number.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: Header, payloads: &[&[u8]]) -> Vec<u8> {
        let mut file = header.to_bytes().to_vec();
        for payload in payloads {
            file.extend(header.frame(payload).unwrap());
        }
        file
    }

    fn walk(header: Header, file: &[u8]) -> (usize, Option<FrameAt>) {
        let (mut offset, mut frames) = (HEADER, 0);
        while offset < file.len() {
            match header.at(file, offset) {
                FrameAt::Frame(payload) => {
                    offset = payload.end;
                    frames += 1;
                }
                bad => return (frames, Some(bad)),
            }
        }
        (frames, None)
    }

    #[test]
    fn a_header_is_decoded_and_a_changed_byte_is_detected() {
        let header = Header::new(1 << 40 | 7);
        let bytes = header.to_bytes();
        assert_eq!(Header::from_bytes(&bytes), Ok(header));
        for at in 0..HEADER {
            let mut changed = bytes;
            changed[at] ^= 1;
            assert_eq!(Header::from_bytes(&changed), Err(BadHeader::Damaged), "byte {at}");
            assert_eq!(Header::from_bytes(&bytes[..at]), Err(BadHeader::Damaged));
        }
    }

    #[test]
    fn another_release_is_told_apart_from_damage() {
        let mut bytes = Header::new(1).to_bytes();
        bytes[24..29].copy_from_slice(b"9.9.9");
        let crc = crc32fast::hash(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        let other = BadHeader::Other { release: "9.9.9".into(), format: FORMAT };
        assert_eq!(Header::from_bytes(&bytes), Err(other));
    }

    #[test]
    fn a_truncated_frame_is_torn_and_a_changed_byte_is_damage() {
        let header = Header::new(1);
        let payloads: [&[u8]; 3] = [b"the first", &[7; 700], b"the last"];
        let whole = file(header, &payloads);
        assert_eq!(walk(header, &whole), (3, None));
        for cut in HEADER..whole.len() {
            let (frames, bad) = walk(header, &whole[..cut]);
            assert!(frames < 3);
            assert!(bad.is_none_or(|bad| bad == FrameAt::Torn), "cut at {cut}");
        }
        for at in HEADER..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x55;
            assert_eq!(walk(header, &changed).1, Some(FrameAt::Damaged), "byte {at}");
        }
    }

    #[test]
    fn zeros_at_the_end_are_torn_and_before_a_frame_they_are_damage() {
        let header = Header::new(1);
        let whole = file(header, &[b"one", &[9; 3000]]);
        let mut grown = file(header, &[b"one"]);
        grown.resize(grown.len() + 4096, 0);
        assert_eq!(walk(header, &grown), (1, Some(FrameAt::Torn)));
        let mut holed = whole;
        holed[1024..1536].fill(0);
        assert_eq!(walk(header, &holed), (1, Some(FrameAt::Torn)));
        holed.extend(header.frame(b"after").unwrap());
        assert_eq!(walk(header, &holed), (1, Some(FrameAt::Damaged)));
    }

    #[test]
    fn frames_of_another_file_are_none() {
        let mut mixed = file(Header { life: 1, salt: 1 }, &[b"mine"]);
        mixed.extend(Header { life: 1, salt: 2 }.frame(b"theirs").unwrap());
        assert_eq!(walk(Header { life: 1, salt: 1 }, &mixed), (1, Some(FrameAt::Damaged)));
    }
}
