//! Numbers of descriptors that other files of the launcher do not get.

use std::{
    fs::File,
    os::fd::{AsFd, FromRawFd as _, OwnedFd, RawFd},
};

use nix::fcntl::{FcntlArg, fcntl};

/// The first one. The kernel gives new files the lowest free number, so that others come up to here only in a launcher
/// that has as many files open.
const FIRST: RawFd = 512;

/// Above the last one. The kernel's table of a process grows with its highest number: here to 32 KiB.
const END: RawFd = 4096;

/// Gives out numbers in turn. A worker knows its file by `/proc/PID/fd/NUMBER`; where the number soon belonged to another
/// file of the launcher, a late write of a worker that is gone would go there.
#[derive(Debug)]
pub(super) struct Numbers {
    next: RawFd,
}

impl Numbers {
    pub(super) fn new() -> Self {
        Self { next: FIRST }
    }

    /// Moves a file to the next number. Where the limit of open files allows no such number, it stays where it is.
    pub(super) fn give(&mut self, file: File) -> File {
        let starts = if self.next < END { [self.next, FIRST] } else { [FIRST, FIRST] };
        for least in starts {
            if let Ok(number) = fcntl(&file, FcntlArg::F_DUPFD_CLOEXEC(least)) {
                self.next = number + 1;
                // SAFETY: a descriptor that the kernel just returned, and that nothing else owns.
                return File::from(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
        file
    }
}

/// Makes room for the numbers. To be called while there is one thread: with more of them, the kernel lets the call that
/// enlarges the table wait for all processors, which takes 10 ms.
pub(crate) fn make_room(any: &impl AsFd) {
    // A usual limit of open files is 1024.
    for last in [END - 1, 1023] {
        if let Ok(number) = fcntl(any, FcntlArg::F_DUPFD_CLOEXEC(last)) {
            // SAFETY: a descriptor that the kernel just returned, and that nothing else owns.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use processes::memory_file::memory_file;

    use super::*;

    #[test]
    fn a_number_comes_back_only_after_all_others() {
        let mut numbers = Numbers::new();
        let mut give = || numbers.give(memory_file(c"a-name").unwrap()).as_raw_fd();
        let first = give();
        assert!(first >= FIRST);
        let taken = (1..).map(|_| give()).take_while(|number| *number > first).count();
        // The limit of this process may be lower than END.
        assert!(taken >= 64, "{taken}");
    }
}
