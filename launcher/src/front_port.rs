//! The port of a meeting with others. The first byte of a connection tells who it is for: an HTTP/2 client opens
//! with `PRI *`, a TLS client with 0x16, and a client of the workers' store with 0x00. A static torchrun line
//! (`--master-addr`, `--master-port`) wants both behind one port; elsewhere there is no store here.

use std::{
    io,
    net::TcpListener as StdListener,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use agent::store_host::SharedStore;
use master::{
    crowd::{Crowd, Place},
    most_connections,
};
use tokio::{
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

/// Accepts on `listeners` for ever, gives store clients to `store` and gRPC clients to the returned receiver.
/// Must be called inside the runtime.
///
/// # Errors
/// When a listener cannot be watched.
pub fn serve(
    listeners: Vec<StdListener>,
    store: Option<&Arc<SharedStore>>,
) -> io::Result<mpsc::Receiver<io::Result<TcpStream>>> {
    let (for_master, connections) = mpsc::channel(WAITING);
    let undecided = Arc::new(Mutex::new(Crowd::new(UNDECIDED.min(most_connections() / 2))));
    for listener in listeners {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let (store, for_master) = (store.map(Arc::clone), for_master.clone());
        let undecided = Arc::clone(&undecided);
        tokio::spawn(async move {
            loop {
                let Ok((stream, peer)) = listener.accept().await else {
                    // Out of descriptors: they come back when a connection ends.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                let mut crowd = undecided.lock().unwrap_or_else(PoisonError::into_inner);
                let place = crowd.admit(peer.ip().to_canonical(), Instant::now());
                drop(crowd);
                // Without a place it is closed, and comes again.
                let Some(place) = place else { continue };
                let (store, for_master) = (store.clone(), for_master.clone());
                tokio::spawn(async move { decide(stream, place, store.as_deref(), &for_master).await });
            }
        });
    }
    Ok(connections)
}

/// A connection that breaks, stays silent or speaks something else is dropped, which closes it.
async fn decide(
    stream: TcpStream,
    mut place: Place,
    store: Option<&SharedStore>,
    for_master: &mpsc::Sender<io::Result<TcpStream>>,
) {
    let mut first = [0];
    let peeked = tokio::select! {
        peeked = timeout(FIRST_BYTE, stream.peek(&mut first)) => peeked,
        () = &mut place.evicted => return,
    };
    // Whoever takes it from here counts it anew.
    drop(place);
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
        Arc::new(SharedStore::start(Vec::new(), agent::store_host::StoreLimits::default()).unwrap())
    }

    #[tokio::test]
    async fn the_first_byte_decides_and_stays_in_the_stream() {
        let (listener, address) = listener();
        let store = store();
        let mut for_master = serve(vec![listener], Some(&store)).unwrap();

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

    #[tokio::test]
    async fn who_speaks_something_else_is_hung_up_on() {
        let (listener, address) = listener();
        let _for_master = serve(vec![listener], None).unwrap();
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
