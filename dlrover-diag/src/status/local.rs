//! The launchers of this node, found by their sockets (`launcher::status_socket`).

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixStream as StdStream},
    },
};

use launcher::status_socket::{FOLLOW, ONCE, PREFIX};
use rules::job_status::JobStatus;
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    net::UnixStream,
};

/// Lists the abstract sockets of this network namespace.
const SOCKETS: &str = "/proc/net/unix";

/// Why no launcher of this node answers.
#[derive(Debug, thiserror::Error)]
pub(super) enum LocalError {
    #[error("cannot look for launchers on this node in {SOCKETS}")]
    Search(#[source] io::Error),
    #[error(
        "no dlrover-run of this user runs on this node; give the address of the job master (HOST:PORT), or run this \
         command where the job runs"
    )]
    None,
    #[error("no job with run id {run_id} on this node; {others}")]
    NotThere { run_id: String, others: String },
    #[error("several jobs run on this node; choose one with --run-id: {runs}")]
    Several { runs: String },
    #[error("the launcher with pid {pid} did not answer")]
    Lost {
        pid: u32,
        #[source]
        source: io::Error,
    },
    #[error("the job has ended, with unknown result: its launcher on this node (pid {pid}) has exited")]
    Ended { pid: u32 },
    #[error("the launcher with pid {pid} has no status: {reason}")]
    Refused { pid: u32, reason: String },
}

/// A line that is no status.
#[derive(Deserialize)]
struct Refusal {
    error: String,
}

/// The statuses that a launcher passes on.
pub(super) struct LocalStatuses {
    pid: u32,
    lines: Lines<BufReader<UnixStream>>,
}

impl LocalStatuses {
    /// The launcher that is asked.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    async fn open(pid: u32, question: u8) -> io::Result<Self> {
        let address = SocketAddr::from_abstract_name(format!("{PREFIX}{pid}"))?;
        // A local socket connects at once, or is full.
        let stream = StdStream::connect_addr(&address)?;
        stream.set_nonblocking(true)?;
        let mut stream = UnixStream::from_std(stream)?;
        stream.write_all(&[question]).await?;
        Ok(Self { pid, lines: BufReader::new(stream).lines() })
    }

    /// The next document; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<String>, LocalError> {
        let pid = self.pid;
        let line = self.lines.next_line().await.map_err(|source| LocalError::Lost { pid, source })?;
        match line {
            Some(line) => match serde_json::from_str::<Refusal>(&line) {
                Ok(Refusal { error }) => Err(LocalError::Refused { pid, reason: error }),
                Err(_) => Ok(Some(line)),
            },
            None => Ok(None),
        }
    }
}

/// Asks the launcher of this run once.
pub(super) async fn once(run_id: Option<&str>) -> Result<String, LocalError> {
    Ok(find(run_id).await?.1)
}

/// Follows the launcher of this run.
pub(super) async fn follow(run_id: Option<&str>) -> Result<LocalStatuses, LocalError> {
    let (pid, _) = find(run_id).await?;
    LocalStatuses::open(pid, FOLLOW).await.map_err(|source| LocalError::Lost { pid, source })
}

/// The run id, and the life of its master; `None` before the first node has joined.
type Run = Option<(String, String)>;

/// The job that is followed, and the launcher that was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Followed {
    pub(super) pid: u32,
    run: Run,
}

impl Followed {
    pub(super) fn new(pid: u32, status: &JobStatus) -> Self {
        Self { pid, run: run_of(status) }
    }
}

fn run_of(status: &JobStatus) -> Run {
    Some((status.job.clone()?, status.master.epoch.clone()))
}

/// Follows a job again: at the same launcher, or, when that is gone, at another one of the same job. A later job of this
/// node may have the same run id, and its master has another epoch.
pub(super) async fn follow_again(followed: &Followed) -> Result<LocalStatuses, LocalError> {
    let pid = followed.pid;
    if launchers().map_err(LocalError::Search)?.contains(&pid) {
        return LocalStatuses::open(pid, FOLLOW).await.map_err(|source| LocalError::Lost { pid, source });
    }
    let (found, failure) = ask_all().await?;
    match (found.into_iter().find(|it| it.run.is_some() && it.run == followed.run), failure) {
        (Some(Found { pid, .. }), _) => {
            LocalStatuses::open(pid, FOLLOW).await.map_err(|source| LocalError::Lost { pid, source })
        }
        // It may be of this job: its master is away.
        (None, Some(failure)) => Err(failure),
        (None, None) => Err(LocalError::Ended { pid }),
    }
}

/// A launcher that answered.
struct Found {
    pid: u32,
    run: Run,
    text: String,
}

/// The run ids, for a message.
fn names(found: &[Found]) -> String {
    let mut names: Vec<&str> = found.iter().filter_map(|it| Some(it.run.as_ref()?.0.as_str())).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

fn others(names: &str) -> String {
    if names.is_empty() { "this user runs no job here".to_owned() } else { format!("run ids here: {names}") }
}

/// The launchers that answer, and why another one does not.
async fn ask_all() -> Result<(Vec<Found>, Option<LocalError>), LocalError> {
    let (mut found, mut failure) = (Vec::new(), None);
    for pid in launchers().map_err(LocalError::Search)? {
        match ask(pid).await {
            Ok(Some(text)) => {
                let status = serde_json::from_str::<JobStatus>(&text).ok();
                let run = status.as_ref().and_then(run_of);
                found.push(Found { pid, run, text });
            }
            // It belongs to another user, or has just ended.
            Ok(None) => {}
            Err(error) => failure = Some(error),
        }
    }
    Ok((found, failure))
}

/// The launcher to ask, and its answer.
async fn find(run_id: Option<&str>) -> Result<(u32, String), LocalError> {
    let (mut found, failure) = ask_all().await?;
    if let Some(run_id) = run_id {
        let others = others(&names(&found));
        found.retain(|it| it.run.as_ref().is_some_and(|(name, _)| name == run_id));
        if found.is_empty() {
            return Err(LocalError::NotThere { run_id: run_id.to_owned(), others });
        }
    }
    // Several launchers of one job are one job.
    if found.windows(2).any(|pair| pair[0].run != pair[1].run) {
        return Err(LocalError::Several { runs: names(&found) });
    }
    match (found.into_iter().next(), failure) {
        (Some(first), _) => Ok((first.pid, first.text)),
        (None, Some(failure)) => Err(failure),
        (None, None) => Err(LocalError::None),
    }
}

async fn ask(pid: u32) -> Result<Option<String>, LocalError> {
    match LocalStatuses::open(pid, ONCE).await {
        Ok(mut statuses) => statuses.next().await,
        Err(_) => Ok(None),
    }
}

/// The process ids of launchers whose sockets this network namespace has.
fn launchers() -> io::Result<Vec<u32>> {
    let sockets = std::fs::read_to_string(SOCKETS)?;
    let mut pids: Vec<u32> = sockets.lines().filter_map(pid_of).collect();
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

/// The process id in a line of `/proc/net/unix`. Connections have the name of their listener, too.
fn pid_of(line: &str) -> Option<u32> {
    let name = line.split_whitespace().last()?;
    name.strip_prefix('@')?.strip_prefix(PREFIX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_id_that_is_not_there_is_named_with_the_others_if_there_are_any() {
        let text = |names| LocalError::NotThere { run_id: "nope".into(), others: others(names) }.to_string();
        let start = "no job with run id nope on this node; ";
        assert_eq!(text("a, b"), format!("{start}run ids here: a, b"));
        assert_eq!(text(""), format!("{start}this user runs no job here"));
    }

    #[test]
    fn sockets_of_launchers_are_recognised() {
        let of =
            |name: &str| pid_of(&format!("0000000000000000: 00000002 00000000 00010000 0001 01 4711 {name}"));
        assert_eq!(of("@dlrover-run.312"), Some(312));
        for other in ["@dlrover-run.x", "@dlrover-run.", "/tmp/dlrover-run.3", "@other.3", ""] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
