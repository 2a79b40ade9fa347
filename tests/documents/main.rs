//! The tables of docs/from-torchrun.md and docs/from-dlrover.md, row by row against the programs; and docs/recipes.md
//! against the files of `examples/`.

mod tables;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use support::{
    launch::{Launch, Launcher, Outcome},
    programs, tests_dir,
};

use self::tables::{Row, names, rows};

/// What the parser of DLRover 0.6.1's `dlrover-run` adds to torchrun's (`elastic_run.py`).
const FLAGS_OF_DLROVER: [&str; 11] = [
    "--precheck",
    "--node-unit",
    "--auto-config",
    "--auto-tunning",
    "--exclude-straggler",
    "--save-at-breakpoint",
    "--accelerator",
    "--training-port",
    "--numa-affinity",
    "--network-check",
    "--comm-perf-test",
];

/// The parser of its job master (`args.py`).
const ARGUMENTS_OF_ITS_MASTER: [&str; 13] = [
    "--job_name",
    "--namespace",
    "--platform",
    "--pending_timeout",
    "--pending_fail_strategy",
    "--service_type",
    "--pre_check_ops",
    "--port",
    "--node_num",
    "--hang_detection",
    "--hang_downtime",
    "--xpu_type",
    "--task_process_timeout",
];

/// The variables of its `NodeEnv`, and what else its agent, its checks and its logs read.
const VARIABLES_OF_DLROVER: [&str; 33] = [
    "DLROVER_MASTER_ADDR",
    "DLROVER_MASTER_SERVICE_TYPE",
    "DLROVER_LOG_LEVEL",
    "DLROVER_METRIC_URL",
    "DLROVER_METRIC_TOKEN",
    "DLROVER_JOB_NAME",
    "ELASTIC_JOB_NAME",
    "FAILURE_NODE_ERRORS",
    "GRPC_ENABLE_FORK_SUPPORT",
    "GRPC_POLL_STRATEGY",
    "HCCL_IF_BASE_PORT",
    "HOST_PORTS",
    "JOB_UID",
    "MASTER_CLIENT_TIMEOUT",
    "MCCL_SETTINGS",
    "MOCK_ERR_RANK",
    "MONITOR_ENABLED",
    "NCCL_SETTINGS",
    "NETWORK_CHECK_TIMEOUT",
    "NODE_ID",
    "NODE_IP",
    "NODE_NUM",
    "NODE_RANK",
    "NODE_TYPE",
    "POD_IP",
    "POD_NAME",
    "PYTHON_EXEC",
    "RELAUNCHED_POD",
    "TRAINING_LOG_FILE",
    "WORKER_ID",
    "WORKER_NUM",
    "WORKER_RANK",
    "XPU_TIMER_PORT",
];

/// The options of torchrun 2.15 (`run.py`), without the `_` spellings.
const OPTIONS_OF_TORCHRUN: [&str; 33] = [
    "--nnodes",
    "--nproc-per-node",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--rdzv-conf",
    "--standalone",
    "--max-restarts",
    "--monitor-interval",
    "--start-method",
    "--event-log-handler",
    "--role",
    "--module",
    "--no-python",
    "--run-path",
    "--log-dir",
    "--redirects",
    "--tee",
    "--log-line-prefix-template",
    "--local-ranks-filter",
    "--duplicate-stdout-filters",
    "--duplicate-stderr-filters",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--local-addr",
    "--logs-specs",
    "--numa-binding",
    "--signals-to-handle",
    "--shutdown-timeout",
    "--virtual-local-rank",
    "--print-completion",
    "--help",
];

fn tree() -> PathBuf {
    tests_dir().parent().expect("the repository").to_owned()
}

fn document(name: &str) -> String {
    let path = tree().join("docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The launcher under test, which `LAUNCHER` does not replace.
fn launch() -> Launch {
    Launch::new(programs!().launcher)
}

#[track_caller]
fn expect_all(rows: &[Row], expected: &[&str]) {
    let found: BTreeSet<&str> = rows.iter().map(Row::flag).collect();
    let missing: Vec<_> = expected.iter().filter(|name| !found.contains(*name)).collect();
    assert!(missing.is_empty(), "the document lacks {missing:?}");
}

/// A run of one worker with this option; the script is `worker.py`, which does nothing.
fn run_with(row: &Row) -> Outcome {
    let launch = launch().without_script();
    let script = launch.dir().join("worker.py");
    fs::write(&script, "#!/usr/bin/env python3\n").expect("our own directory");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("our own file");
    // Alone, no option can need a port or another node; a refusal is of the value itself.
    let launch = if row.verdict == "refused" { launch } else { launch.flags(["--standalone"]) };
    let launch = match row.flag() {
        "--exclude-straggler" => launch.flags(["--network-check"]),
        _ => launch,
    };
    let script = if row.flag() == "--module" { "worker" } else { "./worker.py" };
    launch.flags([&row.line]).script(script).finish()
}

/// What a row says of a flag is what the launcher does.
fn hold_flag(row: &Row) {
    let end = run_with(row);
    let says_ignored = end.stderr.contains(&format!("`{}", row.flag())) && end.stderr.contains("is ignored");
    match &*row.verdict {
        "same" | "different" => {
            // A machine without accelerators, for torchrun too.
            let cannot_bind =
                row.flag() == "--numa-binding" && end.stderr.contains("No accelerator available");
            assert!(end.code == Some(0) || cannot_bind, "{row:?}: {end:#?}");
            assert!(!says_ignored, "{row:?}: {end:#?}");
        }
        "no effect" => {
            assert_eq!(end.code, Some(0), "{row:?}: {end:#?}");
            assert!(says_ignored, "{row:?}: {end:#?}");
        }
        "refused" => {
            assert!(matches!(end.code, Some(1 | 2)), "{row:?}: {end:#?}");
            assert!(end.stderr.contains(&format!("`{}`", row.line)), "{row:?}: {end:#?}");
        }
        other => panic!("{row:?}: {other} is no verdict on a flag"),
    }
}

#[test]
fn every_option_of_torchrun_is_told_and_is_so() {
    let rows = rows(&document("from-torchrun.md"), "Options");
    expect_all(&rows, &OPTIONS_OF_TORCHRUN);
    rows.iter().for_each(hold_flag);
}

#[test]
fn every_flag_of_dlrover_is_told_and_is_so() {
    let rows = rows(&document("from-dlrover.md"), "Flags of dlrover-run");
    expect_all(&rows, &FLAGS_OF_DLROVER);
    rows.iter().for_each(hold_flag);
}

/// A check of links would take a while, so the script is one that is missing: that is found after all options and
/// before the check.
#[test]
fn every_flag_of_the_metax_guide_is_accepted() {
    let rows = rows(&document("from-dlrover.md"), "Flags of the MetaX guide");
    expect_all(&rows, &["--switchbox-check", "--box-pairs", "--min-bandwidth", "--min-channels"]);
    for row in rows {
        let launch = launch().flags(["--standalone", "--network-check", "--switchbox-check", &*row.line]);
        let end = launch.script("missing.py").finish().expect_code(1);
        assert!(end.stderr.contains("cannot run missing.py"), "{row:?}: {end:#?}");
        assert!(!end.stderr.contains("is ignored"), "{row:?}: {end:#?}");
    }
}

#[test]
fn every_argument_of_dlrovers_master_is_told_and_is_so() {
    let rows = rows(&document("from-dlrover.md"), "Arguments of the job master");
    expect_all(&rows, &ARGUMENTS_OF_ITS_MASTER);
    for row in rows {
        let master = Launcher { program: programs!().master, is_torchrun: false };
        // The help is printed when everything before it is known and usable.
        let end = Launch::new(master).without_script().flags([&*row.line, "--help"]).finish();
        let expected = match &*row.verdict {
            "same" | "different" | "no effect" => 0,
            "refused" => 2,
            other => panic!("{row:?}: {other} is no verdict on an argument"),
        };
        assert_eq!(end.code, Some(expected), "{row:?}: {end:#?}");
    }
}

/// Every Rust source of the programs, without tests.
fn sources() -> String {
    fn read(dir: &Path, text: &mut String) {
        for entry in fs::read_dir(dir).expect("a directory of the repository").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() && name != "tests" {
                read(&path, text);
            } else if path.extension().is_some_and(|end| end == "rs") && name != "tests.rs" {
                text.push_str(&fs::read_to_string(&path).expect("a source"));
            }
        }
    }
    let mut text = String::new();
    for entry in fs::read_dir(tree()).expect("the repository").flatten() {
        let sources = entry.path().join("src");
        // All but the tools for measuring.
        if sources.is_dir() && entry.file_name() != "benches" {
            read(&sources, &mut text);
        }
    }
    text
}

#[test]
fn every_variable_of_dlrover_is_told_and_is_so() {
    let rows = rows(&document("from-dlrover.md"), "Variables that dlrover-run reads");
    expect_all(&rows, &VARIABLES_OF_DLROVER);
    let sources = sources();
    for row in rows {
        let is_read = sources.contains(&format!("\"{}\"", row.line));
        match &*row.verdict {
            "same" | "different" => assert!(is_read, "{row:?}: no source names it"),
            "unread" => assert!(!is_read, "{row:?}: a source names it"),
            other => panic!("{row:?}: {other} is no verdict on a variable"),
        }
    }
}

#[test]
fn workers_have_the_variables_that_are_told() {
    let end = launch().flags(["--standalone"]).steps(&["dump"]).finish().expect_code(0);
    let worker = end.dump(0, 0);
    for (name, heading) in
        [("from-torchrun.md", "Variables"), ("from-dlrover.md", "Variables of the workers")]
    {
        let rows = rows(&document(name), heading);
        assert!(!rows.is_empty(), "{name}: no table");
        for row in rows {
            for variable in names(&row.cell) {
                let expected = match &*row.verdict {
                    "set" => true,
                    "unread" => false,
                    other => panic!("{row:?}: {other} is no verdict on a variable of workers"),
                };
                assert_eq!(worker.env.contains_key(variable), expected, "{name}: {variable}");
            }
        }
    }
}

/// A row whose difference is not explained helps no reader.
#[test]
fn every_difference_is_explained() {
    for (name, headings) in [
        ("from-torchrun.md", &["Options"][..]),
        (
            "from-dlrover.md",
            &[
                "Flags of dlrover-run",
                "Flags of the MetaX guide",
                "Variables that dlrover-run reads",
                "Arguments of the job master",
            ],
        ),
    ] {
        let text = document(name);
        let prose: String = text.lines().filter(|line| !line.starts_with('|')).collect::<Vec<_>>().join("\n");
        for heading in headings {
            for row in rows(&text, heading).iter().filter(|row| row.verdict == "different") {
                assert!(
                    prose.contains(&format!("`{}", row.flag())),
                    "{name}: {} is not explained",
                    row.flag()
                );
            }
        }
    }
}

/// The files of `examples/` below these directories.
fn examples(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).expect("a directory of the repository").flatten() {
        let path = entry.path();
        if path.is_dir() {
            examples(&path, found);
        } else {
            let inside = path.strip_prefix(tree()).expect("it is inside");
            found.insert(inside.to_str().expect("a plain path").to_owned());
        }
    }
}

#[test]
fn the_recipes_name_every_example_and_no_other() {
    let text = document("recipes.md");
    let mut found = BTreeSet::new();
    for folder in ["slurm", "ssh", "kubernetes", "kubeflow", "compose"] {
        examples(&tree().join("examples").join(folder), &mut found);
    }
    let links = text.split("](../").skip(1).filter_map(|rest| rest.split(')').next());
    let linked: BTreeSet<String> =
        links.filter(|link| link.starts_with("examples/")).map(str::to_owned).collect();
    assert_eq!(linked, found);
}
