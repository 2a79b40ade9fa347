//! Publishes the reports of network checks: on request, in a file, and to the operator's command. Reports of hangs go
//! beside the stacks, and to the same command.
//!
//! The job does not wait for it. Reports are handled one after another, and the master waits for the last one before
//! it exits.

mod document;
mod hang_document;

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use processes::{
    file_replacement::{PUBLIC, check_replaceable, replace_file, temporary_path},
    reap::exit_cause,
    run_blocking,
};
use rules::{hang::HangReport, taint_key::TaintKey, taint_report::TaintReport};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};

pub use self::document::taint_document;
use crate::log::{Log, log_line};

/// Time limit of the operator's command, for each node.
const COMMAND: Duration = Duration::from_secs(30);

/// Time limit at exit after which no further command is started; the remaining nodes are logged.
const CLOSING: Duration = Duration::from_secs(60);

/// Time limit of writing the file.
const WRITE: Duration = Duration::from_secs(5);

/// Bytes kept of a command's standard error.
const STDERR_LIMIT: u64 = 4 << 10;

/// Where reports go.
#[derive(Debug, Clone, Default)]
pub struct TaintConfig {
    /// The document is written here, atomically.
    pub file: Option<PathBuf>,
    /// Run by `/bin/sh -c` for each node that deserves a taint, with the node's JSON on standard input. Only for a
    /// process whose children are not reaped elsewhere.
    pub on_fault_node: Option<String>,
    /// The key of the taints.
    pub key: TaintKey,
}

/// The taint report cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum TaintFileError {
    /// A directory or a device, which the report would replace.
    #[error("cannot write the taint report {}: it exists and is not a regular file", path.display())]
    NoFile {
        /// Its path.
        path: PathBuf,
    },
    /// No file can be made there.
    #[error("cannot write the taint report {}", path.display())]
    Write {
        /// Its path.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// Checks that a report can be written to `path`. Leaves nothing behind.
pub(crate) fn check(path: &Path) -> Result<(), TaintFileError> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(TaintFileError::NoFile { path: path.to_owned() });
    }
    check_replaceable(path).map_err(|source| TaintFileError::Write { path: path.to_owned(), source })
}

/// The task that publishes reports, and the last report.
#[derive(Debug)]
pub(crate) struct TaintPublisher {
    key: TaintKey,
    reports: mpsc::UnboundedSender<QueuedReport>,
    worker: JoinHandle<()>,
    last: Arc<Mutex<Arc<str>>>,
    /// Where the reports of checks are written.
    file: Option<PathBuf>,
    /// No command is started after this time.
    deadline: Arc<OnceLock<Instant>>,
}

/// A report that waits to be published.
#[derive(Debug)]
struct QueuedReport {
    document: Arc<str>,
    /// Where it is written; `None`: nowhere.
    file: Option<PathBuf>,
    /// The nodes to be tainted: name and JSON.
    nodes: Vec<(String, String)>,
}

impl TaintPublisher {
    /// Starts the task. Must be called inside a runtime.
    pub(crate) fn start(config: TaintConfig, log: Log) -> Self {
        let (reports, mut inbox) = mpsc::unbounded_channel();
        let (key, file) = (config.key.clone(), config.file.clone());
        let deadline = Arc::new(OnceLock::new());
        let worker_deadline = Arc::clone(&deadline);
        let worker = tokio::spawn(async move {
            while let Some(report) = inbox.recv().await {
                deliver(&config, report, &worker_deadline, &log).await;
            }
        });
        Self { key, reports, worker, last: Arc::new(Mutex::new(Arc::from(""))), file, deadline }
    }

    /// Queues a report. Never waits.
    pub(crate) fn publish(&self, report: &TaintReport) {
        let document: Arc<str> = taint_document(report, self.key.as_str(), unix_millis()).into();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&document);
        let nodes =
            document::nodes(report, self.key.as_str()).filter(|node| node.taint.is_some()).map(|node| {
                let name = node.k8s_node.unwrap_or(node.host).to_owned();
                (name, serde_json::to_string(&node).unwrap_or_default())
            });
        let nodes = nodes.collect();
        let _closed = self.reports.send(QueuedReport { document, file: self.file.clone(), nodes });
    }

    /// Queues the report of a hang. Never waits.
    pub(crate) fn publish_hang(&self, report: &HangReport) {
        let key = self.key.as_str();
        let document = hang_document::document(report, key, unix_millis()).into();
        let file = (!report.folder.is_empty()).then(|| Path::new(&report.folder).join("hang.json"));
        let tainted = report.nodes.iter().filter(|node| node.tainted).map(|node| {
            let name = node.k8s_node.clone().unwrap_or_else(|| node.name.host.clone());
            (name, hang_document::node(node, key).to_string())
        });
        let nodes = tainted.collect();
        let _closed = self.reports.send(QueuedReport { document, file, nodes });
    }

    /// Returns the last document; empty when there was none.
    pub(crate) fn last(&self) -> Arc<str> {
        Arc::clone(&self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until all queued reports are published, for [`CLOSING`] at most.
    pub(crate) async fn close(self) {
        self.close_within(CLOSING).await;
    }

    async fn close_within(self, limit: Duration) {
        let Self { reports, worker, deadline, .. } = self;
        let _first = deadline.set(Instant::now() + limit);
        drop(reports);
        let _panicked = worker.await;
    }
}

fn unix_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

async fn deliver(
    config: &TaintConfig,
    QueuedReport { document, file, nodes }: QueuedReport,
    deadline: &OnceLock<Instant>,
    log: &Log,
) {
    if let Some(path) = &file {
        let report_path = path.clone();
        // Its file system may hang.
        let writing = run_blocking(move || write(&report_path, &document));
        match timeout(WRITE, writing).await.map(Result::flatten) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                log_line(log, format_args!("warning: cannot write the report {}: {error}", path.display()));
            }
            Err(_) => log_line(
                log,
                format_args!(
                    "warning: the report {} was not written within {} s",
                    path.display(),
                    WRITE.as_secs()
                ),
            ),
        }
    }
    let Some(command) = &config.on_fault_node else { return };
    for (name, json) in nodes {
        if deadline.get().is_some_and(|deadline| *deadline <= Instant::now()) {
            log_line(log, format_args!("warning: the job is over; --on-fault-node was not run for {name}"));
            continue;
        }
        match run(command, &json).await {
            Ok(()) => log_line(log, format_args!("--on-fault-node succeeded for {name}")),
            Err(reason) => {
                log_line(log, format_args!("warning: --on-fault-node failed for {name}: {reason}"))
            }
        }
    }
}

/// Replaces the file in one step: readers see the old document or the new one.
fn write(path: &Path, document: &str) -> io::Result<()> {
    let fill = |file: &mut fs::File| {
        file.write_all(document.as_bytes())?;
        file.write_all(b"\n")
    };
    replace_file(path, &temporary_path(path), PUBLIC, fill, || {}).map(drop)
}

/// Runs the operator's command for one node, and kills what it left behind.
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
    let ended = timeout(COMMAND, feed_and_wait(&mut child, json)).await;
    if let Some(group) = group {
        let _gone = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    match ended {
        Ok(Ok((status, _))) if status.success() => Ok(()),
        Ok(Ok((status, stderr_text))) => {
            let cause = exit_cause(status);
            Err(match stderr_text.trim() {
                "" => cause.to_string(),
                message => format!("{cause}: {message}"),
            })
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("killed after {} s", COMMAND.as_secs())),
    }
}

async fn feed_and_wait(child: &mut Child, json: &str) -> io::Result<(std::process::ExitStatus, String)> {
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            // The command need not read it.
            let _unread = stdin.write_all(json.as_bytes()).await;
        }
    };
    let collect = async {
        let mut stderr_text = Vec::new();
        if let Some(mut stderr) = stderr {
            let _cut = (&mut stderr).take(STDERR_LIMIT).read_to_end(&mut stderr_text).await;
            let _rest = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
        }
        String::from_utf8_lossy(&stderr_text).into_owned()
    };
    let ((), stderr_text, status) = tokio::join!(feed, collect, child.wait());
    Ok((status?, stderr_text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is logged when two nodes' JSON is queued and the publisher is closed at once.
    async fn logged(command: &str, limit: Duration) -> Vec<String> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let log: Log = Arc::new(move |line| kept.lock().unwrap().push(line.to_string()));
        let config = TaintConfig { on_fault_node: Some(command.to_owned()), ..TaintConfig::default() };
        let taints = TaintPublisher::start(config, log);
        let nodes = ["a", "b"].map(|name| (name.to_owned(), "{}".to_owned())).to_vec();
        taints.reports.send(QueuedReport { document: Arc::from(""), file: None, nodes }).unwrap();
        taints.close_within(limit).await;
        let lines = lines.lock().unwrap();
        lines.clone()
    }

    #[tokio::test]
    async fn the_command_runs_for_all_nodes_before_the_master_exits() {
        let lines = ["--on-fault-node succeeded for a", "--on-fault-node succeeded for b"];
        assert_eq!(logged("cat >/dev/null", Duration::from_secs(60)).await, lines);
    }

    #[tokio::test]
    async fn a_slow_command_does_not_delay_the_exit_and_skipped_nodes_are_logged() {
        let lines = logged("sleep 1000", Duration::ZERO).await;
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|line| line.contains("was not run for ")), "{lines:?}");
    }
}
