//! The port of a rendezvous with others. The first byte of a connection tells its protocol: an HTTP/2 client opens
//! with `PRI *`, a TLS client with 0x16, and a client of the workers' store with 0x00. A static torchrun line
//! (`--master-addr`, `--master-port`) wants both behind one port; elsewhere there is no store here.

use std::{
    io,
    net::TcpListener as StdListener,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use agent::{STORE_QUESTION, SharedStore};
use master::{
    Log, LogLine, max_connections,
    peer_limit::{PeerLimit, Slot},
};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};

/// How long a connection may stay silent before it is closed.
const FIRST_BYTE: Duration = Duration::from_secs(10);

/// Connections that may be silent at once, where there are descriptors for them. One more takes the place of one that
/// has been silent for longest.
const UNDECIDED: usize = 4096;

/// gRPC connections that the master has not taken yet.
const WAITING: usize = 64;

/// What opens a TLS handshake.
const TLS: u8 = 0x16;

/// The store protocol's VALIDATE.
const STORE: u8 = 0;

/// VALIDATE and the magic number, with which every client of a TCPStore begins.
const HELLO: [u8; 5] = [STORE, 0xce, 0xf7, 0x85, 0x3c];

/// Reported once when a torchrun connects. Its c10d rendezvous speaks the store's protocol.
pub const TORCHRUN: &str = "speaks torchrun's rendezvous (the TCPStore protocol) at the job master's port; \
                            all nodes of a job need the same launcher: start dlrover-run on that node";

/// Accepts on `listeners` without end, passes store clients to `store` and gRPC clients to the returned receiver. A store
/// client where there is no store is a torchrun: the first is logged.
/// Must be called inside the runtime.
///
/// # Errors
/// When a listener cannot be watched.
pub fn serve(
    listeners: Vec<StdListener>,
    store: Option<&Arc<SharedStore>>,
    log: &Log,
) -> io::Result<mpsc::Receiver<io::Result<TcpStream>>> {
    let was_reported = Arc::new(AtomicBool::new(false));
    let (for_master, connections) = mpsc::channel(WAITING);
    let undecided = Arc::new(Mutex::new(PeerLimit::new(UNDECIDED.min(max_connections() / 2))));
    for listener in listeners {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let (store, for_master) = (store.map(Arc::clone), for_master.clone());
        let (was_reported, log) = (Arc::clone(&was_reported), Arc::clone(log));
        let undecided = Arc::clone(&undecided);
        tokio::spawn(async move {
            loop {
                let Ok((stream, peer)) = listener.accept().await else {
                    // Out of descriptors: they come back when a connection ends.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                let mut limit = undecided.lock().unwrap_or_else(PoisonError::into_inner);
                let slot = limit.admit(peer.ip().to_canonical(), Instant::now());
                drop(limit);
                // Without a place the connection is closed, and the peer retries.
                let Ok(slot) = slot else { continue };
                let (store, for_master) = (store.clone(), for_master.clone());
                let (was_reported, log) = (Arc::clone(&was_reported), Arc::clone(&log));
                tokio::spawn(async move {
                    let is_torchrun = decide(stream, slot, store.as_deref(), &for_master).await;
                    if is_torchrun && !was_reported.swap(true, Ordering::Relaxed) {
                        let peer = peer.ip().to_canonical();
                        log(LogLine::Warning(format!("warning: the peer {peer} {TORCHRUN} (logged once)")));
                    }
                });
            }
        });
    }
    Ok(connections)
}

/// A connection that breaks, stays silent or speaks something else is dropped, which closes it. Returns whether it
/// is a torchrun: no job of ours needs a store here.
async fn decide(
    stream: TcpStream,
    mut slot: Slot,
    store: Option<&SharedStore>,
    for_master: &mpsc::Sender<io::Result<TcpStream>>,
) -> bool {
    let mut first = [0];
    let peeked = tokio::select! {
        peeked = timeout(FIRST_BYTE, stream.peek(&mut first)) => peeked,
        () = &mut slot.evicted => return false,
    };
    // A node that the master has left waiting asks whether this is a torchrun. The store would answer that it is one.
    // The question is one segment; a part of it is taken for a torchrun's first bytes.
    let is_store_client = matches!((&peeked, first[0]), (Ok(Ok(1)), STORE));
    let mut question = [0; STORE_QUESTION.len()];
    if is_store_client && stream.peek(&mut question).await.is_ok() && question == STORE_QUESTION {
        return false;
    }
    if store.is_none() && is_store_client {
        // It has its place for as long as it takes.
        return tokio::select! {
            is_torchrun = is_store_hello(stream) => is_torchrun,
            () = &mut slot.evicted => false,
        };
    }
    // The next owner counts it again.
    drop(slot);
    match (peeked, first[0]) {
        (Ok(Ok(1)), STORE) => {
            if let (Some(store), Ok(stream)) = (store, stream.into_std()) {
                store.adopt(stream);
            }
        }
        (Ok(Ok(1)), b'P' | TLS) => {
            // The master has gone when it no longer listens.
            let _gone = for_master.send(Ok(stream)).await;
        }
        _ => {}
    }
    false
}

/// Whether a whole VALIDATE with torch's magic number comes: 0x00 alone may be anything.
async fn is_store_hello(mut stream: TcpStream) -> bool {
    let mut hello = [0; HELLO.len()];
    matches!(timeout(FIRST_BYTE, stream.read_exact(&mut hello)).await, Ok(Ok(_)) if hello == HELLO)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{SocketAddr, TcpStream as Client},
    };

    use super::*;

    fn listener() -> (StdListener, SocketAddr) {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn store() -> Arc<SharedStore> {
        Arc::new(SharedStore::start(Vec::new(), agent::StoreLimits::default()).unwrap())
    }

    #[tokio::test]
    async fn the_first_byte_decides_and_stays_in_the_stream() {
        let (listener, address) = listener();
        let store = store();
        let mut for_master = serve(vec![listener], Some(&store), &silent()).unwrap();

        for hello in [&b"PRI * HTTP/2.0"[..], b"\x16\x03\x01 client"] {
            let mut grpc = Client::connect(address).unwrap();
            grpc.write_all(hello).unwrap();
            let accepted = for_master.recv().await.unwrap().unwrap();
            let mut first = [0; 3];
            accepted.peek(&mut first).await.unwrap();
            assert_eq!(&first, &hello[..3]);
        }

        // VALIDATE with the magic number, then PING: the store answers the nonce.
        let pong = tokio::task::spawn_blocking(move || {
            let mut client = Client::connect(address).unwrap();
            client.write_all(&[0, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 1, 2, 3, 4]).unwrap();
            let mut pong = [0; 4];
            client.read_exact(&mut pong).unwrap();
            pong
        });
        assert_eq!(pong.await.unwrap(), [1, 2, 3, 4]);
    }

    fn silent() -> Log {
        Arc::new(|words| panic!("nothing to say: {words}"))
    }

    #[tokio::test]
    async fn a_torchrun_is_named_once_by_its_first_bytes() {
        let (listener, address) = listener();
        let (told, mut words) = tokio::sync::mpsc::unbounded_channel();
        let log: Log = Arc::new(move |line| told.send(line.to_string()).unwrap());
        let _for_master = serve(vec![listener], None, &log).unwrap();
        for _knock in 0..2 {
            let end = tokio::task::spawn_blocking(move || {
                let mut client = Client::connect(address).unwrap();
                // What torch sends: VALIDATE, then PING; in pieces, as a network may deliver it.
                client.write_all(&[0, 0xce]).unwrap();
                client.write_all(&[0xf7, 0x85, 0x3c, 0x0d, 1, 2, 3, 4]).unwrap();
                client.read(&mut [0]).is_ok_and(|read| read > 0)
            });
            assert!(!end.await.unwrap(), "it is hung up on");
        }
        let said = words.recv().await.unwrap();
        assert!(said.contains("the peer 127.0.0.1 speaks torchrun's rendezvous"), "{said}");
        assert!(words.try_recv().is_err(), "said once");
    }

    /// Neither is the node named a torchrun, nor is it told that this is one.
    #[tokio::test]
    async fn a_node_that_asks_for_a_torchrun_gets_no_answer() {
        for store in [None, Some(store())] {
            let (listener, address) = listener();
            let _for_master = serve(vec![listener], store.as_ref(), &silent()).unwrap();
            let end = tokio::task::spawn_blocking(move || {
                let mut client = Client::connect(address).unwrap();
                client.write_all(&STORE_QUESTION).unwrap();
                client.read(&mut [0]).is_ok_and(|read| read > 0)
            });
            assert!(!end.await.unwrap(), "it is hung up on");
        }
    }

    #[tokio::test]
    async fn other_protocols_are_disconnected() {
        let (listener, address) = listener();
        let _for_master = serve(vec![listener], None, &silent()).unwrap();
        for hello in ["GET / HTTP/1.1", "SSH-2.0", "\0"] {
            let end = tokio::task::spawn_blocking(move || {
                let mut client = Client::connect(address).unwrap();
                client.write_all(hello.as_bytes()).unwrap();
                client.read(&mut [0]).is_ok_and(|read| read > 0)
            });
            assert!(!end.await.unwrap(), "{hello:?}");
        }
    }
}
