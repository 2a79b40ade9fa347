//! The master's journal: its header, its records, and a file whose end is not what was written.

use std::time::Duration;

use master::{JournalError, journal_bytes};
use rules::job::{OnGiveUp, Policy};

use crate::steps;

/// A header, as it is and with the checksum that makes it one.
pub(crate) fn header(bytes: &[u8]) {
    assert!(journal_bytes::read(bytes).is_err() || bytes.len() > journal_bytes::HEADER_BODY + 4);
    let body = &bytes[..bytes.len().min(journal_bytes::HEADER_BODY)];
    let error = journal_bytes::read(&journal_bytes::sealed_header(body)).expect_err("there is no record");
    assert!(!error.to_string().is_empty());
}

/// Records after the first one: whole ones (an even kind), and raw bytes.
pub(crate) fn journal(bytes: &[u8]) {
    let first = journal_bytes::first_record(policy());
    let mut file = journal_bytes::file([&first[..]]);
    let head = journal_bytes::header().len();
    for step in steps::of(bytes) {
        if step.kind % 2 == 0 {
            file.extend(&journal_bytes::file([step.bytes])[head..]);
        } else {
            file.extend(step.bytes);
        }
    }
    match journal_bytes::read(&file) {
        Ok(torn) => assert!(torn <= file.len() - head - first.len()),
        Err(JournalError::Damaged { offset, .. }) => assert!(offset <= file.len()),
        Err(error) => panic!("{error}"),
    }
}

/// The events of these files.
#[must_use]
pub fn policy() -> Policy {
    Policy {
        restart_count: 3,
        on_give_up: OnGiveUp::Replace,
        host: None,
        has_topology: false,
        host_timeout: Duration::from_secs(60),
        reconnect_grace: Duration::from_secs(2),
        terms: None,
        is_open: false,
        taint_guard_permille: 300,
        lease: Some(std::time::Duration::from_secs(15)),
    }
}
