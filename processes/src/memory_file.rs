//! Files in memory.

use std::{
    ffi::CStr,
    fs::File,
    io::{self, Write as _},
    os::fd::{FromRawFd as _, OwnedFd, RawFd},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
};

/// Makes an empty file in memory, which closes on exec. The name shows in `/proc` only.
///
/// By the system call, which Linux has since 3.17: the function of the C library came with glibc 2.27, and a package
/// must start with 2.17.
///
/// # Errors
/// When the kernel allows no more files or no memory.
pub fn memory_file(name: &CStr) -> io::Result<File> {
    make(name, libc::MFD_CLOEXEC)
}

/// The same, for a file that is sealed later: [`seal_length`].
///
/// # Errors
/// As with [`memory_file`].
pub fn sealable_memory_file(name: &CStr) -> io::Result<File> {
    make(name, libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
}

/// Nothing can make the file longer or shorter from now on: a process that has mapped it never gets SIGBUS.
///
/// # Errors
/// When the file was not made for seals.
pub fn seal_length(file: &File) -> io::Result<()> {
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(())
}

/// Makes a file in memory of these bytes, which nothing can make longer or shorter: a process that has mapped it never
/// gets SIGBUS. With `constant`, nothing can change its bytes either.
///
/// # Errors
/// As with [`memory_file`].
pub fn sealed_memory_file(name: &CStr, content: &[u8], constant: bool) -> io::Result<File> {
    let mut file = sealable_memory_file(name)?;
    file.write_all(content)?;
    if constant {
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE))?;
    }
    seal_length(&file)?;
    Ok(file)
}

fn make(name: &CStr, flags: libc::c_uint) -> io::Result<File> {
    // SAFETY: the name ends with NUL and outlives the call, which keeps no pointer to it.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) };
    let fd = RawFd::try_from(Errno::result(fd)?).map_err(io::Error::other)?;
    // SAFETY: a descriptor that the kernel just returned, and that nothing else owns.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::read_link,
        io::{Read as _, Seek as _},
        os::{fd::AsRawFd as _, unix::fs::FileExt as _},
    };

    use nix::fcntl::FdFlag;

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

    #[test]
    fn a_sealed_one_keeps_its_length_and_if_constant_its_bytes() {
        let file = sealed_memory_file(c"a-name", b"12345678", false).unwrap();
        file.set_len(0).unwrap_err();
        file.set_len(9).unwrap_err();
        file.write_at(b"x", 8).unwrap_err();
        file.write_at(b"x", 0).unwrap();
        let file = sealed_memory_file(c"a-name", b"12345678", true).unwrap();
        file.write_at(b"x", 0).unwrap_err();
        let mut text = [0; 9];
        assert_eq!((file.read_at(&mut text, 0).unwrap(), &text), (8, b"12345678\0"));
    }
}
