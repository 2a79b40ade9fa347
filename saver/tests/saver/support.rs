//! A node: a listener, a saver, and the job's side of both.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    os::{
        fd::AsFd as _,
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use checkpoint::{
    manifest::{self, Manifest},
    message::{Dir, FromSaver, RestorePoint, ShardFile, ShardState, ToSaver},
};
use saver::parent::{SaverEnd, SaverEvent, SaverOptions, SaverProcess, SaverProgram};
use tokio::sync::mpsc;

use crate::client::{TIMEOUT, crate_run_id};

/// Bytes that all slots may have, unless a test says otherwise.
pub const ALLOWANCE: u64 = 8 << 30;

enum Order {
    Tell(ToSaver),
    Kill,
}

/// A node. Its saver ends with it.
pub struct Node {
    pub name: String,
    listener: UnixListener,
    orders: mpsc::UnboundedSender<Order>,
    events: Receiver<SaverEvent>,
    thread: Option<JoinHandle<()>>,
    pub pid: i32,
    pub round: u32,
    world: u32,
    allowance: u64,
    /// What was said, and not asked for.
    pub said: Vec<FromSaver>,
    /// Shards of steps that are on disk, and not committed.
    parts: BTreeMap<(Dir, u64), BTreeMap<u32, ShardFile>>,
    /// Commits are not ordered.
    pub withholds: bool,
}

pub fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_dlrover-saver-under-test"))
}

/// A name that no other test has.
pub fn socket_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("dlrover-ckpt-test.{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

impl Node {
    /// A node of one rank.
    pub fn new() -> Self {
        Self::of(1, ALLOWANCE)
    }

    /// A node with all ranks of a world.
    pub fn of(world: u32, allowance: u64) -> Self {
        let name = socket_name();
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let (orders, events, thread, pid) = start(&listener, world, allowance);
        Self {
            name,
            listener,
            orders,
            events,
            thread: Some(thread),
            pid,
            round: 0,
            world,
            allowance,
            said: Vec::new(),
            parts: BTreeMap::new(),
            withholds: false,
        }
    }

    pub fn tell(&self, message: ToSaver) {
        self.orders.send(Order::Tell(message)).unwrap();
    }

    /// Kills the saver and starts another one with the same listener.
    pub fn replace_saver(&mut self) {
        self.orders.send(Order::Kill).unwrap();
        let end = self.ended();
        assert!(end.stuck.is_none(), "{end:?}");
        self.thread.take().unwrap().join().unwrap();
        let (orders, events, thread, pid) = start(&self.listener, self.world, self.allowance);
        (self.orders, self.events, self.thread, self.pid) = (orders, events, Some(thread), pid);
        self.begin_round(self.round, Vec::new());
    }

    pub fn begin_round(&mut self, round: u32, restore: Vec<RestorePoint>) {
        self.round = round;
        self.tell(round_of(round, self.world, restore));
    }

    /// The next round, once the workers of this one are dead: restores the newest step that all shards of a directory
    /// have.
    pub fn next_round(&mut self) -> BTreeMap<String, Option<u64>> {
        // A state that was said before the workers died is not the answer, and looks the same: it is read up to here.
        let mark = Dir::try_from("/no/such/folder").unwrap();
        self.tell(ToSaver::Persist { dir: mark.clone(), step: 0, replicas: Vec::new() });
        self.until("the mark", |message| match message {
            FromSaver::Failed { dir, .. } if *dir == mark => Some(()),
            _ => None,
        });
        self.tell(ToSaver::WorkersGone { round: self.round });
        let shards = self.until("a state after the workers", |message| match message {
            FromSaver::State { shards, .. } => Some(shards.clone()),
            _ => None,
        });
        let common = common(&shards);
        let point = |(dir, step): (&String, &Option<u64>)| {
            let dir = Dir::try_from(dir.as_str()).unwrap();
            step.map(|step| RestorePoint {
                dir,
                step,
                source: Default::default(),
                pending: None,
                given_up: 0,
                fetched: None,
            })
        };
        let restore = common.iter().filter_map(point).collect();
        self.begin_round(self.round + 1, restore);
        common
    }

    /// Waits for a message, and does what the job does meanwhile.
    pub fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(&FromSaver) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.event(deadline, what) {
                SaverEvent::Said(message) => {
                    self.act(&message);
                    if let Some(found) = wanted(&message) {
                        return found;
                    }
                    self.said.push(*message);
                }
                other => panic!("waiting for {what}: {other:?}; said: {:#?}", self.said),
            }
        }
    }

    /// Does what the job does, for everything that is there.
    pub fn catch_up(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            let SaverEvent::Said(message) = event else { panic!("{event:?}") };
            self.act(&message);
            self.said.push(*message);
        }
    }

    /// Waits for the end of the saver.
    pub fn ended(&mut self) -> SaverEnd {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.event(deadline, "the end") {
                SaverEvent::Said(message) => {
                    self.act(&message);
                    self.said.push(*message);
                }
                SaverEvent::Ended(end) => return end,
                SaverEvent::Garbled(error) => panic!("{error}"),
            }
        }
    }

    fn event(&mut self, deadline: Instant, what: &str) -> SaverEvent {
        match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => panic!("never: {what}; said: {:#?}", self.said),
            Err(RecvTimeoutError::Disconnected) => panic!("the saver has ended; waiting for {what}"),
        }
    }

    /// The job: a step whose shards are all on disk is committed; one of several shards goes to disk when all have it.
    fn act(&mut self, message: &FromSaver) {
        match message {
            FromSaver::Persisted { dir, step, shard, .. } if !self.withholds => {
                let key = (dir.clone(), *step);
                let parts = self.parts.entry(key.clone()).or_default();
                parts.insert(shard.shard, (**shard).clone());
                if parts.len() as u64 == u64::from(shard.n_shards) {
                    let shards: Vec<ShardFile> = self.parts.remove(&key).unwrap().into_values().collect();
                    let manifest = Box::new(manifest_of(*step, shards));
                    // A saver that was killed meanwhile is told nothing.
                    let _ended = self.orders.send(Order::Tell(ToSaver::Commit {
                        dir: dir.clone(),
                        step: *step,
                        manifest,
                    }));
                }
            }
            FromSaver::State { shards, .. } if self.world > 1 => {
                let mut wished: BTreeMap<(Dir, u64), u32> = BTreeMap::new();
                for shard in shards {
                    for step in &shard.wishes {
                        *wished.entry((shard.dir.clone(), *step)).or_default() += 1;
                    }
                }
                for ((dir, step), count) in wished {
                    if count == self.world && !self.parts.contains_key(&(dir.clone(), step)) {
                        self.parts.insert((dir.clone(), step), BTreeMap::new());
                        let _ended = self.orders.send(Order::Tell(ToSaver::Persist {
                            dir,
                            step,
                            replicas: Vec::new(),
                        }));
                    }
                }
            }
            _ => {}
        }
    }

    /// A process of this run.
    pub fn process(&self, arguments: &[&str]) -> Worker {
        Worker::start(arguments)
    }

    /// Drops the handle, as a launcher that ends does, and waits for the end of the saver's process.
    pub fn end(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let (closed, _) = mpsc::unbounded_channel();
        drop(std::mem::replace(&mut self.orders, closed));
        let joined = thread.join();
        if !thread::panicking() {
            joined.unwrap();
            assert!(!is_alive(self.pid), "the saver is still there");
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start(
    listener: &UnixListener,
    world: u32,
    allowance: u64,
) -> (mpsc::UnboundedSender<Order>, Receiver<SaverEvent>, JoinHandle<()>, i32) {
    let (orders, mut waiting) = mpsc::unbounded_channel();
    let (said, events) = channel();
    let (started, pid) = channel();
    let listener = listener.try_clone().unwrap();
    let program = SaverProgram { path: program(), launcher_id: None };
    let options = SaverOptions { run_id: crate_run_id(), allowance };
    let first = vec![round_of(0, world, Vec::new())];
    let thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut saver = SaverProcess::start(&program, &options, listener.as_fd(), first).unwrap();
            let pid = saver.pid();
            started.send(pid).unwrap();
            loop {
                tokio::select! {
                    event = saver.next() => match event {
                        // A test that has ended does not listen.
                        Some(event) => drop(said.send(event)),
                        None => return,
                    },
                    order = waiting.recv() => match order {
                        Some(Order::Tell(message)) => {
                            // One that was killed is told nothing.
                            let _ended = saver.send(message);
                        }
                        Some(Order::Kill) => saver.kill(),
                        None => break,
                    },
                }
            }
            drop(saver);
            let deadline = Instant::now() + Duration::from_secs(20);
            while is_alive(pid) && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    });
    (orders, events, thread, pid.recv_timeout(TIMEOUT).unwrap())
}

pub fn round_of(round: u32, world: u32, restore: Vec<RestorePoint>) -> ToSaver {
    ToSaver::Round { round, world, first_rank: 0, local_world_size: world, restore, memory_is_void: false }
}

/// The newest step that all shards of each directory have in memory.
pub fn common(shards: &[ShardState]) -> BTreeMap<String, Option<u64>> {
    let mut folders: BTreeMap<String, Vec<&ShardState>> = BTreeMap::new();
    for shard in shards {
        folders.entry(shard.dir.as_str().to_owned()).or_default().push(shard);
    }
    let newest = |shards: &Vec<&ShardState>| {
        if shards.len() as u64 != u64::from(shards[0].n_shards) {
            return None;
        }
        let has = |step: &u64| shards.iter().all(|shard| shard.steps.contains(step));
        shards[0].steps.iter().copied().filter(has).max()
    };
    folders.iter().map(|(dir, shards)| (dir.clone(), newest(shards))).collect()
}

pub fn manifest_of(step: u64, shards: Vec<ShardFile>) -> Manifest {
    let first = shards[0].clone();
    Manifest {
        version: manifest::VERSION,
        step,
        world: first.world,
        n_shards: first.n_shards,
        replicated: first.replicated,
        format: first.format,
        time: None,
        saved_in: None,
        shards,
    }
}

/// A process of the program under test. Killed when it is dropped.
pub struct Worker {
    pub child: Child,
    lines: BufReader<ChildStdout>,
}

impl Worker {
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// With more variables in its environment.
    pub fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(program())
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line; empty at the end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Lets a worker of several take the next step.
    pub fn go(&mut self, world: u32) {
        if world > 1 {
            self.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        }
    }

    /// Kills it with SIGKILL and returns the lines that it has printed since.
    pub fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut lines = Vec::new();
        loop {
            match self.line() {
                line if line.is_empty() => return lines,
                line => lines.push(line),
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _dead = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Whether the process exists and is not a zombie.
pub fn is_alive(pid: i32) -> bool {
    processes::tree::process(pid).is_some_and(|process| process.is_alive())
}

/// Waits until it is so. What is asked for has no event: the sleep is the pause between two questions.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIMEOUT, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Says that a case has tested nothing, past cargo's capture: it passes all the same.
pub fn skip(why: &str) {
    // A closed stderr must not fail the case.
    let _closed = writeln!(std::io::stderr(), "skipped: {why}");
}

/// All files below a directory, as relative names.
pub fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Asserts that a file of torch holds the state of a step, whole.
pub fn assert_holds(path: &Path, step: u64, rank: u32, bytes: u64) {
    let file = std::fs::read(path).unwrap();
    let expected = crate::client::state(step, rank, bytes);
    let head = &expected[..64.min(expected.len())];
    let at = file.chunks(64).position(|chunk| chunk.starts_with(head) || chunk == head);
    let at = at.unwrap_or_else(|| panic!("{} has no state of step {step}", path.display())) * 64;
    assert!(file[at..].starts_with(&expected), "{} is torn", path.display());
}
