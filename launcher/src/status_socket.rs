//! A socket on which `dlrover-diag status` of this node asks this launcher what its job is doing.
//!
//! It is an abstract Unix socket, `@dlrover-run.PID`: no file is left behind, and `/proc/net/unix` lists it. Only
//! processes of this user, and of root, are answered. The launcher asks the job master with its own credentials and
//! passes the statuses on, one JSON document a line, so the job's token goes to no other process.

use std::{
    convert::Infallible,
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
    sync::mpsc,
    task::AbortHandle,
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

/// How long those that follow the status may take to receive the last one.
const LAST: Duration = Duration::from_millis(500);

/// The socket, which answers until it is closed.
pub(crate) struct StatusSocket {
    accepting: AbortHandle,
    /// Nothing is sent: the task that accepts and each answer hold a sender.
    answers: mpsc::Receiver<Infallible>,
}

impl StatusSocket {
    /// Whether a caller waits for an answer.
    pub(crate) fn is_asked(&self) -> bool {
        self.answers.sender_strong_count() > 1
    }

    /// Closes it once the callers know how the job ended; at most half a second later.
    pub(crate) async fn close(mut self) {
        self.accepting.abort();
        let _closed = timeout(LAST, self.answers.recv()).await;
    }
}

/// Opens the socket, and answers.
///
/// # Errors
/// The socket cannot be opened; the run continues without it.
pub(crate) fn serve(master: MasterAt) -> io::Result<StatusSocket> {
    let name = format!("{PREFIX}{}", std::process::id());
    let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let (open, answers) = mpsc::channel(1);
    let accepting = tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (master, open) = (master.clone(), open.clone());
                    tokio::spawn(async move {
                        // The caller is gone.
                        let _gone = answer(stream, master).await;
                        drop(open);
                    });
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    });
    Ok(StatusSocket { accepting: accepting.abort_handle(), answers })
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
