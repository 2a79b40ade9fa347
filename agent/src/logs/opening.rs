//! Opens one generation: directories, files, pipes, relays.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rules::{LocalRank, Rank};

use super::{
    Logs,
    console::Source,
    error::LogError,
    generation_logs::{GenerationLogs, Relays, TailIn, WorkerLogs, WorkerStdio},
    lines::{Lines, Output},
    plan::{Plan, plan, shares_relay},
    prefix::{Names, prefix},
    pty,
    queues::Text,
    relay::{LogFile, Outlet, Raw, Relay, Sink, Tee},
    run_dir::AttemptDir,
    stream::Stream,
    tail::Tail,
};

/// The pipe buffer of a tee'd worker, where the system allows it.
const TEE_PIPE_BYTES: i32 = 1 << 20;

/// A generation that is being opened. When it is dropped half-way, its relays end.
pub(crate) struct Opening<'a> {
    logs: &'a mut Logs,
    attempt: Option<AttemptDir>,
    filtered: BTreeMap<Stream, (Arc<File>, PathBuf)>,
    relays: Relays,
    workers: BTreeMap<LocalRank, WorkerLogs>,
}

impl<'a> Opening<'a> {
    pub(crate) fn new(logs: &'a mut Logs, restart_count: u32) -> Result<Self, LogError> {
        let attempt = match &logs.run_dir {
            Some(run_dir) => Some(run_dir.make_attempt(restart_count)?),
            None => None,
        };
        let mut filtered = BTreeMap::new();
        if let Some(attempt) = &attempt {
            for stream in [Stream::Out, Stream::Err] {
                // As torchrun: also made when no stream is tee'd.
                if !logs.filters(stream).is_empty() {
                    let path = attempt.path().join(stream.filtered_file_name());
                    filtered.insert(stream, (Arc::new(open_log(&path)?), path));
                }
            }
        }
        Ok(Self { logs, attempt, filtered, relays: Relays::new()?, workers: BTreeMap::new() })
    }

    pub(crate) fn add(&mut self, local_rank: LocalRank, rank: Rank) -> Result<(), LogError> {
        let folder = match &self.attempt {
            Some(attempt) => Some(attempt.make_rank(local_rank)?),
            None => None,
        };
        let mut worker = WorkerLogs::default();
        if let Some(folder) = &folder {
            worker.error_file = folder.join("error.json");
        }
        let mut out = self.open_stream(&mut worker, folder.as_deref(), local_rank, rank, Stream::Out)?;
        let err = self.open_stream(&mut worker, folder.as_deref(), local_rank, rank, Stream::Err)?;
        let [out_plan, err_plan] =
            [Stream::Out, Stream::Err].map(|stream| plan(&self.logs.config, local_rank, stream));
        if shares_relay(out_plan, err_plan, self.logs.console.is_one())
            && let Some(err) = &err
        {
            let stream = Stream::Out;
            let same = err.try_clone();
            out = Some(same.map_err(|source| LogError::StartRelay { local_rank, stream, source })?);
            worker.tail_is_mixed = true;
        }
        worker.stdio = Some(WorkerStdio { out, err });
        self.workers.insert(local_rank, worker);
        Ok(())
    }

    pub(crate) fn finish(self) -> GenerationLogs {
        GenerationLogs { workers: self.workers, relays: self.relays, console: self.logs.console.clone() }
    }

    /// Returns the worker's descriptor.
    fn open_stream(
        &mut self,
        worker: &mut WorkerLogs,
        folder: Option<&Path>,
        local_rank: LocalRank,
        rank: Rank,
        stream: Stream,
    ) -> Result<Option<OwnedFd>, LogError> {
        let starting = |source| LogError::StartRelay { local_rank, stream, source };
        let plan = plan(&self.logs.config, local_rank, stream);
        let file = match (plan, folder) {
            (Plan::File | Plan::Tee, Some(folder)) => {
                let path = folder.join(stream.file_name());
                let file = open_log(&path)?;
                match stream {
                    Stream::Out => worker.out_file = Some(path.clone()),
                    Stream::Err => {
                        worker.err_file = Some(path.clone());
                        worker.tail = self.logs.config.keep_stderr_tail.then_some(TailIn::File);
                    }
                }
                Some((file, path))
            }
            _ => None,
        };
        match (plan, file) {
            (Plan::File, Some((file, _))) => Ok(Some(file.into())),
            (Plan::Tee, Some((file, path))) => {
                let (ours, worker_end) = tee_pipe().map_err(starting)?;
                let names = Names { role: &self.logs.role, hostname: &self.logs.hostname, local_rank, rank };
                let prefix = prefix(&self.logs.config.prefix_template, &names);
                let source = self.source(local_rank, stream, Text::Lines);
                let tee = Tee {
                    file: LogFile { file: Arc::new(file), path, failed: false },
                    filtered: self.filtered.get(&stream).map(|(file, path)| LogFile {
                        file: Arc::clone(file),
                        path: path.clone(),
                        failed: false,
                    }),
                    lines: Lines::new(prefix, self.logs.filters(stream)),
                    outlet: Outlet::new(source, Arc::clone(&self.relays.cut_off)),
                    output: Output::default(),
                };
                self.start(local_rank, stream, Arc::new(ours), Sink::Tee(Box::new(tee)))?;
                Ok(Some(worker_end))
            }
            (Plan::Relay { console }, _) => {
                let tail = Arc::new(Mutex::new(Tail::default()));
                worker.tail = Some(TailIn::Memory(Arc::clone(&tail)));
                let (ours, worker_end) = self.raw_pipe(console).map_err(starting)?;
                let outlet = console.then(|| {
                    let source = self.source(local_rank, stream, Text::Raw);
                    Outlet::new(source, Arc::clone(&self.relays.cut_off))
                });
                self.start(local_rank, stream, ours, Sink::Raw(Raw::new(tail, outlet)))?;
                Ok(Some(worker_end))
            }
            (Plan::Discard, _) => {
                let path = Path::new("/dev/null");
                let null = OpenOptions::new().read(true).write(true).open(path);
                let null = null.map_err(|source| LogError::OpenFile { path: path.to_owned(), source })?;
                Ok(Some(null.into()))
            }
            // Without a directory there is no file; the plan never asks for one then.
            (Plan::Inherit | Plan::File | Plan::Tee, _) => Ok(None),
        }
    }

    /// A pseudo terminal if the worker would have had a terminal, else a pipe.
    fn raw_pipe(&mut self, console: bool) -> io::Result<(Arc<OwnedFd>, OwnedFd)> {
        if console && self.logs.console.is_terminal(Stream::Err) {
            match terminal(&self.logs.console) {
                Ok((ours, worker_end)) => {
                    let ours = Arc::new(ours);
                    self.relays.watch_terminal(&ours);
                    return Ok((ours, worker_end));
                }
                Err(error) => tracing::debug!(%error, "no pseudo terminal was to be had, a pipe was taken"),
            }
        }
        let (ours, worker_end) = pipe()?;
        Ok((Arc::new(ours), worker_end))
    }

    /// The stream's one source on the console, shared by all generations, so that its queue is bounded however often
    /// the workers are restarted.
    fn source(&mut self, local_rank: LocalRank, stream: Stream, text: Text) -> Arc<Source> {
        let console = &self.logs.console;
        let new = || Arc::new(console.source(stream, text));
        let source = Arc::clone(self.logs.sources.entry((local_rank, stream)).or_insert_with(new));
        self.relays.watch(Arc::clone(&source));
        source
    }

    fn start(
        &mut self,
        local_rank: LocalRank,
        stream: Stream,
        input: Arc<OwnedFd>,
        sink: Sink,
    ) -> Result<(), LogError> {
        let relay = Relay { local_rank, stream, input, cut_off: Arc::clone(&self.relays.cut_off), sink };
        self.relays.start(local_rank, stream, relay)
    }
}

/// Our reading end, non-blocking, and the worker's writing end.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, worker_end) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((ours, worker_end))
}

fn tee_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, worker_end) = pipe()?;
    // Refused beyond a user's share of pipe memory (pipe(7)); then it stays at 64 KiB.
    let _ = fcntl(&ours, FcntlArg::F_SETPIPE_SZ(TEE_PIPE_BYTES));
    Ok((ours, worker_end))
}

fn terminal(console: &super::Console) -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, worker_end) = pty::open()?;
    // It is a terminal even without a size.
    let _ = pty::copy_size(console.fd(Stream::Err), ours.as_fd());
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((ours, worker_end))
}

/// In append mode, so that a file that is truncated meanwhile does not get a hole.
fn open_log(path: &Path) -> Result<File, LogError> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.map_err(|source| LogError::OpenFile { path: path.to_owned(), source })
}
