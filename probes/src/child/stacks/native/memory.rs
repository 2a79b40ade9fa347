//! The memory of another process, by process_vm_readv(2), which stops nothing.

use std::io::IoSliceMut;

use nix::{
    errno::Errno,
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};

/// Pages are the unit in which memory is or is not there.
const PAGE: u64 = 4096;

/// Pieces in one call; the kernel takes 1024.
const PIECES: usize = 512;

/// Reads memory of a process into `buffer`, up to the first page that is not there. Returns how much was read.
///
/// # Errors
/// When nothing could be read.
pub(in super::super) fn read(pid: i32, address: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buffer.len() {
        let from = address.checked_add(done as u64).ok_or(Errno::EFAULT)?;
        let pieces = pieces(from, buffer.len() - done);
        let length = pieces.iter().map(|piece| piece.len).sum::<usize>();
        let Some(part) = buffer.get_mut(done..done + length) else { break };
        match process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(part)], &pieces) {
            Ok(read) => {
                done += read;
                if read < length {
                    break;
                }
            }
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// What is read in one call, by pages: the kernel reads whole pieces only.
fn pieces(from: u64, length: usize) -> Vec<RemoteIoVec> {
    let mut pieces = Vec::new();
    let mut at = from;
    let mut left = length;
    while left > 0 && pieces.len() < PIECES {
        let to_page_end = PAGE - at % PAGE;
        let len = usize::try_from(to_page_end).unwrap_or(left).min(left);
        pieces.push(RemoteIoVec { base: usize::try_from(at).unwrap_or(0), len });
        left -= len;
        let Some(next) = at.checked_add(len as u64) else { break };
        at = next;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> i32 {
        i32::try_from(std::process::id()).unwrap()
    }

    #[test]
    fn memory_is_read_as_it_is() {
        let memory: Vec<u8> = (0..3_000_000_u32).map(|number| number as u8).collect();
        let mut copy = vec![0; memory.len()];
        assert_eq!(read(own(), memory.as_ptr() as u64, &mut copy), Ok(memory.len()));
        assert!(copy == memory);
    }

    #[test]
    fn what_is_not_there_is_an_error_and_never_a_fault() {
        assert_eq!(read(own(), 0, &mut [0; 8]), Err(Errno::EFAULT));
        assert!(read(own(), u64::MAX - 3, &mut [0; 8]).is_err());
        assert_eq!(read(i32::MAX, 4096, &mut [0; 8]), Err(Errno::ESRCH));
        assert_eq!(read(own(), 0, &mut []), Ok(0));
    }

    #[test]
    fn reading_ends_at_the_first_page_that_is_not_there() {
        use nix::libc;
        // SAFETY: new memory of our own, and no address is given.
        let pages = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * PAGE as usize,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert!(pages != libc::MAP_FAILED);
        // SAFETY: the second page of it, to which there are no references.
        assert_eq!(unsafe { libc::munmap(pages.byte_add(PAGE as usize), PAGE as usize) }, 0);
        let mut buffer = [1; 2 * PAGE as usize];
        assert_eq!(read(own(), pages as u64 + 96, &mut buffer), Ok(PAGE as usize - 96));
        // SAFETY: the first page, likewise.
        assert_eq!(unsafe { libc::munmap(pages, PAGE as usize) }, 0);
    }
}
