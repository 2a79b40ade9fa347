//! One port for the workers' store and the job master, as a static torchrun line wants it
//! (`--master-addr`, `--master-port`). The first byte tells them apart: a store client opens with 0x00, an
//! HTTP/2 client with `PRI *`.

use std::{io, net::TcpListener as StdListener, sync::Arc, time::Duration};

use agent::store_host::SharedStore;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    time::timeout,
};

/// How long a connection may stay silent before it is closed.
const FIRST_BYTE: Duration = Duration::from_secs(10);

/// Connections that may be silent at once. Further ones wait in the listen queue.
const UNDECIDED: usize = 4096;

/// gRPC connections that the master has not taken yet.
const WAITING: usize = 64;

/// Accepts on `listeners` for ever, gives store clients to `store` and the others to the returned receiver.
/// Must be called inside the runtime.
///
/// # Errors
/// When a listener cannot be watched.
pub fn serve(
    listeners: Vec<StdListener>,
    store: &Arc<SharedStore>,
) -> io::Result<mpsc::Receiver<io::Result<TcpStream>>> {
    let (for_master, connections) = mpsc::channel(WAITING);
    let undecided = Arc::new(Semaphore::new(UNDECIDED));
    for listener in listeners {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let (store, for_master) = (Arc::clone(store), for_master.clone());
        let undecided = Arc::clone(&undecided);
        tokio::spawn(async move {
            loop {
                let Ok(permit) = Arc::clone(&undecided).acquire_owned().await else { return };
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let (store, for_master) = (Arc::clone(&store), for_master.clone());
                        tokio::spawn(async move {
                            decide(stream, &store, &for_master).await;
                            drop(permit);
                        });
                    }
                    // Out of descriptors: they come back when a connection ends.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        });
    }
    Ok(connections)
}

/// A connection that breaks or stays silent is dropped, which closes it: nobody else notices.
async fn decide(stream: TcpStream, store: &SharedStore, for_master: &mpsc::Sender<io::Result<TcpStream>>) {
    let mut first = [0];
    match timeout(FIRST_BYTE, stream.peek(&mut first)).await {
        Ok(Ok(1)) if first[0] == 0 => {
            if let Ok(stream) = stream.into_std() {
                store.adopt(stream);
            }
        }
        Ok(Ok(1)) => {
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
        net::TcpStream as Client,
    };

    use super::*;

    #[tokio::test]
    async fn the_first_byte_decides_and_stays_in_the_stream() {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let store =
            Arc::new(SharedStore::start(Vec::new(), agent::store_host::StoreLimits::default()).unwrap());
        let mut for_master = serve(vec![listener], &store).unwrap();

        let mut grpc = Client::connect(address).unwrap();
        grpc.write_all(b"PRI * HTTP/2.0").unwrap();
        let accepted = for_master.recv().await.unwrap().unwrap();
        let mut first = [0; 3];
        accepted.peek(&mut first).await.unwrap();
        assert_eq!(&first, b"PRI");

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
}
