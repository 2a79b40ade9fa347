//! The launchers of this node, found by their sockets (`launcher::status_socket`).

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fmt,
    fs::{self, File},
    io::{self, Read as _},
    os::{
        linux::{fs::MetadataExt as _, net::SocketAddrExt as _},
        unix::{
            ffi::OsStringExt as _,
            net::{SocketAddr, UnixStream as StdStream},
        },
    },
    time::Duration,
};

use launcher::{
    script_of,
    status_socket::{FOLLOW, ONCE, PREFIX},
};
use nix::unistd::Uid;
use rules::{job_status::JobStatus, last_lines};
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::UnixStream,
    task::JoinSet,
    time::timeout,
};

use super::screen::clean;

/// Lists the abstract sockets of this network namespace.
const SOCKETS: &str = "/proc/net/unix";

/// A command line is not longer.
const LONGEST_LINE: u64 = 4 << 20;

/// No status is longer. Without a bound another program at the socket could fill the memory.
const LONGEST_STATUS: u64 = 256 << 20;

/// Jobs that an error names.
const MAX_NAMED: usize = 20;

/// Which of the jobs of this node is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Selector {
    /// The only one.
    OnlyJob,
    /// That with this run id.
    RunId(String),
    /// That of the launcher with this process id.
    Launcher(u32),
}

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
    #[error("no job with run id {run_id} on this node; {}", others(.jobs))]
    NotThere { run_id: String, jobs: Jobs },
    #[error("no dlrover-run of this user has pid {pid} on this node; {}", others(.jobs))]
    NoLauncher { pid: u32, jobs: Jobs },
    #[error("several jobs run on this node; choose one with {}:{jobs}", .jobs.options())]
    Several { jobs: Jobs },
    #[error("the launcher with pid {pid} did not answer")]
    Lost {
        pid: u32,
        #[source]
        source: io::Error,
    },
    /// A job was followed by a launcher of this node that has exited before it reported how the job ended.
    #[error(
        "the launcher with pid {pid} has exited, and no other launcher of this job was found on this node, so \
         how the job ended is unknown; if the job still runs on other nodes, give the address of the job \
         master (HOST:PORT)"
    )]
    Ended { pid: u32 },
    #[error("the launcher with pid {pid} has no status: {reason}")]
    Refused { pid: u32, reason: String },
    #[error("the launcher with pid {pid} did not answer within {} s", .limit.as_secs_f64())]
    Late { pid: u32, limit: Duration },
}

impl LocalError {
    /// The launcher that it is of.
    fn pid(&self) -> Option<u32> {
        match self {
            Self::Lost { pid, .. }
            | Self::Ended { pid }
            | Self::Refused { pid, .. }
            | Self::Late { pid, .. } => Some(*pid),
            Self::Search(_)
            | Self::None
            | Self::NotThere { .. }
            | Self::NoLauncher { .. }
            | Self::Several { .. } => None,
        }
    }
}

/// The jobs of this user on this node, for an error.
fn others(jobs: &Jobs) -> String {
    if jobs.is_empty() { "this user runs no job here".to_owned() } else { format!("jobs here:{jobs}") }
}

/// The jobs of this node, a line for each.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Jobs {
    known: Vec<JobLine>,
    /// Why each other launcher gave no status: its job may be any.
    unknown: Vec<String>,
}

/// A job, by one of its launchers here.
#[derive(Debug, PartialEq, Eq)]
struct JobLine {
    pid: u32,
    /// `None`: its status is not understood.
    run: Option<Run>,
    script: Option<String>,
}

impl Jobs {
    fn is_empty(&self) -> bool {
        self.known.is_empty() && self.unknown.is_empty()
    }

    /// The options by which one of them can be chosen: not by their run ids where two have the same.
    fn options(&self) -> &'static str {
        let names: BTreeSet<_> =
            self.known.iter().filter_map(|job| job.run.as_ref()?.name.as_ref()).collect();
        if names.len() == self.known.len() { "--pid or --run-id" } else { "--pid" }
    }
}

impl fmt::Display for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for JobLine { pid, run, script } in self.known.iter().take(MAX_NAMED) {
            write!(f, "\n  --pid {pid}")?;
            match run {
                Some(Run { name: Some(run_id), .. }) => {
                    write!(f, "  run id {}", last_lines::message(run_id))?
                }
                Some(Run { name: None, .. }) => f.write_str("  no node has joined yet")?,
                None => f.write_str("  its status is not understood: use the dlrover-diag of its release")?,
            }
            if let Some(script) = script {
                write!(f, "  {}", last_lines::message(script))?;
            }
        }
        let unknown = self.unknown.iter().take(MAX_NAMED.saturating_sub(self.known.len()));
        for reason in unknown {
            write!(f, "\n  {reason}")?;
        }
        match (self.known.len() + self.unknown.len()).saturating_sub(MAX_NAMED) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// A line that is no status.
#[derive(Deserialize)]
struct Refusal {
    error: String,
}

/// The statuses that a launcher passes on.
pub(super) struct LocalStatuses {
    pid: u32,
    stream: BufReader<UnixStream>,
    /// The beginning of the next line.
    line: Vec<u8>,
}

impl LocalStatuses {
    /// The launcher that is asked.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Connects to a launcher of this user, and for root to one of any user.
    async fn open(pid: u32, question: u8) -> io::Result<Self> {
        let address = SocketAddr::from_abstract_name(format!("{PREFIX}{pid}"))?;
        // A local socket connects at once, or is full.
        let stream = StdStream::connect_addr(&address)?;
        stream.set_nonblocking(true)?;
        let mut stream = UnixStream::from_std(stream)?;
        // Any process may have taken the name.
        if !is_of_launcher(stream.peer_cred()?.uid(), pid) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        stream.write_all(&[question]).await?;
        Ok(Self { pid, stream: BufReader::new(stream), line: Vec::new() })
    }

    /// The next document; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<String>, LocalError> {
        let pid = self.pid;
        let lost = |source| LocalError::Lost { pid, source };
        // What was read before a wait was given up is kept.
        let room = LONGEST_STATUS.saturating_sub(self.line.len() as u64);
        (&mut self.stream).take(room).read_until(b'\n', &mut self.line).await.map_err(lost)?;
        if self.line.is_empty() {
            return Ok(None);
        }
        if self.line.len() as u64 >= LONGEST_STATUS {
            return Err(lost(io::Error::other(format!(
                "its answer has more than {} MiB",
                LONGEST_STATUS >> 20
            ))));
        }
        let line = String::from_utf8(std::mem::take(&mut self.line));
        let line = line.map_err(|error| lost(io::Error::new(io::ErrorKind::InvalidData, error)))?;
        match serde_json::from_str::<Refusal>(&line) {
            Ok(Refusal { error }) => Err(LocalError::Refused { pid, reason: clean(&error) }),
            Err(_) => Ok(Some(line)),
        }
    }
}

/// Whether a socket that has the name of a launcher is of that launcher: `uid` has opened it.
fn is_of_launcher(uid: u32, pid: u32) -> bool {
    let own = Uid::effective();
    uid == own.as_raw()
        || (own.is_root() && fs::metadata(format!("/proc/{pid}")).is_ok_and(|it| it.st_uid() == uid))
}

/// Asks the launcher of a job once.
pub(super) async fn once(selector: &Selector, limit: Duration) -> Result<String, LocalError> {
    Ok(find(selector, limit).await?.1)
}

/// Follows the launcher of a job.
pub(super) async fn follow(selector: &Selector, limit: Duration) -> Result<LocalStatuses, LocalError> {
    let (pid, _) = find(selector, limit).await?;
    LocalStatuses::open(pid, FOLLOW).await.map_err(|source| LocalError::Lost { pid, source })
}

/// A job that is run.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    /// The run id; `None` before the first node has joined.
    name: Option<String>,
    /// That of its master.
    epoch: String,
}

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
    Run { name: status.job.clone(), epoch: status.master.epoch.clone() }
}

/// Follows a job again: at the same launcher, or, when that is gone, at another one of the same job. A later job of this
/// node may have the same run id, and its master has another epoch.
pub(super) async fn follow_again(followed: &Followed, limit: Duration) -> Result<LocalStatuses, LocalError> {
    let pid = followed.pid;
    if launchers().map_err(LocalError::Search)?.contains(&pid) {
        match LocalStatuses::open(pid, FOLLOW).await {
            // Its name is another user's by now.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            opened => return opened.map_err(|source| LocalError::Lost { pid, source }),
        }
    }
    let (found, failures) = ask_all(limit).await?;
    match (found.into_iter().find(|it| it.run.as_ref() == Some(&followed.run)), failures.into_iter().next()) {
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
    /// `None`: what it answers is not understood.
    run: Option<Run>,
    text: String,
}

/// What is said of the jobs that are here. Several launchers of one job are one.
fn jobs(found: &[Found], failures: &[LocalError]) -> Jobs {
    let mut known: Vec<JobLine> = Vec::new();
    let mut runs = Vec::new();
    for Found { pid, run, .. } in found {
        if run.is_none() || !runs.contains(&run) {
            runs.push(run);
            known.push(JobLine { pid: *pid, run: run.clone(), script: script(*pid) });
        }
    }
    Jobs { known, unknown: failures.iter().map(|error| rules::chain(error).to_string()).collect() }
}

/// The script of a launcher, from its command line.
fn script(pid: u32) -> Option<String> {
    let mut line = Vec::new();
    File::open(format!("/proc/{pid}/cmdline")).ok()?.take(LONGEST_LINE).read_to_end(&mut line).ok()?;
    let words = line.strip_suffix(&[0])?.split(|byte| *byte == 0);
    let words: Vec<OsString> = words.skip(1).map(|word| OsString::from_vec(word.to_vec())).collect();
    script_of(&words)
}

/// The launchers that answer, and why each other one does not.
async fn ask_all(limit: Duration) -> Result<(Vec<Found>, Vec<LocalError>), LocalError> {
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    let mut asked = JoinSet::new();
    // At the same time: one that does not answer leaves the others theirs.
    for pid in launchers().map_err(LocalError::Search)? {
        asked.spawn(async move { (pid, ask(pid, limit).await) });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(pid, _)| *pid);
    for (pid, answer) in answers {
        match answer {
            Ok(Some(text)) => {
                let status = serde_json::from_str::<JobStatus>(&text).ok();
                let run = status.as_ref().map(run_of);
                found.push(Found { pid, run, text });
            }
            // It belongs to another user, or has just ended.
            Ok(None) => {}
            Err(error) => failures.push(error),
        }
    }
    Ok((found, failures))
}

/// The launcher to ask, and its answer.
async fn find(selector: &Selector, limit: Duration) -> Result<(u32, String), LocalError> {
    // No other one can delay it.
    if let Selector::Launcher(pid) = selector
        && let Some(text) = ask(*pid, limit).await?
    {
        return Ok((*pid, text));
    }
    let (mut found, failures) = ask_all(limit).await?;
    let is_meant = |it: &Found| match selector {
        Selector::OnlyJob => true,
        Selector::RunId(run_id) => it.run.as_ref().is_some_and(|run| run.name.as_ref() == Some(run_id)),
        Selector::Launcher(pid) => it.pid == *pid,
    };
    if !found.iter().any(is_meant) {
        return Err(not_found(selector, &found, failures));
    }
    found.retain(is_meant);
    // Several launchers of one job are one job.
    if found.windows(2).any(|pair| pair[0].run != pair[1].run) {
        return Err(LocalError::Several { jobs: jobs(&found, &[]) });
    }
    found.into_iter().next().map(|first| (first.pid, first.text)).ok_or(LocalError::None)
}

/// Why none of the launchers that answered is meant.
fn not_found(selector: &Selector, found: &[Found], failures: Vec<LocalError>) -> LocalError {
    let here = jobs(found, &failures);
    let mut failures = failures.into_iter();
    match selector {
        Selector::OnlyJob => failures.next().unwrap_or(LocalError::None),
        Selector::RunId(run_id) => LocalError::NotThere { run_id: run_id.clone(), jobs: here },
        // Another launcher's failure does not concern this one.
        Selector::Launcher(pid) => failures
            .find(|failure| failure.pid() == Some(*pid))
            .unwrap_or(LocalError::NoLauncher { pid: *pid, jobs: here }),
    }
}

/// A launcher has four fifths of `limit` for its answer, so that the whole question ends within it.
async fn ask(pid: u32, limit: Duration) -> Result<Option<String>, LocalError> {
    let limit = limit.mul_f64(0.8);
    let answer = async {
        match LocalStatuses::open(pid, ONCE).await {
            Ok(mut statuses) => statuses.next().await,
            Err(_) => Ok(None),
        }
    };
    timeout(limit, answer).await.unwrap_or(Err(LocalError::Late { pid, limit }))
}

/// The process ids of launchers whose sockets this network namespace has.
fn launchers() -> io::Result<Vec<u32>> {
    let sockets = fs::read_to_string(SOCKETS)?;
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

    fn job(pid: u32, run_id: &str, script: &str) -> JobLine {
        let run = Run { name: Some(run_id.to_owned()), epoch: "1".to_owned() };
        JobLine { pid, run: Some(run), script: Some(script.to_owned()) }
    }

    fn here(known: Vec<JobLine>) -> Jobs {
        Jobs { known, unknown: Vec::new() }
    }

    #[test]
    fn several_jobs_are_listed_with_what_chooses_one() {
        let jobs = here(vec![job(312, "none", "train.py"), job(4711, "none", "-m pkg\x1b[2J.train\nx")]);
        assert_eq!(
            LocalError::Several { jobs }.to_string(),
            "several jobs run on this node; choose one with --pid:\n  --pid 312  run id none  train.py\n  \
             --pid 4711  run id none  -m pkg.train"
        );
        let jobs = here(vec![
            job(312, "a", "train.py"),
            JobLine { pid: 7, run: Some(Run { name: None, epoch: "2".to_owned() }), script: None },
        ]);
        assert!(jobs.to_string().ends_with("\n  --pid 7  no node has joined yet"), "{jobs}");
        assert_eq!(jobs.options(), "--pid");
        let other = here(vec![JobLine { pid: 7, run: None, script: None }]).to_string();
        assert_eq!(other, "\n  --pid 7  its status is not understood: use the dlrover-diag of its release");
        let jobs: Vec<JobLine> = (0..22).map(|pid| job(pid, &pid.to_string(), "x")).collect();
        let text = LocalError::Several { jobs: here(jobs) }.to_string();
        assert!(text.contains("choose one with --pid or --run-id:\n  --pid 0 "), "{text}");
        assert!(text.ends_with("\n  --pid 19  run id 19  x\n  and 2 more"), "{text}");
    }

    #[test]
    fn a_job_that_is_not_there_is_named_with_the_others_if_there_are_any() {
        let text = |jobs| LocalError::NotThere { run_id: "nope".into(), jobs: here(jobs) }.to_string();
        let start = "no job with run id nope on this node; ";
        assert_eq!(text(vec![job(3, "a", "x.py")]), format!("{start}jobs here:\n  --pid 3  run id a  x.py"));
        assert_eq!(text(Vec::new()), format!("{start}this user runs no job here"));
        let text = LocalError::NoLauncher { pid: 7, jobs: Jobs::default() }.to_string();
        assert!(text.starts_with("no dlrover-run of this user has pid 7 on this node; "), "{text}");
    }

    #[test]
    fn a_launcher_that_is_gone_is_not_told_by_the_failure_of_another() {
        let failures = || {
            [5, 7, 9]
                .map(|pid| LocalError::Refused { pid, reason: format!("of {pid}") })
                .into_iter()
                .collect()
        };
        let text = |pid| not_found(&Selector::Launcher(pid), &[], failures()).to_string();
        let others = "jobs here:\n  the launcher with pid 5 has no status: of 5\n  the launcher with pid 7 has no \
                      status: of 7\n  the launcher with pid 9 has no status: of 9";
        assert_eq!(text(6), format!("no dlrover-run of this user has pid 6 on this node; {others}"));
        assert_eq!(text(7), "the launcher with pid 7 has no status: of 7");
        let text = not_found(&Selector::RunId("a".into()), &[], failures()).to_string();
        assert_eq!(text, format!("no job with run id a on this node; {others}"));
        let text = not_found(&Selector::OnlyJob, &[], failures()).to_string();
        assert_eq!(text, "the launcher with pid 5 has no status: of 5");
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
