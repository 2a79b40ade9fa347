//! Real programs, unmodified: killed once, they train the same weights, bit for bit, from forked workers as from
//! started ones. `TORCH_PYTHON` names an interpreter that has torch; a program whose package it lacks is skipped.

use std::{ffi::OsString, io::Write as _, process::Command};

use support::{
    launch::{Launch, Outcome},
    trainer, wait_for,
};

use crate::ours;

/// The interpreter, where it has the package.
fn python_with(package: &str) -> Option<OsString> {
    let skipped = |why: String| {
        // Past cargo's capture. A closed stderr must not fail the case.
        let _ = writeln!(std::io::stderr(), "skipped: {why}");
    };
    let Some(python) = std::env::var_os("TORCH_PYTHON").filter(|python| !python.is_empty()) else {
        skipped("TORCH_PYTHON is not set".into());
        return None;
    };
    // Not by importing it, which takes seconds.
    let find = format!("import importlib.util, sys; sys.exit(importlib.util.find_spec('{package}') is None)");
    let found = Command::new(&python).args(["-c", &find]).status().expect("an interpreter");
    if !found.success() {
        skipped(format!("the interpreter of TORCH_PYTHON has no package `{package}`"));
        return None;
    }
    Some(python)
}

const READY: &str = "the template of warm workers is ready";

/// Whether all workers were forked that could be.
fn is_forked(run: &Outcome) -> bool {
    run.stderr.contains(READY)
        && !run.stderr.contains("workers are not forked from")
        && !run.stderr.contains("workers are no longer forked from")
}

fn run(python: &OsString, when: &str, change: impl Fn(Launch) -> Launch) -> Option<Outcome> {
    let line = Launch::new(ours()?)
        .env("PYTHON_EXEC", python)
        .env("OMP_NUM_THREADS", "1")
        .env("TOKENIZERS_PARALLELISM", "false")
        .flags(["--standalone", "-v", "--nproc-per-node=2", "--max-restarts=1"])
        .flags([format!("--warm={when}")]);
    if when != "restart" {
        return Some(change(line).finish().expect_code(0));
    }
    // The template has normal priority then, as other tests need the CPUs too.
    let run = change(line.env("DEATH_WAITS", "1").after("chrt --batch --pid 0 $$")).start();
    wait_for("the template is ready, or refused", || {
        let said = run.stderr();
        (said.contains(READY) || said.contains("workers are not forked from")).then_some(())
    });
    run.touch("go");
    Some(run.finish().expect_code(0))
}

/// What rank 0 trained after the death of rank 1.
fn digest(run: &Outcome) -> &str {
    let line = run.stdout.lines().find_map(|line| line.split_once(" attempt 1 digest "));
    line.unwrap_or_else(|| panic!("no digest after the restart: {run:#?}")).1
}

fn same_weights(package: &str, script: &str) {
    let Some(python) = python_with(package) else { return };
    let script = format!("real/{script}");
    let mut started: Option<Outcome> = None;
    for when in ["off", "start", "restart"] {
        let Some(run) = run(&python, when, |line| line.script(trainer(&script))) else { return };
        assert_eq!(is_forked(&run), when != "off", "{when}: {run:#?}");
        for rank in 0..2 {
            let origin = if when == "off" { "started" } else { "forked" };
            let said = format!("rank {rank} of attempt 1 was {origin}");
            assert!(run.stdout.lines().any(|line| line == said), "{when}: {run:#?}");
        }
        if let Some(started) = &started {
            assert_eq!(digest(started), digest(&run), "{when}: {started:#?}\n{run:#?}");
        }
        started = started.or(Some(run));
    }
}

#[test]
fn fsdp_with_distributed_checkpoints() {
    same_weights("torch", "fsdp.py");
}

#[test]
fn data_loaders_by_every_start_method() {
    same_weights("torch", "loader.py");
}

#[test]
fn a_transformers_trainer() {
    same_weights("transformers", "hf_trainer.py");
}

#[test]
fn lightning() {
    // One of its modules reads LOCAL_RANK while it is imported: each worker imports it, and the template the rest.
    same_weights("lightning", "lightning_fit.py");
}

#[test]
fn a_loop_of_accelerate() {
    same_weights("accelerate", "accelerate_loop.py");
}

#[test]
fn the_test_script_of_accelerate() {
    let Some(python) = python_with("accelerate") else { return };
    for when in ["off", "start"] {
        let Some(run) = run(&python, when, |line| {
            let line = line.flags(["--warm-modules=torch,torch._dynamo,accelerate", "-m"]);
            line.script("accelerate.test_utils.scripts.test_script").env("ACCELERATE_USE_CPU", "true")
        }) else {
            return;
        };
        assert!(run.stdout.contains("**Training integration test**"), "{run:#?}");
        assert_eq!(is_forked(&run), when == "start", "{run:#?}");
    }
}
