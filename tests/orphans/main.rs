//! No process is left behind, whatever a worker starts and however the run ends.
//!
//! * here: every kind of descendant under every end of a run, as a table.
//! * [`guard`]: the guard is killed, alone or together with the launcher.
//! * [`init`]: the launcher is process 1 of a container.
//! * [`signals`]: signals that do not end the run, and workers that are stopped or die of unusual ones.
//!
//! `LAUNCHER=torchrun cargo test -p dlrover-tests --test orphans -- table` measures torchrun with the same cases:
//! it prints the table and demands nothing.

mod console;
mod guard;
mod init;
mod signals;
mod stuck;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use support::census::{Census, Worker};
use support::launch::{Launch, Launcher, Outcome, Running};
use support::{launcher, trainer, wait_for};

/// How long processes that are left after the launcher's end may take to vanish. A guard needs some milliseconds.
const VANISH: Duration = Duration::from_secs(10);

/// torchrun cleans nothing up later; this only waits for exits that are in progress.
const VANISH_TORCHRUN: Duration = Duration::from_secs(2);

/// Cases at a time.
const WIDTH: usize = 4;

/// Read while a launcher starts, and so sweeps; written while the leftovers of a killed one are counted, so that the
/// sweep of a neighbour does not do the guard's work.
static STARTS: RwLock<()> = RwLock::new(());

const BREEDS: [&str; 7] = ["plain", "stubborn", "setsid", "daemon", "bare", "hopper", "leader dies"];

const WAYS: [Way; 7] =
    [Way::Success, Way::Failure, Way::Restart, Way::Term, Way::Int, Way::TermTwice, Way::Kill];

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Success,
    Failure,
    /// The second attempt succeeds; what counts is which processes of the first are left when it starts.
    Restart,
    Term,
    Int,
    TermTwice,
    Kill,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Restart => "restart",
            Self::Term => "TERM",
            Self::Int => "INT",
            Self::TermTwice => "TERM twice",
            Self::Kill => "KILL",
        }
    }

    /// The launcher's exit code, or the signal that ended it.
    fn expected(self) -> (Option<i32>, Option<i32>) {
        match self {
            Self::Success | Self::Restart => (Some(0), None),
            Self::Failure | Self::Term | Self::Int | Self::TermTwice => (Some(1), None),
            Self::Kill => (None, Some(Signal::SIGKILL as i32)),
        }
    }
}

/// A run of `trainers/breeder.py` whose workers are ready. Dropped, it kills all of them.
struct Bred {
    census: Census,
    workers: Vec<Worker>,
    run: Running,
}

/// Starts a launcher when none is being killed.
fn start(launch: Launch) -> Running {
    let _no_launcher_dies_now = STARTS.read().unwrap_or_else(PoisonError::into_inner);
    launch.start()
}

/// Two workers with these descendants.
fn breeding(launcher: Launcher, breeds: &str, options: &[&str]) -> Launch {
    Launch::new(launcher)
        .flags(["--standalone", "--nproc-per-node=2"])
        .script(trainer("breeder.py"))
        .args([breeds])
        .args(options)
}

impl Bred {
    fn start(launch: Launch) -> Self {
        let _no_launcher_dies_now = STARTS.read().unwrap_or_else(PoisonError::into_inner);
        Self::start_unguarded(launch)
    }

    /// Without asking whether a sweep would disturb other runs.
    fn start_unguarded(launch: Launch) -> Self {
        let run = launch.start();
        let census = Census::of(run.dir(), run.mark());
        let mut bred = Self { census, workers: Vec::new(), run };
        bred.workers = bred.of_attempt(0);
        let launcher_id = bred.workers[0].launcher_id.clone();
        bred.census.also(&launcher_id);
        bred
    }

    /// The workers of an attempt, when they are ready.
    fn of_attempt(&self, attempt: u32) -> Vec<Worker> {
        let read = |rank| self.run.await_file(&format!("worker.{rank}.{attempt}"));
        [0, 1].map(|rank| Worker::read(&read(rank)).expect("the breeder writes it")).into()
    }

    fn await_death_of(&self, rank: usize) {
        let process = &self.workers[rank].process;
        wait_for("the end of a worker", || (!process.still_lives()).then_some(()));
    }

    /// Waits for the end, and until no process is left. A launcher that ends by itself leaves none even at that
    /// moment.
    fn finish(self) -> Outcome {
        let Self { mut census, mut run, .. } = self;
        let status = run.wait();
        let at_exit = census.living(false);
        let left = census.left_after(VANISH);
        let outcome = run.finish_whatever_is_left();
        assert!(status.code().is_none() || at_exit.is_empty(), "at its end: {at_exit:?}, {outcome:#?}");
        assert!(left.is_empty(), "left behind: {left:?}, {outcome:#?}");
        outcome
    }
}

/// What a case found.
struct Found {
    left: usize,
    /// What a launcher must not do.
    wrong: Vec<String>,
}

fn run_case(launcher: &Launcher, kind: &str, way: Way) -> Found {
    let is_torchrun = launcher.is_torchrun;
    let (breeds, leader_dies) = match kind {
        "leader dies" => ("plain,stubborn,setsid,daemon,bare,hopper", true),
        one => (one, false),
    };
    let mut options = if leader_dies { vec!["leader-dies"] } else { vec![] };
    match way {
        Way::Failure => options.push("fail"),
        Way::Restart => options.push("restart"),
        Way::TermTwice => options.push("deaf"),
        Way::Success | Way::Term | Way::Int | Way::Kill => {}
    }
    let mut launch = breeding(launcher.clone(), breeds, &options);
    // The default grace of 30 s shows whether the second signal skips it.
    if way != Way::TermTwice {
        launch = launch.flags(["--shutdown-timeout=1"]);
    }
    if way == Way::Restart {
        launch = launch.flags(["--max-restarts=1"]);
    }
    let mut bred = Bred::start(launch);
    let _known_from_now_on = bred.census.enlisted();
    if leader_dies {
        bred.await_death_of(0);
    }
    let guard = (!is_torchrun).then(|| guard::guard_of(&bred));
    let mut only_we_look = None;
    match way {
        Way::Success => bred.run.touch("go"),
        Way::Failure => bred.run.touch("fail"),
        Way::Restart => {
            bred.of_attempt(1);
            bred.run.touch("go");
        }
        Way::Term => bred.run.signal(Signal::SIGTERM),
        Way::Int => bred.run.signal(Signal::SIGINT),
        Way::TermTwice => {
            bred.run.signal(Signal::SIGTERM);
            bred.run.await_file("termed.1");
            bred.run.signal(Signal::SIGTERM);
        }
        Way::Kill => {
            only_we_look = Some(STARTS.write().unwrap_or_else(PoisonError::into_inner));
            bred.run.signal(Signal::SIGKILL);
        }
    }
    let asked = Instant::now();
    bred.run.wait();
    let took = asked.elapsed();
    let Bred { mut census, run, .. } = bred;
    // A killed launcher leaves the rest to its guard, which goes last.
    if let Some(guard) = &guard {
        wait_for("the guard's end", || (!guard.still_lives()).then_some(()));
    }
    let at_exit = census.living(false);
    let left = census.left_after(if is_torchrun { VANISH_TORCHRUN } else { VANISH });
    drop(only_we_look);
    drop(census);
    let outcome = run.finish_whatever_is_left();

    let mut wrong = Vec::new();
    if !is_torchrun && !at_exit.is_empty() {
        wrong.push(format!("at the end of launcher and guard there were still {at_exit:?}"));
    }
    if !left.is_empty() {
        wrong.push(format!("left behind: {left:?}"));
    }
    if (outcome.code, outcome.signal) != way.expected() {
        wrong.push(format!("ended with {:?}, {:?}", outcome.code, outcome.signal));
    }
    if way == Way::TermTwice && took > Duration::from_secs(15) {
        wrong.push(format!("a second signal skips the grace of 30 s, but it took {took:?}"));
    }
    let mut count = left.len().max(if is_torchrun { 0 } else { at_exit.len() });
    if way == Way::Restart {
        let old: Vec<String> =
            [0, 1].into_iter().filter_map(|rank| outcome.file(&format!("old.{rank}.1"))).collect();
        // Both new workers looked and may have seen the same.
        count = count.max(old.iter().map(|seen| seen.lines().count()).max().unwrap_or(0));
        if old != ["", ""] {
            wrong.push(format!("the new generation found the old one: {old:?}"));
        }
    }
    if !wrong.is_empty() {
        wrong.push(format!("{outcome:#?}"));
    }
    Found { left: count, wrong }
}

fn table_of(found: &BTreeMap<(usize, usize), Found>) -> String {
    let mut text = format!("{:<14}", "left behind");
    for way in WAYS {
        let _ = write!(text, "{:>12}", way.name());
    }
    for (row, kind) in BREEDS.iter().enumerate() {
        let _ = write!(text, "\n{kind:<14}");
        for column in 0..WAYS.len() {
            let cell = found.get(&(row, column)).map_or("?".into(), |found| found.left.to_string());
            let _ = write!(text, "{cell:>12}");
        }
    }
    let cases = BREEDS.len() * WAYS.len();
    let dirty = found.values().filter(|found| found.left > 0).count();
    let _ = write!(text, "\nsomebody is left in {dirty} of {cases} cases\n");
    text
}

/// Prints past the test harness, which captures the output of tests that pass.
fn show(text: &str) {
    let _nobody_listens = std::io::stderr().write_all(text.as_bytes());
}

#[test]
fn table_of_every_descendant_under_every_end() {
    let launcher = launcher!();
    let cases = (0..BREEDS.len()).flat_map(|row| (0..WAYS.len()).map(move |column| (row, column)));
    let cases: Mutex<VecDeque<(usize, usize)>> = Mutex::new(cases.collect());
    let found = Mutex::new(BTreeMap::new());
    let next = || cases.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        for _ in 0..WIDTH {
            scope.spawn(|| {
                while let Some((row, column)) = next() {
                    let case = AssertUnwindSafe(|| run_case(&launcher, BREEDS[row], WAYS[column]));
                    // The panic's message was printed; the other cases still count.
                    let case = catch_unwind(case)
                        .unwrap_or_else(|_| Found { left: 0, wrong: vec!["the case panicked".into()] });
                    found.lock().unwrap_or_else(PoisonError::into_inner).insert((row, column), case);
                }
            });
        }
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    show(&format!("\n{}:\n{}", launcher.program.to_string_lossy(), table_of(&found)));
    if launcher.is_torchrun {
        return;
    }
    let mut wrong = String::new();
    for ((row, column), found) in &found {
        for one in &found.wrong {
            let _ = writeln!(wrong, "{} under {}: {one}", BREEDS[*row], WAYS[*column].name());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
