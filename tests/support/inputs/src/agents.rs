//! What an agent reads on its own host: the guard's frames, error files, `/proc`.

use std::{
    cell::RefCell,
    fs::File,
    io::{Seek as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::net::UnixStream,
    },
    path::PathBuf,
};

use agent::{
    frame::{FromGuard, Inbox, ToGuard, encode},
    read_error_file,
};
use nix::sys::memfd::{MFdFlags, memfd_create};
use processes::tree::Process;

/// Both ends of the guard's socket. What is decoded is encoded again to the same message.
pub(crate) fn guard(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let mut inbox = heard(bytes);
    if which % 2 == 0 {
        while let Ok(Some(message)) = inbox.next_message::<ToGuard>() {
            let again =
                heard(&encode(&message).expect("what came in one frame fits into one")).next_message();
            assert_eq!(again.expect("our own words"), Some(message));
        }
    } else {
        while let Ok(Some(message)) = inbox.next_message::<FromGuard>() {
            let again =
                heard(&encode(&message).expect("what came in one frame fits into one")).next_message();
            assert_eq!(again.expect("our own words"), Some(message));
        }
    }
}

/// An inbox that has received these bytes over a real socket.
fn heard(bytes: &[u8]) -> Inbox {
    thread_local! {
        static PAIR: (UnixStream, UnixStream) = UnixStream::pair().expect("a pair of sockets");
    }
    let mut inbox = Inbox::default();
    PAIR.with(|(near, far)| {
        // Less than any socket holds, so that one thread can be both ends.
        for piece in bytes.chunks(8 << 10) {
            (&*near).write_all(piece).expect("room in a socket");
            let mut left = piece.len();
            while left > 0 {
                left -= inbox.fill(far.as_fd()).expect("what was written");
            }
        }
    });
    inbox
}

/// The error file of a worker. What is read comes from it.
pub(crate) fn error_file(bytes: &[u8]) {
    thread_local! {
        static FILE: RefCell<File> =
            RefCell::new(memfd_create(c"error-file", MFdFlags::MFD_CLOEXEC).expect("a file in memory").into());
    }
    FILE.with_borrow_mut(|file| {
        file.set_len(0).and_then(|()| file.rewind()).expect("a file in memory");
        file.write_all(bytes).expect("a file in memory");
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        match read_error_file(&path) {
            Ok(None) => assert!(bytes.is_empty(), "only an empty file is none"),
            Ok(Some(found)) => assert!(found.document.get("message").is_some()),
            Err(error) => assert!(!rules::chain(&error).is_empty()),
        }
    });
}

/// A line of `/proc/<pid>/stat`.
pub(crate) fn proc_stat(bytes: &[u8]) {
    let line = String::from_utf8_lossy(bytes);
    if let Some(process) = Process::parse(1, &line) {
        assert!(line.contains(&format!("({})", process.name)));
        let _either_way = process.is_alive();
    }
}
