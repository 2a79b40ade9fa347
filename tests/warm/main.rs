//! Workers that are forked from a template: that they are workers like any other, and when there is no template.
//!
//! The suites `torchrun`, `orphans`, `kill`, `torch` and `flash` run with forked workers by `TEST_WARM=start`.

mod differs;
mod facts;
mod growth;
mod learned;
mod programs;
mod refused;
mod shared;

use std::{fs, path::Path};

use serde_json::Value;
use support::{
    census::Process,
    launch::{Launch, Launcher, Outcome, Running},
    launcher, trainer,
};

/// The launcher; none when the tests judge torchrun, which has no template.
fn ours() -> Option<Launcher> {
    Some(launcher!()).filter(|launcher| !launcher.is_torchrun)
}

/// A run of `trainers/warm.py` that imports `decimal` in its template.
fn launch(launcher: Launcher, when: &str) -> Launch {
    Launch::new(launcher)
        .script(trainer("warm.py"))
        .flags(["--standalone", "-v", "--max-restarts=1000", "--warm-modules=decimal"])
        .flags([format!("--warm={when}")])
}

/// What a worker has said of itself.
fn facts(run: &Outcome, rank: u32, attempt: u32) -> Value {
    let text = run.file(&format!("worker.{rank}.{attempt}"));
    let text = text.unwrap_or_else(|| panic!("rank {rank} of attempt {attempt} said nothing: {run:#?}"));
    serde_json::from_str(&text).expect("JSON")
}

/// Whether it was forked from the template: nothing else has imported this module.
fn is_forked(facts: &Value) -> bool {
    facts["has_modules"].as_array().is_some_and(|names| names.iter().any(|name| name == "decimal"))
}

/// Writes a module into `lib` of the directory, which the caller puts into PYTHONPATH.
fn module(dir: &Path, name: &str, text: &str) {
    fs::create_dir_all(dir.join("lib")).expect("our own directory");
    fs::write(dir.join("lib").join(format!("{name}.py")), text).expect("our own directory");
}

/// The template of a run. Its supervisor is called a guard too, below the guard; the template is its child.
fn template(run: &Running) -> Process {
    let guard = |one: &Process| one.name == "dlrover-guard";
    let all: Vec<Process> = run.processes().iter().filter_map(|one| Process::of(one.pid)).collect();
    let guards: Vec<i32> = all.iter().filter(|one| guard(one)).map(|one| one.pid).collect();
    let supervisor = all.iter().find(|one| guard(one) && guards.contains(&one.parent)).expect("a supervisor");
    all.iter().find(|one| one.parent == supervisor.pid).expect("a template").clone()
}
