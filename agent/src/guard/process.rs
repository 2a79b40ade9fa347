//! The guard's side: one thread, one loop.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use nix::{
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::{Pid, getpid, setsid},
};
use rules::{LocalRank, Round, failure::ExitCause, worker_group::WorkerExit};

use super::{
    frame::{FromGuard, Inbox, TemplateReport, TemplateSpec, ToGuard, WorkerSpec, encode, send},
    spawn::{self, ForkedWorker, Program},
    template::{self, Line, Requested, Template},
};
use processes::{
    cgroup::Cgroup,
    reap::reap_exited,
    tree::{self, Process},
};

/// Between two passes of killing: new processes may have been forked since.
const KILL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a guard without a launcher continues to kill. What is left then cannot be killed (state D).
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(30);

/// Signals that a terminal or a user may send to the whole process group. The launcher handles them, not the guard.
const IGNORED_SIGNALS: [Signal; 10] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGPIPE,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// Signals that stay ignored in the whole run if the parent process ignores them: `nohup`, and a batch script that
/// ignores its notices.
const STAY_IGNORED: [Signal; 3] = [Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];

/// Runs the guard and exits.
pub fn run(launcher: Pid, socket: UnixStream, cgroup: Option<Cgroup>) -> ! {
    let code = match Guard::new(launcher, socket, cgroup) {
        Ok(mut guard) => guard.run(),
        // The launcher sees and reports the guard's exit.
        Err(_) => 1,
    };
    // SAFETY: `_exit` has no preconditions. Unlike `exit` it runs none of the launcher's exit handlers and
    // flushes none of its buffers a second time.
    unsafe { libc::_exit(code) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No round yet, or its tree is gone and was reported.
    Idle,
    /// Workers are being started.
    Starting,
    /// A worker could not be started; the rest are not tried.
    StartFailed,
    /// All were started.
    Started,
}

/// Standard output and error of a worker.
type Stdio = [Option<OwnedFd>; 2];

struct Guard {
    launcher: Pid,
    socket: UnixStream,
    children: SignalFd,
    inbox: Inbox,
    cgroup: Option<Cgroup>,
    /// Ignored by the guard and reset for workers.
    ignored: Vec<Signal>,
    round: Round,
    phase: Phase,
    /// Forked, and not known to have executed the program yet.
    forked: Vec<(LocalRank, ForkedWorker)>,
    /// Asked for, and not known to be forked from the template yet.
    requested: Vec<(WorkerSpec, Stdio, Requested)>,
    template: Option<Template>,
    workers: BTreeMap<Pid, LocalRank>,
    killing: bool,
    /// Everything is killed then, unless the launcher extends it.
    fence: Option<Instant>,
    /// When the launcher was found dead.
    orphaned: Option<Instant>,
}

impl Guard {
    fn new(launcher: Pid, socket: UnixStream, cgroup: Option<Cgroup>) -> io::Result<Self> {
        setsid()?;
        prctl::set_child_subreaper(true)?;
        prctl::set_name(super::NAME)?;
        let of_cgroup = cgroup.iter().flat_map(Cgroup::descriptors);
        close_all_but(&of_cgroup.chain([socket.as_fd()]).collect::<Vec<_>>());
        let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        let mut ignored = Vec::new();
        for signal in IGNORED_SIGNALS {
            // SAFETY: ignoring a signal runs no handler.
            let before = unsafe { sigaction(signal, &ignore) }?.handler();
            // `nohup` must apply to the workers.
            if !(STAY_IGNORED.contains(&signal) && matches!(before, SigHandler::SigIgn)) {
                ignored.push(signal);
            }
        }
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        mask.thread_block()?;
        let children = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self {
            launcher,
            socket,
            children,
            inbox: Inbox::default(),
            cgroup,
            ignored,
            round: Round(0),
            phase: Phase::Idle,
            forked: Vec::new(),
            requested: Vec::new(),
            template: None,
            workers: BTreeMap::new(),
            killing: false,
            fence: None,
            orphaned: None,
        })
    }

    fn run(&mut self) -> i32 {
        loop {
            let is_empty = self.reap();
            if is_empty && self.orphaned.is_some() {
                if let Some(cgroup) = &self.cgroup {
                    cgroup.remove();
                }
                return 0;
            }
            if self.orphaned.is_some_and(|since| since.elapsed() > ORPHAN_TIMEOUT) {
                return 1;
            }
            // A launcher that hangs cannot send it.
            self.killing |= !is_empty && self.fence.is_some_and(|fence| fence <= Instant::now());
            if self.killing && !is_empty {
                self.kill_pass();
            }
            self.wait(is_empty);
            if self.orphaned.is_none() && self.listen().is_err() {
                // The launcher is gone, for whatever reason: none of its processes may stay.
                self.orphaned = Some(Instant::now());
                self.killing = true;
                if let Some(template) = self.template.take() {
                    template.end();
                }
            }
            self.listen_to_template();
        }
    }

    /// Waits for a message of the launcher or the exit of a child.
    fn wait(&self, is_empty: bool) {
        let mut fds = vec![PollFd::new(self.children.as_fd(), PollFlags::POLLIN)];
        if self.orphaned.is_none() {
            fds.push(PollFd::new(self.socket.as_fd(), PollFlags::POLLIN));
        }
        fds.extend(self.template.as_ref().map(|template| PollFd::new(template.as_fd(), PollFlags::POLLIN)));
        let timeout = if self.killing {
            PollTimeout::try_from(KILL_INTERVAL).unwrap_or(PollTimeout::ZERO)
        } else {
            let fence = self.fence.filter(|_| !is_empty);
            fence.map_or(PollTimeout::NONE, |fence| {
                // Rounded up, to avoid an extra turn of the loop.
                let left = fence.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
                PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
            })
        };
        // After an interrupted or failed wait the loop simply repeats.
        let _ready = poll(&mut fds, timeout);
        while let Ok(Some(_)) = self.children.read_signal() {}
    }

    /// Reaps every child that exited. Returns whether none is left, and so no process is below the guard.
    fn reap(&mut self) -> bool {
        // Read before a process is reaped: what waits for its end learns of it later than this.
        let noticed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let is_empty = reap_exited(|pid, cause| self.on_exited(Pid::from_raw(pid), cause, noticed));
        if is_empty {
            self.on_tree_gone();
        }
        is_empty
    }

    fn on_exited(&mut self, pid: Pid, cause: ExitCause, noticed: Duration) {
        if let Some(at) = self.forked.iter().position(|(_, forked)| forked.pid == pid) {
            // It exited before its start was confirmed.
            let (local_rank, forked) = self.forked.swap_remove(at);
            self.confirm(local_rank, forked);
        }
        if let Some(local_rank) = self.workers.remove(&pid) {
            let exit = WorkerExit {
                local_rank,
                pid: pid.as_raw(),
                cause,
                unix_secs: i64::try_from(noticed.as_secs()).unwrap_or(i64::MAX),
            };
            self.send(&FromGuard::Exited { round: self.round, exit, noticed });
        }
    }

    fn on_tree_gone(&mut self) {
        self.killing = self.orphaned.is_some();
        if matches!(self.phase, Phase::Started) {
            self.phase = Phase::Idle;
            self.send(&FromGuard::TreeGone { round: self.round });
        }
    }

    fn kill_pass(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        tree::kill_pass(|| self.below());
    }

    /// What is below this process, but for the template.
    fn below(&self) -> Vec<Process> {
        let mut below = tree::below(getpid().as_raw());
        if let Some(template) = &self.template {
            let spared: BTreeSet<i32> = template.processes().iter().map(|process| process.pid).collect();
            below.retain(|process| !spared.contains(&process.pid));
        }
        below
    }

    /// # Errors
    /// When the launcher is gone or sends an invalid message.
    fn listen(&mut self) -> io::Result<()> {
        let mut readable = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        if poll(&mut readable, PollTimeout::ZERO)? == 0 {
            return Ok(());
        }
        if self.inbox.fill(self.socket.as_fd())? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while let Some(message) = self.inbox.next_message()? {
            self.on_message(message);
        }
        Ok(())
    }

    fn on_message(&mut self, message: ToGuard) {
        match message {
            ToGuard::Begin { round } => {
                self.round = round;
                self.phase = Phase::Starting;
                self.killing = false;
            }
            ToGuard::Worker(spec) => self.start(spec),
            ToGuard::End => {
                self.confirm_requested();
                for (local_rank, forked) in std::mem::take(&mut self.forked) {
                    self.confirm(local_rank, forked);
                }
                self.phase = Phase::Started;
            }
            ToGuard::StartTemplate(spec) => self.start_template(&spec),
            ToGuard::EndTemplate => {
                if let Some(template) = self.template.take() {
                    template.end();
                }
            }
            // The last process has ended already: there is nothing to search for.
            ToGuard::SignalTree { .. } if self.phase == Phase::Idle => {}
            ToGuard::SignalTree { signal } => {
                if let Ok(signal) = Signal::try_from(signal) {
                    let leaders: BTreeSet<i32> = self.workers.keys().map(|pid| pid.as_raw()).collect();
                    tree::ask(self.below(), &leaders, signal);
                }
            }
            ToGuard::SignalWorkers { signal } => {
                if let Ok(signal) = Signal::try_from(signal) {
                    for pid in self.workers.keys() {
                        tree::signal_one(pid.as_raw(), signal);
                    }
                }
            }
            ToGuard::KillWorker { local_rank } => {
                let of_rank = self.workers.iter().filter(|(_, rank)| **rank == local_rank);
                for (pid, _) in of_rank {
                    tree::signal_one(pid.as_raw(), Signal::SIGKILL);
                }
            }
            ToGuard::KillTree => self.killing = true,
            ToGuard::Fence { within } => {
                // Too far in the future means never.
                self.fence = within.and_then(|within| Instant::now().checked_add(within));
            }
        }
    }

    fn start(&mut self, spec: WorkerSpec) {
        let stdout = spec.has_stdout.then(|| self.inbox.take_fd()).flatten();
        let stderr = spec.has_stderr.then(|| self.inbox.take_fd()).flatten();
        if self.phase != Phase::Starting {
            return;
        }
        if let Some(template) = self.template.as_mut().filter(|template| template.is_ready) {
            match template.request(self.round, &spec, stdout.as_ref(), stderr.as_ref()) {
                Ok(requested) => return self.requested.push((spec, [stdout, stderr], requested)),
                Err(error) => self.refuse_template(format!("cannot send to the template: {error}")),
            }
        }
        self.spawn(&spec, [stdout, stderr]);
    }

    /// Starts a worker with an interpreter of its own.
    fn spawn(&mut self, spec: &WorkerSpec, [stdout, stderr]: Stdio) {
        let WorkerSpec { local_rank, argv, env, cpus, .. } = spec;
        let reader = Some(self.launcher);
        let program = Program { argv, env, cpus, stdout, stderr, passed: &[], reader };
        match spawn::spawn(program, &self.ignored, self.cgroup.as_ref()) {
            Ok(forked) => self.forked.push((*local_rank, forked)),
            Err(error) => self.cannot_start(*local_rank, &error),
        }
    }

    /// Waits for the workers that were requested of the template; each that it does not fork is started without it.
    fn confirm_requested(&mut self) {
        let until = template::deadline(self.requested.len());
        for (spec, stdio, requested) in std::mem::take(&mut self.requested) {
            if self.phase != Phase::Starting {
                return;
            }
            let Some(template) = &mut self.template else {
                self.spawn(&spec, stdio);
                continue;
            };
            let local_rank = spec.local_rank;
            let pid = template.await_worker(&requested, until).and_then(|pid| {
                if let Some(cgroup) = &self.cgroup {
                    cgroup.add(pid);
                }
                requested.go().map(|()| pid).map_err(|error| format!("a forked worker has exited: {error}"))
            });
            match pid {
                Ok(pid) => {
                    self.workers.insert(pid, local_rank);
                    self.send(&FromGuard::Started { round: self.round, local_rank, pid: pid.as_raw() });
                }
                Err(reason) => {
                    self.refuse_template(reason);
                    self.spawn(&spec, stdio);
                }
            }
        }
    }

    /// Starts the template of warm workers.
    fn start_template(&mut self, spec: &TemplateSpec) {
        if let Some(template) = self.template.take() {
            template.end();
        }
        match Template::start(spec, &self.ignored) {
            Ok(template) => self.template = Some(template),
            Err(error) => {
                let reason = format!("cannot start the template: {error}");
                self.send(&FromGuard::Template(TemplateReport::Unfit { reason }));
            }
        }
    }

    /// Ends the template, and reports why.
    fn refuse_template(&mut self, reason: String) {
        let Some(template) = self.template.take() else { return };
        let was_ready = template.is_ready;
        template.end();
        let report =
            if was_ready { TemplateReport::Refused { reason } } else { TemplateReport::Unfit { reason } };
        self.send(&FromGuard::Template(report));
    }

    /// What the template writes while no worker is awaited.
    fn listen_to_template(&mut self) {
        let Some(template) = &mut self.template else { return };
        let mut readable = [PollFd::new(template.as_fd(), PollFlags::POLLIN)];
        if !matches!(poll(&mut readable, PollTimeout::ZERO), Ok(1..)) {
            return;
        }
        let has_ended = template.fill().is_err();
        match template.next_line() {
            Some(Line::Ready { kib, left_out }) => {
                template.is_ready = true;
                self.send(&FromGuard::Template(TemplateReport::Ready { kib, left_out }));
            }
            Some(Line::Refused { reason }) => self.refuse_template(reason),
            None if has_ended => self.refuse_template("the template has exited".to_owned()),
            None => {}
        }
    }

    fn confirm(&mut self, local_rank: LocalRank, forked: ForkedWorker) {
        let pid = forked.pid;
        match forked.confirm() {
            Ok(()) => {
                self.workers.insert(pid, local_rank);
                self.send(&FromGuard::Started { round: self.round, local_rank, pid: pid.as_raw() });
            }
            Err(error) => self.cannot_start(local_rank, &error),
        }
    }

    fn cannot_start(&mut self, local_rank: LocalRank, error: &io::Error) {
        self.phase = Phase::StartFailed;
        let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
        self.send(&FromGuard::CannotStart { round: self.round, local_rank, errno });
    }

    /// A launcher that cannot receive is gone, which the next read of the socket detects.
    fn send(&self, message: &FromGuard) {
        if self.orphaned.is_some() {
            return;
        }
        let Ok(bytes) = encode(message) else { return };
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match send(self.socket.as_fd(), rest, &[]) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

/// Closes every descriptor beyond 2 that was inherited, except these.
pub(super) fn close_all_but(kept: &[BorrowedFd<'_>]) {
    let mut keep: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd().unsigned_abs()).collect();
    keep.sort_unstable();
    let mut first = 3;
    for keep in keep.into_iter().chain([u32::MAX]) {
        let last = keep.saturating_sub(1);
        if first <= last {
            // SAFETY: this process has just been forked and owns nothing above 2 but what is kept; every other
            // descriptor there is an unused copy. On an old kernel (ENOSYS) they stay open.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
        first = keep.saturating_add(1);
    }
}
