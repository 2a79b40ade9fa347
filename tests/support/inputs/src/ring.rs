//! The first messages of a ring's connection, both ways, over real sockets.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    time::Duration,
};

use probes::readers;
use socket2::SockRef;

/// The token of the running test.
const TOKEN: u64 = 7;

/// The timeout of a read; the peer has closed its side, so it is never reached.
const TIMEOUT: Duration = Duration::from_secs(10);

/// To the acceptor, or as its reply. Only a valid message is accepted.
pub(crate) fn meet(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let [lead, follow, welcome, _] = readers::ring_hellos(TOKEN);
    let (theirs, ours) = pair();
    (&theirs).write_all(bytes).expect("room in a socket");
    if which % 2 == 0 {
        theirs.shutdown(Shutdown::Write).expect("a socket");
        let is_in = readers::ring_accepts(ours, TOKEN);
        // All but the three bytes after the kind matter, and the number of the peer is arbitrary.
        let same = |word: &[u8]| {
            bytes.len() >= word.len() && bytes[..13] == word[..13] && bytes[16..24] == word[16..24]
        };
        assert_eq!(is_in, same(&lead) || same(&follow), "{bytes:?}");
    } else {
        theirs.shutdown(Shutdown::Write).expect("a socket");
        let is_welcome = readers::ring_connects(ours, TOKEN, TIMEOUT);
        let same =
            bytes.len() >= welcome.len() && bytes[..13] == welcome[..13] && bytes[16..48] == welcome[16..48];
        assert_eq!(is_welcome, same, "{bytes:?}");
        let mut said = [0; 48];
        (&theirs).read_exact(&mut said).expect("it says hello first");
        assert_eq!(said, lead[..]);
    }
}

/// Two ends on loopback. None stays in the kernel's tables when they are closed.
fn pair() -> (TcpStream, TcpStream) {
    thread_local! {
        static LISTENER: TcpListener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    }
    LISTENER.with(|listener| {
        let dialled = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (accepted, _) = listener.accept().expect("a connection");
        SockRef::from(&dialled).set_linger(Some(Duration::ZERO)).expect("a socket");
        (dialled, accepted)
    })
}
