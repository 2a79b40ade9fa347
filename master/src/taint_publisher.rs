//! Where reports of network checks go: to whoever asks, into a file, and to the operator's own command.
//!
//! The job does not wait for any of it. Reports are handled one after another, and the master waits for the last one
//! before it ends.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use rules::{taint_key::TaintKey, taint_report::TaintReport};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

use crate::lines::{Log, say};

/// How long the operator's command may take for one node.
const COMMAND: Duration = Duration::from_secs(30);

/// How long after the master wants to end further nodes are seen to. Whoever is missed then is named.
const CLOSING: Duration = Duration::from_secs(60);

/// How long the file may take to be written when the master is about to end.
const WRITE: Duration = Duration::from_secs(5);

/// What is kept of a command's words.
const TAIL: u64 = 4 << 10;

/// Where reports go.
#[derive(Debug, Clone, Default)]
pub struct TaintConfig {
    /// The document is written here, atomically.
    pub file: Option<PathBuf>,
    /// Run by `/bin/sh -c` for each node that deserves a taint, with the node's JSON on standard input. Only for a
    /// process whose children nobody else reaps.
    pub on_fault_node: Option<String>,
    /// The key of the taints.
    pub key: TaintKey,
}

/// Why there can be no report.
#[derive(Debug, thiserror::Error)]
pub enum TaintFileError {
    /// A folder, say, or a device, which the report would replace.
    #[error("cannot write the taint report {}: it is there, and no plain file", path.display())]
    NoFile {
        /// Where.
        path: PathBuf,
    },
    /// No file can be made there.
    #[error("cannot write the taint report {}", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Whether a report can be written there. Leaves nothing behind.
pub(crate) fn check(path: &Path) -> Result<(), TaintFileError> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(TaintFileError::NoFile { path: path.to_owned() });
    }
    let beside = beside(path);
    let made = fs::File::create(&beside).and_then(|_| fs::remove_file(&beside));
    made.map_err(|source| TaintFileError::Write { path: path.to_owned(), source })
}

/// Takes reports.
#[derive(Debug)]
pub(crate) struct TaintPublisher {
    key: TaintKey,
    reports: mpsc::UnboundedSender<Handed>,
    worker: JoinHandle<()>,
    last: Arc<Mutex<Arc<str>>>,
    /// No command is started after that.
    until: Arc<OnceLock<Instant>>,
}

/// A report on its way out.
#[derive(Debug)]
struct Handed {
    document: Arc<str>,
    /// The nodes to be tainted: name and JSON.
    nodes: Vec<(String, String)>,
}

impl TaintPublisher {
    /// Opens the desk. Must be called inside a runtime.
    pub(crate) fn open(config: TaintConfig, log: Log) -> Self {
        let (reports, mut inbox) = mpsc::unbounded_channel();
        let key = config.key.clone();
        let until = Arc::new(OnceLock::new());
        let of_clerk = Arc::clone(&until);
        let worker = tokio::spawn(async move {
            while let Some(handed) = inbox.recv().await {
                hand_out(&config, handed, &of_clerk, &log).await;
            }
        });
        Self { key, reports, worker, last: Arc::new(Mutex::new(Arc::from(""))), until }
    }

    /// Takes a report. Nothing here waits.
    pub(crate) fn publish(&self, report: &TaintReport) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        // Plain data: it cannot fail.
        let document =
            serde_json::to_string_pretty(&report.document(self.key.as_str(), millis)).unwrap_or_default();
        let document: Arc<str> = document.into();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&document);
        let nodes = report.nodes(self.key.as_str()).filter(|node| node.taint.is_some()).map(|node| {
            let name = node.k8s_node.unwrap_or(node.host).to_owned();
            (name, serde_json::to_string(&node).unwrap_or_default())
        });
        let nodes = nodes.collect();
        let _closed = self.reports.send(Handed { document, nodes });
    }

    /// The last document; empty when there was none.
    pub(crate) fn last(&self) -> Arc<str> {
        Arc::clone(&self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until what was taken is handed out. Each part has its own limit, and all of them have one.
    pub(crate) async fn close(self) {
        self.close_within(CLOSING).await;
    }

    async fn close_within(self, limit: Duration) {
        let Self { reports, worker, until, .. } = self;
        let _first = until.set(Instant::now() + limit);
        drop(reports);
        let _panicked = worker.await;
    }
}

async fn hand_out(
    config: &TaintConfig,
    Handed { document, nodes }: Handed,
    until: &OnceLock<Instant>,
    log: &Log,
) {
    if let Some(path) = &config.file {
        match timeout(WRITE, aside_write(path.clone(), document)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                say(log, format_args!("warning: cannot write the taint report {}: {error}", path.display()));
            }
            Err(_) => say(
                log,
                format_args!(
                    "warning: the taint report {} was not written within {} s",
                    path.display(),
                    WRITE.as_secs()
                ),
            ),
        }
    }
    let Some(command) = &config.on_fault_node else { return };
    for (name, json) in nodes {
        if until.get().is_some_and(|until| *until <= Instant::now()) {
            say(log, format_args!("warning: the job is over, and --on-fault-node has not seen to {name}"));
            continue;
        }
        match run(command, &json).await {
            Ok(()) => say(log, format_args!("--on-fault-node has seen to {name}")),
            Err(why) => say(log, format_args!("warning: --on-fault-node failed for {name}: {why}")),
        }
    }
}

/// The file may lie on a file system that hangs.
async fn aside_write(path: PathBuf, document: Arc<str>) -> io::Result<()> {
    let (done, end) = oneshot::channel();
    thread::Builder::new().name("taint-report".into()).stack_size(256 << 10).spawn(move || {
        let _gone = done.send(write(&path, &document));
    })?;
    end.await.map_err(io::Error::other)?
}

/// Whoever reads the file sees the old document or the new one, also after a power cut.
fn write(path: &Path, document: &str) -> io::Result<()> {
    let beside = beside(path);
    let written = || -> io::Result<()> {
        let mut file = fs::File::create(&beside)?;
        file.write_all(document.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    written().inspect_err(|_| {
        let _gone = fs::remove_file(&beside);
    })
}

/// Where a report is written first.
fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    beside.into()
}

/// Runs the operator's command for one node.
async fn run(command: &str, json: &str) -> Result<(), String> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("cannot start /bin/sh: {error}"))?;
    let group = child.id().and_then(|pid| i32::try_from(pid).ok());
    let ended = timeout(COMMAND, converse(&mut child, json)).await;
    if let Some(group) = group {
        // What it left behind goes with it.
        let _gone = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    match ended {
        Ok(Ok((status, _))) if status.success() => Ok(()),
        Ok(Ok((status, words))) => Err(format!("{status}: {}", words.trim())),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("it took longer than {} s and was killed", COMMAND.as_secs())),
    }
}

async fn converse(child: &mut Child, json: &str) -> io::Result<(std::process::ExitStatus, String)> {
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let tell = async {
        if let Some(mut stdin) = stdin {
            // A command that does not read it is none the worse.
            let _unread = stdin.write_all(json.as_bytes()).await;
        }
    };
    let hear = async {
        let mut words = Vec::new();
        if let Some(mut stderr) = stderr {
            let _cut = (&mut stderr).take(TAIL).read_to_end(&mut words).await;
            let _rest = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
        }
        String::from_utf8_lossy(&words).into_owned()
    };
    let ((), words, status) = tokio::join!(tell, hear, child.wait());
    Ok((status?, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the desk says when it hands out two nodes' JSON and is closed at once.
    async fn said(command: &str, limit: Duration) -> Vec<String> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let log: Log = Arc::new(move |line| kept.lock().unwrap().push(line.to_string()));
        let config = TaintConfig { on_fault_node: Some(command.to_owned()), ..TaintConfig::default() };
        let taints = TaintPublisher::open(config, log);
        let nodes = ["a", "b"].map(|name| (name.to_owned(), "{}".to_owned())).to_vec();
        taints.reports.send(Handed { document: Arc::from(""), nodes }).unwrap();
        taints.close_within(limit).await;
        let lines = lines.lock().unwrap();
        lines.clone()
    }

    #[tokio::test]
    async fn all_nodes_are_seen_to_before_the_master_ends() {
        let seen = ["--on-fault-node has seen to a", "--on-fault-node has seen to b"];
        assert_eq!(said("cat >/dev/null", Duration::from_secs(60)).await, seen);
    }

    #[tokio::test]
    async fn a_command_that_takes_too_long_does_not_hold_the_end_and_who_is_missed_is_named() {
        let lines = said("sleep 1000", Duration::ZERO).await;
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|line| line.contains("has not seen to ")), "{lines:?}");
    }
}
