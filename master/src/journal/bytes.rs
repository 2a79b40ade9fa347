//! The journal's bytes without its directory, to feed damaged bytes to the reader (`tests/support/inputs`).

use rules::{
    Moment,
    job::{Event, Policy},
};

use super::{
    Entry, Snapshot,
    frame::{HEADER, Header},
    recovery::replay,
};

/// A constant salt, so that one input gives one file.
const SALT: [u8; 4] = [0x5a; 4];

/// Bytes of the header before its checksum.
pub const HEADER_BODY: usize = HEADER - 4;

/// Reads a journal as a restarted master does. Returns the number of bytes of a torn commit at its end.
///
/// # Errors
/// They are damaged, or of another release.
pub fn read(file: &[u8]) -> Result<usize, super::JournalError> {
    replay("journal".as_ref(), file).map(|recovered| recovered.torn_bytes)
}

/// Returns a header of this build: a file without records.
#[must_use]
pub fn header() -> Vec<u8> {
    let mut body = Header::new(1).to_bytes();
    body[20..24].copy_from_slice(&SALT);
    sealed_header(&body[..HEADER_BODY])
}

/// Returns `body` as a header with a valid checksum.
#[must_use]
pub fn sealed_header(body: &[u8]) -> Vec<u8> {
    let mut bytes = body.to_vec();
    bytes.resize(HEADER_BODY, 0);
    let crc = crc32fast::hash(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

/// Returns a file of this build with these records and valid checksums.
#[must_use]
pub fn file<'a>(records: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut file = header();
    if let Ok(header) = Header::from_bytes(&file) {
        for record in records {
            file.extend(header.frame(record).unwrap_or_default());
        }
    }
    file
}

/// Returns the first record of a file, of a job without nodes.
#[must_use]
pub fn first_record(policy: Policy) -> Vec<u8> {
    encoded(&Entry::Snapshot(Box::new(Snapshot::new(policy))))
}

/// Returns a record of events.
#[must_use]
pub fn record_of(events: Vec<(Moment, Event)>) -> Vec<u8> {
    encoded(&Entry::Events(events))
}

fn encoded(entry: &Entry) -> Vec<u8> {
    postcard::to_stdvec(entry).unwrap_or_default()
}
