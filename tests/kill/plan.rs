//! What happens in a run, generated from a seed.

use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use nix::sys::signal::Signal;

/// Which process is signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Launcher,
    Guard,
    Worker,
    /// Something that a worker started.
    Descendant,
}

/// The stage of the run at the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Starting or running.
    Running,
    /// A worker failed: all are being stopped, or started again.
    Restarting,
    /// All workers succeeded, and their descendants are being stopped.
    Ending,
}

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    Kill,
    Segv,
    StopThenTerm,
}

impl Attack {
    /// The signal that is sent.
    pub fn signal(self) -> Signal {
        match self {
            Self::Kill => Signal::SIGKILL,
            Self::Segv => Signal::SIGSEGV,
            Self::StopThenTerm => Signal::SIGTERM,
        }
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub index: u32,
    pub workers: u32,
    pub max_restarts: u32,
    /// The descendants of every worker.
    pub breeds: Vec<&'static str>,
    pub stage: Stage,
    pub target: Target,
    pub attack: Attack,
    /// After the launcher's start, or that of the stage. Workers live from some 50 ms on, later on a busy
    /// machine. Stopping takes the second that stubborn descendants are given.
    pub moment: Duration,
    /// Which of the processes there are then.
    pub choice: usize,
}

impl Plan {
    /// Generates the run with this number, independent of the others.
    pub fn draw(seed: u64, index: u32) -> Self {
        let mut rng = Rng(seed ^ (u64::from(index) << 32));
        let stage = [Stage::Running, Stage::Running, Stage::Restarting, Stage::Ending][rng.below(4)];
        let target = match stage {
            Stage::Running => {
                [Target::Launcher, Target::Guard, Target::Worker, Target::Worker, Target::Descendant]
                    [rng.below(5)]
            }
            // Workers come and go here; what follows from a signal to one is undefined.
            Stage::Restarting | Stage::Ending => {
                [Target::Launcher, Target::Guard, Target::Descendant][rng.below(3)]
            }
        };
        let attack = match target {
            Target::Launcher | Target::Guard => [Attack::Kill, Attack::Segv][rng.below(2)],
            Target::Worker | Target::Descendant => {
                [Attack::Kill, Attack::Segv, Attack::StopThenTerm][rng.below(3)]
            }
        };
        let mut breeds = vec!["plain", "stubborn", "setsid", "daemon"];
        for _ in 0..rng.below(3) {
            breeds.remove(rng.below(breeds.len()));
        }
        if stage != Stage::Running && !breeds.contains(&"stubborn") {
            breeds.push("stubborn");
        }
        Self {
            index,
            workers: [2, 3][rng.below(2)],
            max_restarts: if stage == Stage::Restarting {
                [1, 2][rng.below(2)]
            } else {
                [0, 1, 2][rng.below(3)]
            },
            breeds,
            stage,
            target,
            attack,
            moment: Duration::from_millis([0, 100, 500, 1000][rng.below(4)] + rng.below(200) as u64),
            choice: rng.below(1000),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, workers, max_restarts, breeds, stage, target, attack, moment, .. } = self;
        let breeds = breeds.join("+");
        write!(
            f,
            "run {index}: {stage:?}, {attack:?} to {target:?} at {} ms, {workers} workers with {breeds}, {max_restarts} restarts",
            moment.as_millis()
        )
    }
}

/// A random seed.
pub fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 16
}

/// splitmix64: small, and the same everywhere.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed % end as u64) as usize
    }
}
