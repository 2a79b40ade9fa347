//! The writing of a large file: its room is taken at first, and its bytes go to the disk while later ones are copied.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::AsRawFd as _,
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
};

/// Bytes after which writing to the disk is started.
const WINDOW: u64 = 64 << 20;

/// A file that is written from front to back.
#[derive(Debug)]
pub(super) struct Output<'a> {
    file: &'a File,
    written: u64,
    /// Where the window begins that is not yet on its way to the disk.
    window: u64,
}

impl<'a> Output<'a> {
    /// Takes room for a file of so many bytes, where the file system can.
    ///
    /// # Errors
    /// When the disk is full, or the user's share of it.
    pub(super) fn new(file: &'a File, bytes: u64) -> io::Result<Self> {
        let length = libc::off_t::try_from(bytes).map_err(|_| Errno::EFBIG)?;
        if length > 0 {
            loop {
                match fallocate(file, FallocateFlags::empty(), 0, length) {
                    Err(Errno::EINTR) => {}
                    Err(
                        errno @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG | Errno::EIO | Errno::EROFS),
                    ) => {
                        return Err(errno.into());
                    }
                    // Other errors say that the file system has no such call.
                    _ => break,
                }
            }
        }
        Ok(Self { file, written: 0, window: 0 })
    }

    /// Writes the next bytes.
    ///
    /// # Errors
    /// When the disk fails, also in writing earlier bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        if self.written - self.window >= WINDOW {
            self.advance()?;
        }
        Ok(())
    }

    /// Starts writing a window to the disk and waits for the one before: at most two are in the page cache, where they
    /// would push out what training reads.
    fn advance(&mut self) -> io::Result<()> {
        let length = self.written - self.window;
        self.sync(self.window, length, libc::SYNC_FILE_RANGE_WRITE)?;
        if let Some(before) = self.window.checked_sub(length) {
            let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE
                | libc::SYNC_FILE_RANGE_WRITE
                | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            self.sync(before, length, wait)?;
            let (offset, length) = (offset_of(before), offset_of(length));
            // SAFETY: plain numbers; the descriptor is open. It is only advice.
            unsafe { libc::posix_fadvise(self.file.as_raw_fd(), offset, length, libc::POSIX_FADV_DONTNEED) };
        }
        self.window = self.written;
        Ok(())
    }

    fn sync(&self, offset: u64, length: u64, flags: libc::c_uint) -> io::Result<()> {
        let (offset, length) = (offset_of(offset), offset_of(length));
        // SAFETY: plain numbers; the descriptor is open.
        let answer = unsafe { libc::sync_file_range(self.file.as_raw_fd(), offset, length, flags) };
        match Errno::result(answer) {
            Err(errno @ (Errno::EIO | Errno::ENOSPC | Errno::EDQUOT)) => Err(errno.into()),
            // A file system without the call; the sync at the end remains.
            _ => Ok(()),
        }
    }
}

/// No file is longer than an `off_t` can say.
fn offset_of(bytes: u64) -> libc::off_t {
    libc::off_t::try_from(bytes).unwrap_or(libc::off_t::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn all_bytes_arrive_over_several_windows() {
        let file = tempfile::tempfile().unwrap();
        let block: Vec<u8> = (0..1_u32 << 20).map(|number| (number % 251) as u8).collect();
        let bytes = 3 * WINDOW + 5;
        let mut output = Output::new(&file, bytes).unwrap();
        assert_eq!(file.metadata().unwrap().len(), bytes);
        for _ in 0..bytes >> 20 {
            output.write(&block).unwrap();
        }
        output.write(b"12345").unwrap();
        let mut end = [0; 6];
        file.read_exact_at(&mut end, bytes - 6).unwrap();
        assert_eq!(&end[1..], b"12345");
        assert_eq!(end[0], block[block.len() - 1]);
        assert_eq!(file.metadata().unwrap().len(), bytes);
    }

    #[test]
    fn a_file_that_cannot_be_is_refused_at_once() {
        let file = tempfile::tempfile().unwrap();
        Output::new(&file, u64::MAX).unwrap_err();
        Output::new(&file, 1 << 60).unwrap_err();
    }
}
