//! A socket on which `dlrover-diag status` of this node asks this launcher what its job is doing.
//!
//! It is an abstract Unix socket, `@dlrover-run.PID`: no file is left behind, and `/proc/net/unix` lists it. Only
//! processes of this user, and of root, are answered. The launcher asks the job master with its own credentials and
//! passes the statuses on, one JSON document a line, so the job's token goes to no other process.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener as StdListener},
    },
    time::Duration,
};

use agent::{MasterAt, StatusClient, StatusError};
use nix::unistd::Uid;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    time::{sleep, timeout},
};

/// The start of the socket's name; the process id of the launcher follows.
pub const PREFIX: &str = "dlrover-run.";

/// How long a caller may take to say what it asks for.
const QUESTION: Duration = Duration::from_secs(5);

/// How long a caller may take to read one status.
const WRITE: Duration = Duration::from_secs(10);

/// After an error of `accept`, such as too many open files.
const PAUSE: Duration = Duration::from_secs(1);

/// Asks for one status.
pub const ONCE: u8 = b'1';

/// Asks for a status whenever it changes.
pub const FOLLOW: u8 = b'+';

/// Opens the socket, and answers for as long as the runtime runs.
///
/// # Errors
/// The socket cannot be opened; the run continues without it.
pub(crate) fn serve(master: MasterAt) -> io::Result<()> {
    let name = format!("{PREFIX}{}", std::process::id());
    let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let master = master.clone();
                    tokio::spawn(async move {
                        // The caller is gone.
                        let _gone = answer(stream, master).await;
                    });
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    });
    Ok(())
}

/// Whether this process may know: of this user, or of root.
fn is_allowed(stream: &UnixStream) -> bool {
    let uid = stream.peer_cred().map(|peer| Uid::from_raw(peer.uid()));
    uid.is_ok_and(|uid| uid.is_root() || uid == Uid::effective())
}

async fn answer(mut stream: UnixStream, master: MasterAt) -> io::Result<()> {
    if !is_allowed(&stream) {
        return Ok(());
    }
    let Ok(question) = timeout(QUESTION, stream.read_u8()).await else { return Ok(()) };
    match question? {
        ONCE => {
            let status = once(master).await;
            send(&mut stream, status).await
        }
        FOLLOW => follow(&mut stream, master).await,
        _ => Ok(()),
    }
}

async fn once(master: MasterAt) -> Result<String, StatusError> {
    StatusClient::connect(master).await?.status().await
}

async fn follow(stream: &mut UnixStream, master: MasterAt) -> io::Result<()> {
    let watching = async { StatusClient::connect(master).await?.watch().await };
    let mut watch = match watching.await {
        Ok(watch) => watch,
        Err(error) => return send(stream, Err(error)).await,
    };
    let mut byte = [0];
    loop {
        let status = tokio::select! {
            status = watch.next() => status,
            // The caller sends nothing more, so this is its end.
            _end = stream.read(&mut byte) => return Ok(()),
        };
        match status {
            Ok(None) => return Ok(()),
            Ok(Some(status)) => send(stream, Ok(status)).await?,
            Err(error) => return send(stream, Err(error)).await,
        }
    }
}

/// A status is a line with a JSON document, an error a line with `{"error": ...}`.
async fn send(stream: &mut UnixStream, status: Result<String, StatusError>) -> io::Result<()> {
    let mut line = status
        .unwrap_or_else(|error| serde_json::json!({ "error": rules::chain(&error).to_string() }).to_string());
    line.push('\n');
    let written = timeout(WRITE, stream.write_all(line.as_bytes())).await;
    written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
