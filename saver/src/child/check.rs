//! Files on disk, compared with their sizes and checksums before a load.

use std::{
    fs::File,
    io,
    io::Read as _,
    os::fd::AsRawFd as _,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use checkpoint::{
    format::chunks::Summing,
    slots::{FileCheck, FileFault},
};

use super::folder::open_file;

const GIVEN_UP: &str = "the check was cancelled: its client has disconnected";

/// Bytes that are read at once.
const BLOCK: usize = 1 << 20;

/// Compares files, in order, up to the first that differs.
///
/// # Errors
/// Which file differs, and how.
pub(super) fn check(files: &[FileCheck]) -> Result<(), FileFault> {
    check_until(files, &AtomicBool::new(false))
}

/// Like [`check`], until nothing waits for it.
///
/// # Errors
/// Which file differs, and how; or that the check was cancelled.
pub(super) fn check_until(files: &[FileCheck], is_cancelled: &AtomicBool) -> Result<(), FileFault> {
    // Sizes first: they are of all shards, and a missing file need not wait for gigabytes of others.
    for file in files {
        if is_cancelled.load(Ordering::Relaxed) {
            return Err(FileFault::Unreadable(GIVEN_UP.to_owned()));
        }
        open(file)?;
    }
    files.iter().try_for_each(|file| check_content(file, is_cancelled))
}

fn open(file: &FileCheck) -> Result<File, FileFault> {
    let path = &file.path;
    let unreadable = |error: io::Error| FileFault::Unreadable(format!("cannot read {path}: {error}"));
    let opened = open_file(Path::new(path)).map_err(unreadable)?;
    let found = opened.metadata().map_err(unreadable)?.len();
    match file.bytes {
        Some(expected) if found != expected => Err(FileFault::Differs(format!(
            "{path} has the size {found} B; expected {expected} B: it was truncated or overwritten"
        ))),
        None if found == 0 => Err(FileFault::Differs(format!("{path} is empty"))),
        _ => Ok(opened),
    }
}

fn check_content(file: &FileCheck, is_cancelled: &AtomicBool) -> Result<(), FileFault> {
    let (path, Some((chunk_bytes, expected))) = (&file.path, &file.crc32) else { return Ok(()) };
    let mut opened = open(file)?;
    // SAFETY: plain numbers; the descriptor is open. It is only advice.
    unsafe { libc::posix_fadvise(opened.as_raw_fd(), 0, 0, libc::POSIX_FADV_SEQUENTIAL) };
    let mut summing = Summing::new(*chunk_bytes);
    let mut block = vec![0; BLOCK];
    loop {
        if is_cancelled.load(Ordering::Relaxed) {
            return Err(FileFault::Unreadable(GIVEN_UP.to_owned()));
        }
        match opened.read(&mut block) {
            Ok(0) => break,
            Ok(length) => summing.update(block.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let text = format!("cannot read {path} at byte {}: {error}", summing.bytes());
                return Err(FileFault::Unreadable(text));
            }
        }
    }
    let found = summing.finish().crc32;
    let differing =
        (0..found.len().max(expected.len())).find(|index| found.get(*index) != expected.get(*index));
    match differing {
        None => Ok(()),
        Some(index) => {
            let first = chunk_bytes.saturating_mul(index as u64);
            Err(FileFault::Differs(format!(
                "{path} was changed after it was written: the checksum of the chunk at byte {first} differs"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_differs_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"0123456789").unwrap();
        let path = path.to_str().unwrap().to_owned();
        let sums = vec![crc32fast::hash(b"01234567"), crc32fast::hash(b"89")];
        let good = FileCheck { path: path.clone(), bytes: Some(10), crc32: Some((8, sums)) };
        let missing = FileCheck { path: format!("{path}-missing"), bytes: None, crc32: None };
        let files = |file: &FileCheck| check(std::slice::from_ref(file));
        let differs = |file: &FileCheck, text: &str| {
            assert!(matches!(files(file), Err(FileFault::Differs(why)) if why.contains(text)), "{text}");
        };
        assert_eq!(files(&good), Ok(()));
        assert_eq!(files(&FileCheck { bytes: None, crc32: None, ..good.clone() }), Ok(()));
        differs(&FileCheck { bytes: Some(11), ..good.clone() }, "has the size 10 B");
        let fewer = FileCheck { crc32: Some((8, vec![crc32fast::hash(b"01234567")])), ..good.clone() };
        differs(&fewer, "the chunk at byte 8 differs");
        let absent = check(&[good.clone(), missing]);
        assert!(matches!(absent, Err(FileFault::Unreadable(why)) if why.contains("-missing")));
        let cancelled = check_until(std::slice::from_ref(&good), &AtomicBool::new(true));
        assert_eq!(cancelled, Err(FileFault::Unreadable(GIVEN_UP.to_owned())));
        fs::write(&path, b"x123456789").unwrap();
        differs(&good, "the chunk at byte 0 differs");
        fs::write(&path, b"").unwrap();
        let any = FileCheck { bytes: None, crc32: None, ..good };
        differs(&any, &format!("{path} is empty"));
    }
}
