//! The output of one generation of workers: its files, its pipes and the relays between them.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use rules::LocalRank;
use tokio::sync::oneshot;

use super::{
    console::{Console, STACK_BYTES, Source},
    cut_off::CutOff,
    error::LogError,
    pty,
    relay::{Ended, Relay},
    stream::Stream,
    tail::{self, Tail},
};

/// A worker's descriptors 1 and 2; `None`: the launcher's own.
#[derive(Debug, Default)]
pub struct WorkerStdio {
    pub out: Option<OwnedFd>,
    pub err: Option<OwnedFd>,
}

/// How the output of a generation ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Drained {
    /// Streams that were still held open at the deadline, by a process that outlived its worker. What was written by
    /// then is in the files.
    pub cut_off: Vec<(LocalRank, Stream)>,
    /// Bytes that a stuck console did not accept. They are in the log files of streams that have one.
    pub lost: u64,
}

/// Where the end of a worker's standard error is kept.
#[derive(Debug, Clone)]
pub(crate) enum TailIn {
    Memory(Arc<Mutex<Tail>>),
    File,
}

#[derive(Debug, Default)]
pub(crate) struct WorkerLogs {
    /// Until it is taken.
    pub(crate) stdio: Option<WorkerStdio>,
    pub(crate) error_file: PathBuf,
    pub(crate) out_file: Option<PathBuf>,
    pub(crate) err_file: Option<PathBuf>,
    pub(crate) tail: Option<TailIn>,
    pub(crate) tail_is_mixed: bool,
}

/// What one worker leaves behind.
#[derive(Debug)]
pub struct WorkerOutput {
    local_rank: LocalRank,
    tail: Option<TailIn>,
    /// The tail contains the worker's standard output too, because both share a relay.
    pub tail_is_mixed: bool,
    /// Its log files, where it has them.
    pub stdout_log: Option<PathBuf>,
    pub stderr_log: Option<PathBuf>,
    /// `TORCHELASTIC_ERROR_FILE`, or empty.
    pub error_file: PathBuf,
    progress: Arc<Progress>,
}

impl WorkerOutput {
    /// Waits until all that the worker has written is read. Blocks.
    pub fn wait_for_output(&self, timeout: Duration) {
        let is_read = |state: &State| state.running.iter().all(|(rank, _)| *rank != self.local_rank);
        self.progress.wait_until(Instant::now() + timeout, is_read);
    }

    /// The last 64 KiB of the worker's standard error; `None` when they are not kept.
    #[must_use]
    pub fn stderr_tail(&self) -> Option<Vec<u8>> {
        match self.tail.as_ref()? {
            TailIn::Memory(tail) => Some(tail.lock().unwrap_or_else(PoisonError::into_inner).bytes()),
            TailIn::File => tail::of_file(self.stderr_log.as_ref()?).ok(),
        }
    }
}

/// The output of one generation of workers, from before they start until the next generation. When it is
/// dropped, relays that still run are cut off.
#[derive(Debug)]
pub struct GenerationLogs {
    pub(crate) workers: BTreeMap<LocalRank, WorkerLogs>,
    pub(crate) relays: Relays,
    pub(crate) console: Console,
}

impl GenerationLogs {
    /// The worker's descriptors 1 and 2. Drop them once they are sent: a relay sees the end of its stream only when
    /// all writing ends are closed. `None` if they were taken before, or the generation does not have this worker.
    pub fn take_stdio(&mut self, local_rank: LocalRank) -> Option<WorkerStdio> {
        self.workers.get_mut(&local_rank)?.stdio.take()
    }

    /// `TORCHELASTIC_ERROR_FILE`: an absolute path, or empty if nothing is to be written.
    #[must_use]
    pub fn error_file(&self, local_rank: LocalRank) -> PathBuf {
        self.workers.get(&local_rank).map(|worker| worker.error_file.clone()).unwrap_or_default()
    }

    /// What a worker leaves behind; `None`: the generation does not have this worker.
    #[must_use]
    pub fn output_of(&self, local_rank: LocalRank) -> Option<WorkerOutput> {
        let worker = self.workers.get(&local_rank)?;
        Some(WorkerOutput {
            local_rank,
            tail: worker.tail.clone(),
            tail_is_mixed: worker.tail_is_mixed,
            stdout_log: worker.out_file.clone(),
            stderr_log: worker.err_file.clone(),
            error_file: worker.error_file.clone(),
            progress: Arc::clone(&self.relays.progress),
        })
    }

    /// The last 64 KiB of the worker's standard error; `None` when they are not kept.
    #[must_use]
    pub fn stderr_tail(&self, local_rank: LocalRank) -> Option<Vec<u8>> {
        self.output_of(local_rank)?.stderr_tail()
    }

    /// The log files of the worker's standard output and standard error, where they have one.
    #[must_use]
    pub fn log_files(&self, local_rank: LocalRank) -> (Option<PathBuf>, Option<PathBuf>) {
        let worker = self.workers.get(&local_rank);
        worker.map_or((None, None), |worker| (worker.out_file.clone(), worker.err_file.clone()))
    }

    /// Passes the new size of the launcher's terminal on, on SIGWINCH.
    pub fn resize(&self) {
        for terminal in self.relays.terminals.iter().filter_map(Weak::upgrade) {
            // At worst a program draws with the old size.
            let _ = pty::copy_size(self.console.fd(Stream::Err), &*terminal);
        }
    }

    /// After all workers are gone: waits for the relays to reach the ends of their streams, at most `timeout`, and
    /// cuts off the rest. Returns at once; the result comes at most half a second after the timeout, even if a relay
    /// hangs in the file system.
    pub fn drain(&mut self, timeout: Duration) -> oneshot::Receiver<Drained> {
        // Writing ends that were never sent would keep their relays open.
        self.workers.values_mut().for_each(|worker| worker.stdio = None);
        self.relays.drain(timeout)
    }
}

/// The relay threads of one generation.
#[derive(Debug)]
pub(crate) struct Relays {
    progress: Arc<Progress>,
    pub(crate) cut_off: Arc<CutOff>,
    sources: Vec<Arc<Source>>,
    /// Our ends of pseudo terminals, while their relays run.
    terminals: Vec<Weak<OwnedFd>>,
}

#[derive(Debug, Default)]
struct Progress {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: BTreeSet<(LocalRank, Stream)>,
    drained: Drained,
    waiting: Option<oneshot::Sender<Drained>>,
}

impl Relays {
    pub(crate) fn new() -> Result<Self, LogError> {
        let cut_off = CutOff::new().map_err(|source| LogError::StartGeneration { source })?;
        Ok(Self {
            progress: Arc::default(),
            cut_off: Arc::new(cut_off),
            sources: Vec::new(),
            terminals: Vec::new(),
        })
    }

    /// Registers a source to be woken when the relays are cut off.
    pub(crate) fn watch(&mut self, source: Arc<Source>) {
        self.sources.push(source);
    }

    pub(crate) fn watch_terminal(&mut self, terminal: &Arc<OwnedFd>) {
        self.terminals.push(Arc::downgrade(terminal));
    }

    pub(crate) fn start(
        &mut self,
        local_rank: LocalRank,
        stream: Stream,
        relay: Relay,
    ) -> Result<(), LogError> {
        let name = format!("log-{local_rank}-{}", if stream == Stream::Out { "out" } else { "err" });
        self.progress.lock().running.insert((local_rank, stream));
        let running =
            Running { key: (local_rank, stream), ended: None, progress: Arc::clone(&self.progress) };
        let thread = thread::Builder::new().name(name).stack_size(STACK_BYTES);
        let started = thread.spawn(move || {
            let mut running = running;
            running.ended = Some(relay.run());
        });
        started.map(drop).map_err(|source| LogError::StartRelay { local_rank, stream, source })
    }

    fn drain(&self, timeout: Duration) -> oneshot::Receiver<Drained> {
        /// For the last bytes of streams that are cut off.
        const LAST_MESSAGES: Duration = Duration::from_millis(500);
        let (answer, drained) = oneshot::channel();
        let mut state = self.progress.lock();
        state.waiting = Some(answer);
        if state.running.is_empty() {
            state.answer();
            return drained;
        }
        drop(state);
        let order = CutOffOrder { cut_off: Arc::clone(&self.cut_off), sources: self.sources.clone() };
        let progress = Arc::clone(&self.progress);
        let thread = thread::Builder::new().name("log-drain".into()).stack_size(STACK_BYTES);
        let started = thread.spawn(move || {
            let all_ended = |state: &State| state.running.is_empty();
            if !progress.wait_until(Instant::now() + timeout, all_ended) {
                order.give();
                progress.wait_until(Instant::now() + LAST_MESSAGES, all_ended);
            }
            progress.lock().answer();
        });
        if started.is_err() {
            // Without a thread there is no timeout: cut off now. The last relay sends the result.
            self.cut_off();
        }
        drained
    }

    fn cut_off(&self) {
        CutOffOrder { cut_off: Arc::clone(&self.cut_off), sources: self.sources.clone() }.give();
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        if !self.progress.lock().running.is_empty() {
            self.cut_off();
        }
    }
}

struct CutOffOrder {
    cut_off: Arc<CutOff>,
    sources: Vec<Arc<Source>>,
}

impl CutOffOrder {
    fn give(&self) {
        self.cut_off.give();
        self.sources.iter().for_each(|source| source.wake());
    }
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was so before the deadline.
    fn wait_until(&self, deadline: Instant, is_so: impl Fn(&State) -> bool) -> bool {
        let mut state = self.lock();
        while !is_so(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl State {
    fn answer(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            let mut drained = self.drained.clone();
            drained.cut_off.extend(&self.running);
            drained.cut_off.sort_unstable();
            // The launcher may have stopped waiting.
            let _ = waiting.send(drained);
        }
    }
}

/// An entry in `running` that is removed when the relay's thread ends, even by a panic.
struct Running {
    key: (LocalRank, Stream),
    ended: Option<Ended>,
    progress: Arc<Progress>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.progress.lock();
        state.running.remove(&self.key);
        if self.ended.is_none_or(|ended| ended.cut_off) {
            state.drained.cut_off.push(self.key);
        }
        state.drained.lost += self.ended.map_or(0, |ended| ended.lost);
        if state.running.is_empty() {
            state.answer();
        }
        self.progress.ended.notify_all();
    }
}
