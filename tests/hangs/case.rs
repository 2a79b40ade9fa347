//! A job whose outcome is known: what it does, and what is to be said of it.

use std::{collections::BTreeSet, ffi::OsString};

use dlrover_sim::prng::Prng;
use support::{
    launch::{Launch, Launcher},
    trainer,
};

/// Which ranks are to be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// The job does not hang.
    NoHang,
    /// It hangs, and no rank is at fault.
    Nobody,
    /// The one rank that does what the kind says.
    Who,
    /// That and another.
    Both,
    /// The one, and of two ranks both: what is known of them is the same.
    WhoOrBothOfTwo,
}

/// What a job does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// The value of `--kind`, and further arguments of the trainer.
    pub(crate) args: &'static [&'static str],
    /// Options of the launcher.
    pub(crate) flags: &'static [&'static str],
    /// Seconds.
    pub(crate) timeout: u32,
    pub(crate) ranks: Bounds,
    pub(crate) named: Named,
    /// All of these words are in the sentence. `NAME`: the exchange's function.
    pub(crate) says: &'static [&'static str],
    /// Every rank must declare its steps.
    pub(crate) all_tell: bool,
    /// Seconds from the last step to the declaration that are not the timeout.
    pub(crate) held: u32,
}

/// The fewest and the most ranks.
type Bounds = (u32, u32);

const USUAL: Kind = Kind {
    name: "",
    args: &[],
    flags: &[],
    timeout: 2,
    ranks: (1, 6),
    named: Named::Who,
    says: &[],
    all_tell: false,
    held: 0,
};

const fn hang(name: &'static str, args: &'static [&'static str], says: &'static [&'static str]) -> Kind {
    Kind { name, args, says, ..USUAL }
}

const fn healthy(name: &'static str, args: &'static [&'static str]) -> Kind {
    Kind { name, args, named: Named::NoHang, ..USUAL }
}

/// Every kind of `trainers/hang.py`.
pub(crate) const KINDS: &[Kind] = &[
    hang("loop", &["loop"], &["search_for_sample"]),
    hang("lock", &["lock"], &["take_cache_lock"]),
    hang("sleep", &["long-sleep"], &["back_off"]),
    hang("stopped", &["stop"], &["stopped (SIGSTOP)"]),
    hang("fifo", &["fifo"], &["read_shard_list"]),
    hang("held fifo", &["held-fifo"], &["read_command"]),
    hang("dead helper", &["helper-dies"], &["await_helper"]),
    hang("queue of a thread", &["queue-of-thread"], &["next_batch"]),
    hang("loader's process", &["loader-process"], &["read_from_loader"]),
    hang("child", &["child"], &["run_command"]),
    hang("in a thread", &["loop", "--in-thread"], &["search_for_sample"]),
    Kind {
        ranks: (2, 6),
        named: Named::Both,
        ..hang("deadlock", &["deadlock"], &["exchange_weights", "exchange_statistics"])
    },
    Kind { ranks: (2, 6), ..hang("skipped sum", &["skip"], &["barrier"]) },
    Kind { ranks: (2, 6), all_tell: true, ..hang("early exit", &["early-exit"], &["no process"]) },
    Kind { ranks: (2, 6), named: Named::Nobody, ..hang("lost message", &["lost-message"], &["NAME"]) },
    Kind {
        flags: &["--hang-grace=5"],
        all_tell: true,
        held: 3,
        ..hang("endless checkpoint", &["busy-too-long"], &["save_weights"])
    },
    healthy("healthy", &["healthy"]),
    Kind { timeout: 3, ..healthy("slow", &["healthy", "--pace=1", "--steps=5"]) },
    healthy("noisy", &["healthy", "--noise=1.2", "--steps=6"]),
    Kind { timeout: 3, ..healthy("one slow rank", &["healthy", "--lag=1", "--steps=5"]) },
    healthy("long first step", &["healthy", "--first=4.5"]),
    healthy("long pause", &["long-pause", "--pause=1.4"]),
    Kind { all_tell: true, ..healthy("checkpoint", &["checkpoint", "--pause=4.5"]) },
    // Nothing is declared of a program that never shows progress, whatever the grace.
    // Its 40 steps take twice that.
    Kind { flags: &["--hang-grace=2"], ..healthy("silent", &["healthy", "--tells=none", "--pace=0.1"]) },
    // New kinds are appended: the place of a kind is part of its seed.
    Kind {
        ranks: (2, 6),
        all_tell: true,
        ..hang("dead peer", &["dead-peer", "--by=ring"], &["no process", "wait"])
    },
    // The worker is a shell.
    Kind { flags: &["--no-python"], ..hang("below a shell", &["loop"], &["search_for_sample"]) },
];

const fn torch(name: &'static str, args: &'static [&'static str], says: &'static [&'static str]) -> Kind {
    Kind { timeout: 5, ranks: (2, 4), flags: &["--progress=auto"], ..hang(name, args, says) }
}

/// Those of `trainers/torch_hang.py`, which is run with 2 and with 4 ranks.
pub(crate) const TORCH_KINDS: &[Kind] = &[
    torch("torch: loader", &["loader"], &["read_sample"]),
    torch("torch: loader's process", &["loader-process"], &["next_batch"]),
    torch("torch: skipped backward", &["skip-backward"], &["barrier", "backward"]),
    Kind {
        named: Named::WhoOrBothOfTwo,
        ..torch("torch: skipped collective", &["skip-collective"], &["barrier", "all_reduce"])
    },
    torch("torch: stopped", &["stop"], &["stopped (SIGSTOP)"]),
    Kind { named: Named::NoHang, ..torch("torch: healthy", &["healthy"], &[]) },
    torch("torch: backward in its thread", &["deep-backward"], &["compute_gradient"]),
];

/// A job.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    pub(crate) ranks: u32,
    pub(crate) who: u32,
    /// Of two ranks that are at fault.
    pub(crate) other: u32,
    /// How the trainer is written: the arguments for it.
    pub(crate) manner: Vec<String>,
    /// The interpreter that has torch.
    pub(crate) torch: Option<OsString>,
}

impl Case {
    /// A job of so many ranks, in the usual manner.
    pub(crate) fn of(name: &str, ranks: u32, who: u32) -> Self {
        let kind = *KINDS.iter().find(|kind| kind.name == name).expect("a kind");
        Self { kind, ranks, who, other: (who + 1) % ranks, manner: Vec::new(), torch: None }
    }

    /// The same in the torch trainer.
    pub(crate) fn of_torch(kind: Kind, ranks: u32, who: u32, python: OsString) -> Self {
        Self { kind, ranks, who, other: who, manner: Vec::new(), torch: Some(python) }
    }

    /// What the seed gives.
    pub(crate) fn drawn(kind: Kind, prng: &mut Prng) -> Self {
        let ranks = prng.small(kind.ranks.0, kind.ranks.1);
        let who = prng.small(0, ranks - 1);
        let other = (who + prng.small(1, ranks.max(2) - 1)) % ranks;
        let mut manner = vec![format!("--seed={}", prng.between(0, 9999))];
        let pick = |prng: &mut Prng, argument: &str, manner: &mut Vec<String>| {
            if prng.chance(500) {
                manner.push(argument.to_owned());
            }
        };
        pick(prng, "--by=ring", &mut manner);
        pick(prng, "--name=exchange_gradients", &mut manner);
        pick(prng, "--imported", &mut manner);
        pick(prng, "--poll", &mut manner);
        if !kind.all_tell && !kind.args.contains(&"--tells=none") {
            pick(prng, "--tells=first", &mut manner);
        }
        if !kind.args.iter().any(|argument| argument.starts_with("--noise")) {
            manner.push(format!("--noise={:.3}", f64::from(prng.small(0, 60)) / 1000.0));
        }
        manner.push(format!("--at={}", prng.small(2, 12).min(if kind.args.len() > 1 { 4 } else { 12 })));
        Self { kind, ranks, who, other, manner, torch: None }
    }

    /// The ranks that are to be named; none when the job does not hang.
    pub(crate) fn expected(&self) -> Option<BTreeSet<u32>> {
        Some(match self.kind.named {
            Named::NoHang => return None,
            Named::Nobody => BTreeSet::new(),
            Named::WhoOrBothOfTwo if self.ranks == 2 => BTreeSet::from([0, 1]),
            Named::Who | Named::WhoOrBothOfTwo => BTreeSet::from([self.who]),
            Named::Both => BTreeSet::from([self.who, self.other]),
        })
    }

    /// The words that the sentence has.
    pub(crate) fn says(&self) -> Vec<&'static str> {
        let own = self.manner.iter().any(|argument| argument.ends_with("exchange_gradients"));
        let name = if own { "exchange_gradients" } else { "all_reduce" };
        self.kind.says.iter().map(|word| if *word == "NAME" { name } else { word }).collect()
    }

    /// The line of a launcher for the whole job. The stacks go to `stacks` in the directory of the run.
    pub(crate) fn launch(&self, launcher: Launcher) -> Launch {
        let launch = Launch::new(launcher);
        let stacks = launch.dir().join("stacks");
        let script = if self.torch.is_some() { "torch_hang.py" } else { "hang.py" };
        let mut launch = launch
            .env("XPU_TIMER_TIMELINE_PATH", stacks)
            .flags(["--standalone".to_owned(), format!("--nproc-per-node={}", self.ranks)])
            .flags([format!("--hang-timeout={}", self.kind.timeout)])
            .flags(self.kind.flags);
        launch = if self.kind.flags.contains(&"--no-python") {
            let below = ["-c", "python3 \"$@\"; exit $?", "bash"];
            launch.script("bash").args(below).args([trainer(script)])
        } else {
            launch.script(trainer(script))
        };
        launch = launch
            .args([format!("--kind={}", self.kind.args[0]), format!("--who={}", self.who)])
            .args(&self.kind.args[1..])
            .args(&self.manner);
        if let Some(python) = &self.torch {
            launch = launch.env("PYTHON_EXEC", python).env("OMP_NUM_THREADS", "1");
        } else {
            launch = launch.args([format!("--other={}", self.other)]);
        }
        launch
    }
}
