//! Files in memory.

use std::{
    ffi::CStr,
    fs::File,
    io,
    os::fd::{FromRawFd as _, OwnedFd, RawFd},
};

use nix::{errno::Errno, libc};

/// Makes an empty file in memory, which closes on exec. The name shows in `/proc` only.
///
/// By the system call, which Linux has since 3.17: the function of the C library came with glibc 2.27, and a package
/// must start with 2.17.
pub(crate) fn memory_file(name: &CStr) -> io::Result<File> {
    // SAFETY: the name ends with NUL and outlives the call, which keeps no pointer to it.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
    let fd = RawFd::try_from(Errno::result(fd)?).map_err(io::Error::other)?;
    // SAFETY: a descriptor that the kernel just returned, and that nothing else owns.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::read_link,
        io::{Read as _, Seek as _, Write as _},
        os::fd::AsRawFd as _,
    };

    use nix::fcntl::{FcntlArg, FdFlag, fcntl};

    use super::*;

    #[test]
    fn it_keeps_what_is_written_and_closes_on_exec() {
        let mut file = memory_file(c"a-name").unwrap();
        file.write_all(b"text").unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        let link = read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert!(link.to_string_lossy().starts_with("/memfd:a-name"), "{link:?}");
        let flags = FdFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFD).unwrap());
        assert!(flags.contains(FdFlag::FD_CLOEXEC));
    }
}
