//! The end of a stream, kept for the failure report.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
};

/// How much of each worker's standard error is kept.
pub const TAIL_BYTES: usize = 64 << 10;

/// The last [`TAIL_BYTES`] that were pushed. Grows as it fills.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
}

impl Tail {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        let excess = (self.bytes.len() + bytes.len()).saturating_sub(TAIL_BYTES);
        self.bytes.drain(..excess);
        self.bytes.extend(bytes);
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }
}

/// The last [`TAIL_BYTES`] of a file.
pub(crate) fn of_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES as u64)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i % 251) as u8).collect()
    }

    #[test]
    fn exactly_the_last_64_kib_are_kept() {
        let all = numbered(3 * TAIL_BYTES + 17);
        for step in [1, 100, 4096, TAIL_BYTES, TAIL_BYTES + 1, all.len()] {
            let mut tail = Tail::default();
            all.chunks(step).for_each(|chunk| tail.push(chunk));
            assert!(tail.bytes() == all[all.len() - TAIL_BYTES..], "in steps of {step}");
        }
    }

    #[test]
    fn less_is_kept_whole() {
        let mut tail = Tail::default();
        tail.push(b"Trace");
        tail.push(b"back");
        assert_eq!(tail.bytes(), b"Traceback");
    }

    #[test]
    fn the_end_of_a_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stderr.log");
        let all = numbered(TAIL_BYTES + 5);
        std::fs::write(&path, &all).unwrap();
        assert!(of_file(&path).unwrap() == all[5..]);
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(of_file(&path).unwrap(), b"short");
    }
}
