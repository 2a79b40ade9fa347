//! A forked worker beside one that was started.

use std::collections::BTreeMap;

use serde_json::Value;
use support::{launch::Outcome, trainer};

use crate::{facts, is_forked, launch, ours};

/// The facts that must be the same.
fn comparable(facts: &Value) -> BTreeMap<String, Value> {
    let mut facts: BTreeMap<String, Value> = serde_json::from_value(facts.clone()).expect("an object");
    // Of each process its own, and what the import of a module is.
    for name in [
        "pid",
        "ppid",
        "random",
        "has_modules",
        "template_fds",
        "template_pages",
        "guard_fds",
        "launcher_fds",
        "launcher_id",
    ] {
        facts.remove(name);
    }
    // Of each run its own.
    for name in [
        "PYTHONPATH",
        "DLROVER_PROGRESS_COUNTER",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_ERROR_FILE",
        "MASTER_PORT",
        "DLROVER_LAUNCHER_ID",
        "DLROVER_CKPT_SOCK",
        "DLROVER_PROGRESS_FILE",
        "LAUNCH_UNDER_TEST",
        "PROBE_OUT",
        "TMPDIR",
        "PWD",
        "OLDPWD",
        "_",
    ] {
        for environ in ["environ", "initial"] {
            if environ != "environ" || name != "PYTHONPATH" {
                facts.get_mut(environ).and_then(Value::as_object_mut).expect("an object").remove(name);
            }
        }
    }
    facts
}

fn both(change: impl Fn(support::launch::Launch) -> support::launch::Launch) -> Option<[Outcome; 2]> {
    let run = |when: &str| {
        let launch = launch(ours()?, when).flags(["--nproc-per-node=2"]).env("PYTHONHASHSEED", "7");
        Some(change(launch.cwd("/")).finish().expect_code(0))
    };
    Some([run("off")?, run("start")?])
}

fn expect_same(runs: &[Outcome; 2], attempts: u32) {
    for (rank, attempt) in (0..2).flat_map(|rank| (0..attempts).map(move |attempt| (rank, attempt))) {
        let [started, forked] = runs.each_ref().map(|run| facts(run, rank, attempt));
        assert!(!is_forked(&started), "{started:#}");
        assert!(is_forked(&forked), "{forked:#}\n{:#?}", runs[1]);
        let (started, forked) = (comparable(&started), comparable(&forked));
        for (name, value) in &started {
            assert_eq!(Some(value), forked.get(name), "{name} of rank {rank}, attempt {attempt}");
        }
    }
}

#[test]
fn a_forked_worker_has_the_facts_of_a_started_one() {
    let Some(runs) = both(|launch| {
        // On one processor, the first that this test may run on.
        let pinned =
            r#"umask 027; taskset -pc "$(taskset -pc $$ | sed 's/.*: *//; s/[-,].*//')" $$ >/dev/null"#;
        let launch = launch.after(pinned);
        launch.env("PYTHONFAULTHANDLER", "1").args(["a b", "--", "$local_rank"])
    }) else {
        return;
    };
    expect_same(&runs, 1);
    let forked = facts(&runs[1], 0, 0);
    assert_eq!((&forked["umask"], &forked["faulthandler"]), (&0o027.into(), &true.into()), "{forked:#}");
    assert_eq!(forked["cpus"].as_array().map(Vec::len), Some(1), "{forked:#}");
    let [of_started, of_forked] = runs.each_ref().map(|run| {
        let [first, second] = [0, 1].map(|rank| facts(run, rank, 0));
        assert!(first["launcher_id"].as_str().is_some_and(|id| !id.is_empty()), "{first:#}");
        assert_eq!(first["launcher_id"], second["launcher_id"], "all processes of a run have one");
        first["launcher_id"].clone()
    });
    assert_ne!(of_started, of_forked, "each run has one of its own");
    for run in &runs {
        for rank in 0..2 {
            assert!(run.stdout.contains(&format!("rank {rank} on standard output")), "{run:#?}");
            assert!(run.stderr.contains(&format!("rank {rank} on standard error")), "{run:#?}");
        }
    }
    let [first, second] = [0, 1].map(|rank| facts(&runs[1], rank, 0)["random"].clone());
    assert_ne!(first, second, "each has a seed of its own");
}

#[test]
fn a_module_is_forked_like_a_script() {
    let folder = trainer("warm.py").parent().expect("a directory").to_owned();
    let Some(runs) = both(|launch| launch.flags(["-m"]).script("warm").env("PYTHONPATH", &folder)) else {
        return;
    };
    expect_same(&runs, 1);
}

#[test]
fn workers_of_a_restart_are_forked_from_the_same_template() {
    let Some(runs) = both(|launch| launch.args(["--restarts=2"])) else { return };
    expect_same(&runs, 3);
    assert_eq!(runs[1].stderr.matches("starting the template of warm workers").count(), 1, "{:#?}", runs[1]);
}

#[test]
fn a_forked_worker_starts_processes_by_every_method() {
    let Some(runs) = both(|launch| launch.args(["--children"])) else { return };
    expect_same(&runs, 1);
    let numbers = facts(&runs[1], 0, 0)["children"].clone();
    assert_eq!(numbers, serde_json::json!({"fork": 42, "spawn": 42, "forkserver": 42}));
}

#[test]
fn output_goes_where_it_goes_without_a_template() {
    let Some(runs) = both(|launch| {
        let logs = launch.dir().join("logs");
        launch.flags(["--tee=3"]).flags(["--log-dir".into(), logs.into_os_string()])
    }) else {
        return;
    };
    for run in &runs {
        for rank in 0..2 {
            let line = format!("[default{rank}]:rank {rank} on standard output");
            assert_eq!(run.stdout.lines().filter(|it| **it == line).count(), 1, "{run:#?}");
        }
    }
}
