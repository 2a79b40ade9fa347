//! The suites of the Python client (`tests/flash/python`): with the `python3` of this host, and, where `TORCH_PYTHON`
//! names an interpreter that has torch, with that and the saver itself.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::Write as _,
    thread,
    time::{Duration, Instant},
};

use support::{
    launch::{Launch, Launcher, Outcome},
    programs, tests_dir,
};

use crate::torch;

/// Suites of one process or few of them at a time. The others start some eighty interpreters that import torch, which
/// is minutes of two processors.
const QUICK: [&str; 12] = [
    "test_ddp",
    "test_disk",
    "test_ends",
    "test_header",
    "test_limits",
    "test_plain_file",
    "test_saver",
    "test_shim",
    "test_streaming",
    "test_tensors",
    "test_tree",
    "test_with_saver",
];
const OF_MANY_PROCESSES: [&str; 3] = ["test_adaptors", "test_fsdp", "test_shards"];

/// Only a hang takes longer.
const LONGEST: Duration = Duration::from_secs(1800);

/// All tests of these suites, which pass, and leave no process.
#[track_caller]
fn passes(python: &OsStr, variables: &[(&str, &OsStr)], suites: &[&str]) -> Outcome {
    let program = Launcher { program: python.to_owned(), is_torchrun: false };
    let mut suite = Launch::new(program)
        .without_script()
        .cwd(tests_dir().join("flash/python"))
        .flags(["-m", "unittest"])
        .flags(suites)
        .flags(["-v"])
        // A test is not what the other processors of the host are for.
        .env("OMP_NUM_THREADS", "1");
    for (name, value) in variables {
        suite = suite.env(name, value);
    }
    let (mut suite, start) = (suite.start(), Instant::now());
    while !suite.has_ended() && start.elapsed() < LONGEST {
        thread::sleep(Duration::from_millis(20));
    }
    let suite = suite.finish().expect_code(0);
    say_skipped(&suite);
    suite
}

/// How many tests were skipped, and why, past cargo's capture.
fn say_skipped(suite: &Outcome) {
    let mut reasons: BTreeMap<&str, u32> = BTreeMap::new();
    // `test_x (test_y.Z.test_x) ... skipped 'no torch'`, or with other text before the result.
    for (_, reason) in suite.stderr.lines().filter_map(|line| line.split_once(" skipped ")) {
        *reasons.entry(reason.trim_matches(['\'', '"'])).or_default() += 1;
    }
    for (reason, count) in reasons {
        let tests = if count == 1 { "test" } else { "tests" };
        // A closed stderr must not fail the case.
        let _ = writeln!(std::io::stderr(), "skipped: {count} {tests} of the Python client: {reason}");
    }
}

/// How many tests ran and were not skipped.
#[track_caller]
fn ran(suite: &Outcome) -> u32 {
    // `Ran 102 tests in 6.037s` and `OK (skipped=56)`.
    let number = |start: &str| {
        let rest = suite.stderr.lines().rev().find_map(|line| line.split_once(start))?.1;
        rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u32>().ok()
    };
    let all = number("Ran ").unwrap_or_else(|| panic!("no number of tests: {suite:#?}"));
    all - number("OK (skipped=").unwrap_or(0)
}

#[test]
fn its_suites_pass() {
    let suite = passes(OsStr::new("python3"), &[], &["discover"]);
    assert!(ran(&suite) > 40, "{suite:#?}");
}

#[test]
fn no_suite_is_forgotten() {
    let found = fs::read_dir(tests_dir().join("flash/python")).expect("the suites");
    let names = found.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let mut suites: Vec<String> = names
        .filter_map(|name| Some(name.strip_suffix(".py")?.to_owned()))
        .filter(|name| name.starts_with("test_"))
        .collect();
    suites.sort_unstable();
    let mut known: Vec<&str> = QUICK.into_iter().chain(OF_MANY_PROCESSES).collect();
    known.sort_unstable();
    assert_eq!(suites, known);
}

#[test]
fn its_suites_pass_with_torch_and_the_saver_itself() {
    let Some(python) = torch::python() else { return };
    let saver = programs!().launcher.program;
    let suite = passes(&python, &[("DLROVER_SAVER", &saver)], &QUICK);
    assert!(ran(&suite) > 75, "{suite:#?}");
    assert!(!suite.stderr.contains("DLROVER_SAVER names no saver"), "{suite:#?}");
}

#[test]
fn its_suites_of_many_processes_pass_with_torch() {
    let Some(python) = torch::python() else { return };
    let suite = passes(&python, &[], &OF_MANY_PROCESSES);
    assert!(ran(&suite) > 10, "{suite:#?}");
}
