//! Signals a random process of a run at a random moment: what must follow is known, and no process is left.
//!
//! * [`plan`]: what happens in a run, generated from a seed.
//! * [`oracle`]: what must follow from it. Read this first.
//!
//! `DLROVER_KILL_RUNS` runs (20), and `DLROVER_KILL_SEED`, which is printed, to repeat them. The
//! same seed signals the same kind of process after the same delay; the kernel's scheduling varies.

mod oracle;
mod plan;

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use support::census::{Census, LAUNCHER_ID, Process};
use support::launch::{Launch, Launcher, Running};
use support::{TIMEOUT, launcher, trainer, wait_for};

use oracle::{Ending, expected};
use plan::{Attack, Plan, Stage, Target};

/// Runs at a time.
const WIDTH: usize = 4;

/// How long processes that are left after the launcher's end may take to vanish.
const VANISH: Duration = Duration::from_secs(10);

/// Time before a run that continues is asked to end. A timer on purpose: that nothing happens
/// cannot be waited for in another way.
const A_MOMENT: Duration = Duration::from_millis(500);

/// Read while a launcher starts, and so sweeps; written around the life of a launcher that is to be killed, so
/// that the sweep of a neighbour does not do its guard's work.
static STARTS: RwLock<()> = RwLock::new(());

/// Prints past the test harness, which captures the output of tests that pass.
fn show(text: &str) {
    let _nobody_listens = std::io::stderr().write_all(text.as_bytes());
}

/// The process that was signalled.
#[derive(Clone, Debug)]
struct Signalled {
    process: Process,
    /// Of a worker or a descendant.
    rank: Option<u32>,
}

/// Returns the live processes of one kind.
fn candidates(target: Target, run: &Running) -> Vec<Signalled> {
    let launcher = run.pid();
    let own: Vec<Process> =
        run.processes().iter().filter_map(|one| Process::of(one.pid)).filter(Process::is_alive).collect();
    // A worker that is not exec'd yet still looks like the guard, but it is no child of the launcher's.
    let guard = own.iter().find(|one| one.parent == launcher && one.name == "dlrover-guard");
    let guard = guard.map_or(-1, |guard| guard.pid);
    let is_worker = |one: &Process| one.parent == guard && !one.name.starts_with("breed-");
    let picked = own.into_iter().filter(|one| match target {
        Target::Launcher => one.pid == launcher,
        Target::Guard => one.pid == guard,
        Target::Worker => is_worker(one),
        Target::Descendant => one.name.starts_with("breed-"),
    });
    let with_rank = picked.map(|process| {
        let rank = place_of(&process, run.dir()).map(|(rank, _)| rank);
        Signalled { process, rank }
    });
    let known = |one: &Signalled| match target {
        Target::Launcher | Target::Guard => true,
        // From exec on, and not before.
        Target::Worker => one.rank.is_some(),
        // A worker waits for its own at their birth; if one stops there, so does everything.
        Target::Descendant => place_of(&one.process, run.dir())
            .is_some_and(|(rank, attempt)| run.dir().join(format!("worker.{rank}.{attempt}")).exists()),
    };
    with_rank.filter(known).collect()
}

/// The rank and the attempt of a worker or a descendant: by its environment, and where that is the one of the template of
/// warm workers, by what it has written.
fn place_of(process: &Process, dir: &Path) -> Option<(u32, u32)> {
    if process.variable("DLROVER_WARM_TEMPLATE").is_none() {
        let number = |name| process.variable(name).and_then(|number| number.parse().ok());
        return Some((number("RANK")?, number("TORCHELASTIC_RESTART_COUNT")?));
    }
    let pid = process.pid.to_string();
    let pids = fs::read_to_string(dir.join("pids")).unwrap_or_default();
    let of_descendant = pids.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        match fields[..] {
            [own, _, _, rank, attempt] if own == pid => Some((rank.parse().ok()?, attempt.parse().ok()?)),
            _ => None,
        }
    });
    let of_worker = || {
        let places = (0..16).flat_map(|rank| (0..8).map(move |attempt| (rank, attempt)));
        let mut own = places.filter(|(rank, attempt)| {
            let text = fs::read_to_string(dir.join(format!("worker.{rank}.{attempt}"))).unwrap_or_default();
            text.split(' ').next() == Some(&pid)
        });
        own.next()
    };
    of_descendant.or_else(of_worker)
}

fn attack_process(attack: Attack, signalled: &Process) {
    match attack {
        Attack::Kill => signalled.signal(Signal::SIGKILL),
        Attack::Segv => {
            // Rust's runtime takes a first SIGSEGV for a fault that will come again: launcher and guard die of
            // the second one only. Others are gone after the first.
            wait_for("it dies of SIGSEGV", || {
                signalled.signal(Signal::SIGSEGV);
                (!signalled.still_lives()).then_some(())
            });
            return;
        }
        Attack::StopThenTerm => {
            signalled.signal(Signal::SIGSTOP);
            // Of two signals that wait the lower number goes first: sent at once, SIGTERM would win.
            // And one that is being killed anyway stops no more.
            wait_for("it stops", || {
                let now = Process::of(signalled.pid);
                now.is_none_or(|now| matches!(now.state, 'T' | 'Z' | 'X')).then_some(())
            });
            signalled.signal(Signal::SIGTERM);
            return;
        }
    }
    wait_for("it dies of SIGKILL", || (!signalled.still_lives()).then_some(()));
}

/// What a run did, for the oracle and for the table.
#[derive(Debug)]
struct Seen {
    /// `None` when the run was over before the signal.
    signalled: Option<Signalled>,
    /// How long after the start it was signalled.
    at: Duration,
    /// We had to ask the launcher to end it.
    asked_to_end: bool,
    ended: String,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.signalled {
            None => f.write_str("too late to strike")?,
            Some(Signalled { process, rank: None }) => write!(f, "signalled {}", process.name)?,
            Some(Signalled { process, rank: Some(rank) }) => {
                write!(f, "signalled {} of rank {rank}", process.name)?
            }
        }
        let asked = if self.asked_to_end { ", asked to" } else { "" };
        write!(f, " after {} ms: {}{asked}", self.at.as_millis(), self.ended)
    }
}

fn run_one(launcher: &Launcher, plan: &Plan) -> Result<Seen, String> {
    let workers = format!("--nproc-per-node={}", plan.workers);
    let restarts = format!("--max-restarts={}", plan.max_restarts);
    let launch = Launch::new(launcher.clone())
        .flags(["--standalone", "--shutdown-timeout=1", &workers, &restarts])
        .script(trainer("breeder.py"))
        .args([plan.breeds.join(",")])
        .args((plan.stage == Stage::Restarting).then_some("restart"))
        // Else there is a notice about it.
        .env("OMP_NUM_THREADS", "1");
    // While a launcher is killed and inspected no other starts.
    let (mut beside_others, mut alone) = (None, None);
    if plan.target == Target::Launcher {
        alone = Some(STARTS.write().unwrap_or_else(PoisonError::into_inner));
    } else {
        beside_others = Some(STARTS.read().unwrap_or_else(PoisonError::into_inner));
    }
    let born = Instant::now();
    let mut run = launch.start();
    let mut census = Census::of(run.dir(), run.mark());
    if plan.stage != Stage::Running {
        for rank in 0..plan.workers {
            run.await_file(&format!("worker.{rank}.0"));
        }
    }
    if plan.stage == Stage::Ending {
        run.touch("go");
    }
    // The random moment: the only timer that is meant as one.
    std::thread::sleep(plan.moment);
    // At an early moment there is no such process yet: then the first one that appears is signalled. At a late one
    // there may be none any more.
    let signalled = wait_for("a process to signal", || {
        let all = candidates(plan.target, &run);
        let over = plan.stage == Stage::Ending && ends_within(&run, Duration::ZERO);
        let picked = (!all.is_empty()).then(|| all[plan.choice % all.len()].clone());
        (over || picked.is_some()).then_some(picked)
    });
    drop(beside_others.take());
    let at = born.elapsed();
    let _known_from_now_on = census.enlisted();
    let guard = candidates(Target::Guard, &run).pop();
    if let Some(signalled) = &signalled {
        if let Some(id) = signalled.process.variable(LAUNCHER_ID) {
            census.also(&id);
        }
        attack_process(plan.attack, &signalled.process);
    }

    let expected = expected(plan);
    if *expected.restarts.start() == 1 {
        for rank in 0..plan.workers {
            run.await_file(&format!("worker.{rank}.1"));
        }
    }
    run.touch("go");
    let mut asked_to_end = false;
    if expected.endings == [Ending::AskedToEnd] {
        asked_to_end = !ends_within(&run, A_MOMENT);
        if asked_to_end {
            run.signal(Signal::SIGTERM);
        }
    }
    run.wait();
    // A killed launcher leaves the rest to its guard, which goes last. At an early moment there is none yet.
    if let Some(guard) = &guard {
        wait_for("the guard's end", || (!guard.process.still_lives()).then_some(()));
    }
    let at_exit = census.living(false);
    let left = census.left_after(VANISH);
    drop(alone.take());
    drop(census);
    let outcome = run.finish_whatever_is_left();

    let mut wrong = Vec::new();
    if guard.is_some() && !at_exit.is_empty() {
        wrong.push(format!("at the end of launcher and guard there were still {at_exit:?}"));
    }
    if !left.is_empty() {
        wrong.push(format!("left behind: {left:?}"));
    }
    wrong.extend(oracle::contradictions(plan, &expected, signalled.as_ref(), asked_to_end, &outcome));
    if wrong.is_empty() {
        let ended = match (outcome.code, outcome.signal) {
            (Some(code), _) => format!("exit {code}"),
            (_, signal) => format!("signal {}", signal.unwrap_or(0)),
        };
        return Ok(Seen { signalled, at, asked_to_end, ended });
    }
    Err(format!("{plan}\nsignalled after {at:?}: {signalled:?}\n{}\n{outcome:#?}", wrong.join("\n")))
}

fn ends_within(run: &Running, timeout: Duration) -> bool {
    let start = Instant::now();
    loop {
        let launcher = Process::of(run.pid());
        if launcher.is_none_or(|launcher| !launcher.is_alive()) {
            return true;
        }
        if start.elapsed() >= timeout {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn whichever_process_is_signalled_the_run_ends_as_it_must_and_leaves_no_process() {
    let launcher = launcher!();
    if launcher.is_torchrun {
        return show("torchrun does not promise this: skipped\n");
    }
    let runs = number("DLROVER_KILL_RUNS").map_or(20, |runs| u32::try_from(runs).unwrap_or(u32::MAX));
    let seed = number("DLROVER_KILL_SEED").unwrap_or_else(plan::fresh_seed);
    show(&format!("\nkill: {runs} runs, DLROVER_KILL_SEED={seed}\n"));
    let start = Instant::now();
    let next = AtomicU32::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WIDTH {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    // Runs that hang cost LIMIT each; a few are enough.
                    if index >= runs || start.elapsed() > TIMEOUT * 10 {
                        return;
                    }
                    let plan = Plan::draw(seed, index);
                    let seen = catch_unwind(AssertUnwindSafe(|| run_one(&launcher, &plan)));
                    let seen = seen.unwrap_or_else(|_| Err(format!("{plan}\npanicked, see above")));
                    match seen {
                        Ok(seen) => show(&format!("{plan}: {seen}\n")),
                        Err(wrong) => {
                            show(&format!("{plan}: WRONG\n"));
                            failed.lock().unwrap_or_else(PoisonError::into_inner).push(wrong);
                        }
                    }
                }
            });
        }
    });
    show(&format!("kill: {runs} runs took {:.1} s\n", start.elapsed().as_secs_f64()));
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(
        failed.is_empty(),
        "DLROVER_KILL_SEED={seed}, {} of {runs}:\n{}",
        failed.len(),
        failed.join("\n\n")
    );
}
