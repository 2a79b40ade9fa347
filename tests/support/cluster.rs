//! A job of several nodes on this host: a launcher for each, at addresses 127.0.0.1, .2, ..., and the job master.
//!
//! All workers write to one directory, the cluster's. The probe counts attempts by `DLROVER_ROUND` there, so what a
//! worker wrote is found by rank and round: [`Cluster::dump`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::launch::{Launch, Launcher, Outcome, Running};
use crate::seen::Dump;
use crate::{TIMEOUT, free_port};

/// The default steps of a worker: it dumps its state and waits for [`Cluster::go`].
const STEPS: [&str; 2] = ["dump", "await go"];

/// The programs under test.
#[derive(Clone, Debug)]
pub struct Programs {
    pub launcher: Launcher,
    pub master: OsString,
}

/// The programs that cargo built for the calling suite.
#[macro_export]
macro_rules! programs {
    () => {
        $crate::cluster::Programs {
            launcher: $crate::launch::Launcher {
                program: env!("CARGO_BIN_EXE_dlrover-run-under-test").into(),
                is_torchrun: false,
            },
            master: env!("CARGO_BIN_EXE_dlrover-master-under-test").into(),
        }
    };
}

/// A job's processes.
#[derive(Debug)]
pub struct Cluster {
    dir: TempDir,
    programs: Programs,
    /// `host:port` of the master.
    address: Option<String>,
    master: RefCell<Option<Running>>,
    /// A master that dies is started again with these flags.
    revival: Option<Vec<String>>,
    deaths: Cell<u32>,
    /// The directories of all launchers and masters, for the message of a failed wait.
    places: RefCell<Vec<(String, PathBuf)>>,
}

impl Cluster {
    /// Launchers that rendezvous without a `dlrover-master`.
    ///
    /// # Panics
    /// No temporary directory can be made.
    #[must_use]
    pub fn of_lines(programs: Programs) -> Self {
        let dir = tempfile::Builder::new().prefix("cluster-").tempdir().expect("a temporary directory");
        Self {
            dir,
            programs,
            address: None,
            master: RefCell::default(),
            revival: None,
            deaths: Cell::new(0),
            places: RefCell::default(),
        }
    }

    /// A `dlrover-master` with these flags, on a free port, that listens.
    #[must_use]
    pub fn with_master(programs: Programs, flags: &[&str]) -> Self {
        let mut cluster = Self::of_lines(programs);
        let launch = cluster.master_line().flags(["--port=0"]).flags(flags);
        cluster.start_master(launch);
        cluster
    }

    /// A `dlrover-master` that is to die at this point of its own (`DLROVER_MASTER_CRASH_AT`), and is then started
    /// again with the same flags.
    #[must_use]
    pub fn with_crashing_master(programs: Programs, flags: &[&str], crash_at: &str) -> Self {
        let mut cluster = Self::of_lines(programs);
        let port = format!("--port={}", free_port());
        let flags: Vec<String> = [&*port].iter().chain(flags).map(|&flag| flag.to_owned()).collect();
        let run = cluster.master_line().flags(&flags).env("DLROVER_MASTER_CRASH_AT", crash_at).start();
        cluster.master = RefCell::new(Some(run));
        cluster.revival = Some(flags);
        cluster.address = Some(cluster.await_listening());
        cluster
    }

    /// A `dlrover-master` without options.
    pub fn master_line(&self) -> Launch {
        let program = Launcher { program: self.programs.master.clone(), is_torchrun: false };
        let launch = Launch::new(program).without_script();
        self.places.borrow_mut().push(("dlrover-master".to_owned(), launch.dir().to_owned()));
        launch
    }

    /// Starts it and waits until it logs its address.
    pub fn start_master(&mut self, launch: Launch) {
        self.master = RefCell::new(Some(launch.start()));
        self.address = Some(self.await_listening());
    }

    fn await_listening(&self) -> String {
        self.wait("the master's address", || listening(&self.master_log()))
    }

    /// Starts it again on the port it had, with these flags.
    ///
    /// # Panics
    /// There was none.
    pub fn restart_master(&mut self, flags: &[&str]) {
        let port = self.address().rsplit_once(':').expect("host:port").1.to_owned();
        let launch = self.master_line().flags([format!("--port={port}")]).flags(flags);
        self.start_master(launch);
    }

    /// Sends a signal to the master.
    ///
    /// # Panics
    /// There is none.
    pub fn signal_master(&self, signal: Signal) {
        self.master.borrow().as_ref().expect("a master").signal(signal);
    }

    /// As by `kill -9`; the address stays known.
    ///
    /// # Panics
    /// There is none.
    pub fn kill_master(&mut self) {
        kill_node(self.master.take().expect("a master"));
    }

    /// How the master ends.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn finish_master(&mut self) -> Outcome {
        self.wait("the master's end", || {
            let mut master = self.master.borrow_mut();
            let run = master.as_mut().expect("a master");
            (run.has_ended() && !self.comes_back(run)).then_some(())
        });
        self.master.take().expect("a master").finish()
    }

    /// Whether it died at its point, and is not back yet.
    fn comes_back(&self, run: &mut Running) -> bool {
        self.revival.is_some() && run.has_ended() && run.wait().code().is_none()
    }

    /// How often the master died and was started again.
    #[must_use]
    pub fn deaths(&self) -> u32 {
        self.deaths.get()
    }

    /// A master that died at its point comes back.
    fn tend(&self) {
        let Some(flags) = &self.revival else { return };
        let mut master = self.master.borrow_mut();
        let Some(run) = &mut *master else { return };
        if self.comes_back(run) {
            self.deaths.set(self.deaths.get() + 1);
            *master = Some(self.master_line().flags(flags).start());
        }
    }

    /// `host:port` of the master.
    ///
    /// # Panics
    /// There was none.
    #[must_use]
    pub fn address(&self) -> &str {
        self.address.as_deref().expect("a master")
    }

    /// What the master has said since it was started last.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn master_log(&self) -> String {
        self.master.borrow().as_ref().expect("a master").stderr()
    }

    /// Waits until the master has said this; gives all that it has said.
    #[must_use]
    pub fn await_master_log(&self, words: &str) -> String {
        let what = format!("{words:?} of the master");
        self.wait(&what, || Some(self.master_log()).filter(|text| text.contains(words)))
    }

    /// The line of a launcher with one worker that waits for [`Self::go`]; at the master, if there is one.
    pub fn line(&self) -> Launch {
        self.line_of(self.programs.launcher.clone(), "a launcher")
    }

    fn line_of(&self, launcher: Launcher, name: &str) -> Launch {
        let launch = Launch::new(launcher)
            .env("PROBE_OUT", self.dir())
            .env("PROBE_ATTEMPT", "DLROVER_ROUND")
            .steps(&STEPS);
        self.places.borrow_mut().push((name.to_owned(), launch.dir().to_owned()));
        match &self.address {
            None => launch,
            Some(address) => launch.env("DLROVER_MASTER_ADDR", address),
        }
    }

    /// The line of a launcher that `wrapper` executes in its place.
    pub fn line_in(&self, wrapper: &[&str], name: &str) -> Launch {
        let (program, flags) = wrapper.split_first().expect("a program");
        let launcher = Launcher { program: program.into(), is_torchrun: false };
        self.line_of(launcher, name).flags(flags).flags([&self.programs.launcher.program])
    }

    /// The same for a `dlrover-master`.
    pub fn master_line_in(&self, wrapper: &[&str]) -> Launch {
        let (program, flags) = wrapper.split_first().expect("a program");
        let launch = Launch::new(Launcher { program: program.into(), is_torchrun: false }).without_script();
        self.places.borrow_mut().push(("dlrover-master".to_owned(), launch.dir().to_owned()));
        launch.flags(flags).flags([&self.programs.master])
    }

    /// The line of the node at 127.0.0.`place`.
    pub fn node(&self, place: u8) -> Launch {
        let address = format!("127.0.0.{place}");
        let launch = self.line_of(self.programs.launcher.clone(), &address);
        launch.flags([format!("--local-addr={address}")]).env("PLACE", place.to_string())
    }

    /// A node that asks for a rank, at the address next to it.
    ///
    /// # Panics
    /// There is no such address.
    pub fn ranked(&self, rank: u8) -> Launch {
        self.node(rank.checked_add(1).expect("an address")).env("NODE_RANK", rank.to_string())
    }

    /// The directory that all workers write to.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Lets the workers end well.
    pub fn go(&self) {
        self.touch("go");
    }

    /// What workers wait for.
    ///
    /// # Panics
    /// The directory cannot be written.
    pub fn touch(&self, name: &str) {
        fs::write(self.dir().join(name), "").expect("a file in our own directory");
    }

    /// What the worker of this rank saw in this round, once it runs.
    ///
    /// # Panics
    /// It does not come.
    #[must_use]
    pub fn dump(&self, rank: u32, round: u32) -> Dump {
        let text = self.await_file(&format!("{rank}.{round}.dump"));
        serde_json::from_str(&text).expect("the probe writes JSON")
    }

    /// Waits until a worker has made this file.
    #[must_use]
    pub fn await_file(&self, name: &str) -> String {
        let path = self.dir().join(name);
        self.wait(name, || fs::read_to_string(&path).ok())
    }

    /// Waits until all ranks of a world of this size run in this round; they say nothing of any other size.
    ///
    /// # Panics
    /// A worker says that the world has another size.
    #[must_use]
    pub fn await_world(&self, size: u32, round: u32) -> Vec<Dump> {
        let dumps: Vec<Dump> = (0..size).map(|rank| self.dump(rank, round)).collect();
        for dump in &dumps {
            assert_eq!(dump.var("WORLD_SIZE"), size.to_string(), "{dump:#?}");
        }
        dumps
    }

    /// Every worker that ever ran, as (round, rank).
    #[must_use]
    pub fn ran(&self) -> Vec<(u32, u32)> {
        let files = fs::read_dir(self.dir()).into_iter().flatten().flatten();
        let dumps = files.filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            let (rank, round) = name.strip_suffix(".dump")?.split_once('.')?;
            Some((round.parse().ok()?, rank.parse().ok()?))
        });
        let mut ran: Vec<(u32, u32)> = dumps.collect();
        ran.sort_unstable();
        ran
    }

    /// Waits until a launcher or the master has said this; gives all that it has said.
    #[must_use]
    pub fn await_output(&self, run: &Running, words: &str) -> String {
        let what = format!("{words:?} of a node");
        self.wait(&what, || Some(run.stderr()).filter(|text| text.contains(words)))
    }

    /// Waits for a worker's end.
    pub fn await_death(&self, dump: &Dump) {
        self.wait("the end of a worker", || (!alive(dump.pid)).then_some(()));
    }

    /// Polls until there is an answer.
    ///
    /// # Panics
    /// It does not come; with the output of all.
    pub fn wait<T>(&self, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            self.tend();
            if let Some(answer) = ask() {
                return answer;
            }
            assert!(start.elapsed() < TIMEOUT, "{what}: waited in vain\n{}", self.all_output());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The output of every launcher and master, and the workers that ran.
    #[must_use]
    pub fn all_output(&self) -> String {
        use std::fmt::Write as _;
        let mut text = format!("workers that ran, as (round, rank): {:?}\n", self.ran());
        for (node, dir) in self.places.borrow().iter() {
            let stderr = fs::read(dir.join("stderr")).unwrap_or_default();
            let _infallible = writeln!(text, "--- {node}\n{}", String::from_utf8_lossy(&stderr));
        }
        text
    }

    /// Every node exits with this code, and leaves no process.
    ///
    /// # Panics
    /// One ends otherwise.
    #[track_caller]
    pub fn finish(&self, nodes: impl IntoIterator<Item = Running>, code: i32) -> Vec<Outcome> {
        let end = |mut node: Running| {
            self.wait("the end of a node", || node.has_ended().then_some(()));
            let outcome = node.finish();
            let is_as_expected = (outcome.code, outcome.signal) == (Some(code), None);
            assert!(is_as_expected, "not {code}: {outcome:#?}\n{}", self.all_output());
            outcome
        };
        nodes.into_iter().map(end).collect()
    }

    /// The workers may end; every node and the master succeed, and leave no process.
    #[track_caller]
    pub fn ends_well(&mut self, nodes: impl IntoIterator<Item = Running>) -> Vec<Outcome> {
        self.go();
        let outcomes = self.finish(nodes, 0);
        if self.master.get_mut().is_some() {
            let _master = self.finish_master().expect_code(0);
        }
        outcomes
    }
}

/// Whether a process is there and is no zombie.
#[must_use]
pub fn alive(pid: i32) -> bool {
    crate::census::Process::of(pid).is_some_and(|process| process.is_alive())
}

/// Process ids by rank.
#[must_use]
pub fn pids(dumps: &[Dump]) -> BTreeMap<String, i32> {
    dumps.iter().map(|dump| (dump.var("RANK").to_owned(), dump.pid)).collect()
}

/// Where the workers run, by rank: the last number of their node's address.
#[must_use]
pub fn places(dumps: &[Dump]) -> Vec<u8> {
    dumps.iter().map(|dump| dump.var("PLACE").parse().expect("every node has one")).collect()
}

/// Ends a launcher as by `kill -9`. Its guard must have ended its workers.
///
/// # Panics
/// A process is left.
pub fn kill_node(node: Running) {
    node.signal(Signal::SIGKILL);
    let outcome = node.finish();
    assert_eq!(outcome.signal, Some(Signal::SIGKILL as i32), "{outcome:#?}");
}

/// The address in a master's log, for nodes. No launcher takes 0.0.0.0 for its own, as it would any
/// address of this host, and then serve a master itself when none listens; and the kernel takes it for this host.
fn listening(stderr: &str) -> Option<String> {
    let words = stderr.split(|letter: char| letter.is_whitespace() || ",;`".contains(letter));
    let mut ports = words.filter_map(|word| {
        let (host, port) = word.trim_end_matches('.').rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host.parse::<std::net::IpAddr>().ok().and(port.parse::<u16>().ok()).filter(|port| *port != 0)
    });
    Some(format!("0.0.0.0:{}", ports.next()?))
}
