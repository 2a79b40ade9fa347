//! `--report-json`: the outcome of a run as a document. Each is held against docs/run-report.v1.schema.json.

use std::{fs, net::TcpListener, path::Path, process::Command, sync::LazyLock};

use jsonschema::Validator;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use support::{launch::Launch, programs};

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let text = include_str!("../../docs/run-report.v1.schema.json");
    serde_json::from_str(text).expect("the schema is JSON")
});

static DOCUMENT: LazyLock<Validator> =
    LazyLock::new(|| jsonschema::draft202012::new(&SCHEMA).expect("the schema is one"));

fn launch() -> Launch {
    Launch::new(programs!().launcher).flags(["--standalone", "--nproc-per-node=2", "--report-json=run.json"])
}

/// # Panics
/// There is no report in this directory, or it is not as the schema says.
#[track_caller]
fn report(dir: &Path) -> Value {
    let text = fs::read_to_string(dir.join("run.json")).expect("a report");
    let document = serde_json::from_str(&text).expect("JSON");
    check(&document);
    document
}

#[track_caller]
fn check(document: &Value) {
    let errors: Vec<String> =
        DOCUMENT.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}\n{document:#}");
}

#[test]
fn a_success_has_the_world_and_no_failure() {
    let run = launch().steps(&["dump"]).finish().expect_code(0);
    let report = report(run.dir());
    let worker = run.dump(1, 0);
    assert_eq!((&report["outcome"], &report["exit_code"]), (&json!("succeeded"), &json!(0)));
    assert_eq!(report["run_id"], worker.var("TORCHELASTIC_RUN_ID"));
    assert_eq!((&report["world"]["world_size"], &report["node_rank"]), (&json!(2), &json!(0)));
    assert_eq!(report["world"]["master_addr"], worker.var("MASTER_ADDR"));
    assert_eq!(report["world"]["master_port"].to_string(), worker.var("MASTER_PORT"));
    let folder = report["log_folder"].as_str().expect("a directory");
    assert!(worker.var("TORCHELASTIC_ERROR_FILE").starts_with(folder), "{folder}");
    // The temporary file is gone.
    let names = fs::read_dir(run.dir()).expect("our own directory").flatten();
    assert_eq!(names.filter(|it| it.file_name().to_string_lossy().contains("run.json")).count(), 1);
}

#[test]
fn a_failure_has_the_root_cause_with_its_last_lines_and_its_message() {
    let run = launch().flags(["--max-restarts=1", "--log-dir=logs"]).steps(&[
        "@0 exit 9",
        "1 err first\\n\\x1b[2Jsecond\\n",
        r#"1 error {"message": {"message": "boom", "extraInfo": {}}}"#,
        "0 touch ready",
        "1 await ready",
        "1 exit 3",
        "0 until TERM",
        "0 kill TERM",
    ]);
    let run = run.finish().expect_code(1);
    let report = report(run.dir());
    assert_eq!((&report["outcome"], &report["exit_code"]), (&json!("failed"), &json!(1)));
    assert_eq!((&report["restarts"], &report["max_restarts"]), (&json!(1), &json!(1)));
    assert_eq!(report["reason"], "rank 1 exited with code 3");
    let root = &report["first_failure"];
    assert_eq!((&root["rank"], &root["local_rank"], &root["node_rank"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!((&root["exit_code"], &root["signal"]), (&json!(3), &json!(null)));
    assert_eq!((&root["message"], &root["last_lines"]), (&json!("boom"), &json!(["first", "second"])));
    assert_eq!(root["host"], report["host"]);
    let time = root["time"].as_str().expect("a time");
    assert!(time.len() == "2026-11-25T01:02:03Z".len() && time.ends_with('Z'), "whole seconds: {time}");
    let pid = format!("pid {}) failed first", root["pid"]);
    assert!(run.stderr.contains(&pid), "{pid}: {run:#?}");
    let file = root["error_file"].as_str().expect("it left one");
    assert!(fs::read_to_string(file).expect("it is there").contains("boom"));
    let root_cause = report["root_cause"].as_str().expect("it is known");
    let host = report["host"].as_str().expect("a name");
    assert!(root_cause.contains(&format!(", host {host}, pid ")), "one name of this host: {root_cause}");
    assert!(
        run.stderr.contains(&format!("dlrover-run: root cause: {root_cause}\n")),
        "{root_cause}: {run:#?}"
    );
    let [other] = &report["other_failures"].as_array().expect("a list")[..] else { panic!("{report:#}") };
    assert_eq!((&other["rank"], &other["signal"]), (&json!(0), &json!("SIGTERM")));
    assert_eq!(other["exit_code"], json!(null));
    assert_eq!(
        other["reason"],
        "killed by SIGTERM, which this launcher sends to the other workers after the first failure",
        "and no other process"
    );
}

#[test]
fn a_run_that_is_stopped_says_by_what() {
    let run = launch().flags(["--propagate-exit-code"]).steps(&["touch started", "hang"]).start();
    run.await_file("started");
    run.signal(Signal::SIGTERM);
    let run = run.finish().expect_code(143);
    let report = report(run.dir());
    assert_eq!((&report["outcome"], &report["exit_code"]), (&json!("stopped"), &json!(143)));
    assert_eq!(report["reason"], "stopped by SIGTERM");
}

#[test]
fn a_run_that_cannot_start_says_why() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let http = format!("--http={}", taken.local_addr().expect("it is bound"));
    let run = launch().flags([&http]).steps(&["dump"]).finish().expect_code(1);
    let report = report(run.dir());
    assert_eq!((&report["outcome"], &report["world"]), (&json!("failed"), &json!(null)));
    let reason = report["reason"].as_str().expect("a reason");
    assert!(run.stderr.contains(reason), "{reason}: {run:#?}");
    assert_eq!(run.dumps(), []);
}

/// A FIFO that no process reads, as the error file of the launcher itself: opening it waits without end.
#[test]
fn an_error_file_that_cannot_be_written_holds_nothing_back() {
    let folder = tempfile::tempdir().expect("a directory");
    let fifo = folder.path().join("error.json");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let http = format!("--http={}", taken.local_addr().expect("it is bound"));
    let run = launch().flags([&http]).env("TORCHELASTIC_ERROR_FILE", &fifo).steps(&["dump"]).finish();
    let run = run.expect_code(1);
    let reason = report(run.dir())["reason"].as_str().expect("a reason").to_owned();
    let (before, after) = run.stderr.split_once(&reason).unwrap_or_else(|| panic!("{reason}: {run:#?}"));
    assert!(!before.contains("TORCHELASTIC_ERROR_FILE"), "the reason comes first: {run:#?}");
    assert!(after.contains("cannot write the error file of the launcher itself"), "{run:#?}");
}

#[test]
fn the_variable_names_the_file_and_the_option_takes_precedence() {
    let run =
        Launch::new(programs!().launcher).flags(["--standalone"]).env("DLROVER_REPORT_JSON", "run.json");
    report(run.finish().expect_code(0).dir());
    let run = launch().env("DLROVER_REPORT_JSON", "other.json").finish().expect_code(0);
    report(run.dir());
    assert_eq!(run.file("other.json"), None);
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_workers_start() {
    for place in ["/no/such/folder/run.json", "/dev/null", "/proc/run.json", "."] {
        let run = launch().flags([format!("--report-json={place}")]).steps(&["dump"]).finish().expect_code(1);
        assert!(
            run.stderr.starts_with(&format!("dlrover-run: error: `--report-json={place}`: ")),
            "{run:#?}"
        );
        assert_eq!(run.dumps(), []);
    }
}

#[test]
fn a_folder_that_is_gone_at_the_end_does_not_change_the_exit_code() {
    let run = launch().flags(["--report-json=folder/run.json"]).steps(&["touch started", "work"]);
    fs::create_dir(run.dir().join("folder")).expect("our own directory");
    let run = run.start();
    run.await_file("started");
    fs::remove_dir(run.dir().join("folder")).expect("it is empty");
    run.touch("go");
    let run = run.finish().expect_code(0);
    let told = "dlrover-run: cannot write the report folder/run.json (--report-json): No such file or directory \
                (os error 2); the exit code is not affected";
    assert!(run.stderr.contains(told), "{run:#?}");
}

/// Every object of the schema names all of its properties as required, and allows no others.
fn closed(at: &str, schema: &Value, found: &mut usize) {
    let Some(parts) = schema.as_object() else { return };
    if schema["type"] == "object" {
        *found += 1;
        assert_eq!(schema["additionalProperties"], json!(false), "{at}");
        let named = schema["properties"].as_object().expect("it has some").len();
        assert_eq!(schema["required"].as_array().expect("all of them").len(), named, "{at}");
    }
    parts.iter().for_each(|(name, part)| closed(&format!("{at}/{name}"), part, found));
}

#[test]
fn the_schema_is_valid_and_closed() {
    assert!(jsonschema::meta::is_valid(&SCHEMA));
    let mut found = 0;
    closed("", &SCHEMA, &mut found);
    assert_eq!(found, 3);
    let failure = json!({
        "rank": 1, "local_rank": 1, "node_rank": 0, "host": "h", "pid": 7, "exit_code": 3, "signal": null,
        "out_of_memory": false, "time": "2026-07-01T12:00:00.000Z", "reason": "exited with code 3", "last_lines": ["x"],
        "message": null, "error_file": null, "stdout_log": null, "stderr_log": null
    });
    let right = json!({
        "schema": "dlrover.run-report/v1", "version": "0.1.0", "run_id": "none", "host": "h", "outcome": "failed",
        "exit_code": 1, "reason": "rank 1 exited with code 3", "started": "2026-07-01T12:00:00.000Z",
        "ended": "2026-07-01T12:00:01.000Z", "seconds": 1.0, "restarts": 0, "max_restarts": 0, "node_rank": 0,
        "world": {
            "round": 0, "nodes": 1, "world_size": 2, "local_world_size": 2, "first_rank": 0,
            "master_addr": "localhost", "master_port": 29500
        },
        "root_cause": "rank 1: exited with code 3", "first_failure": failure, "other_failures": [], "log_folder": null
    });
    check(&right);
    for (at, value) in [
        ("/schema", json!("dlrover.run-report/v2")),
        ("/outcome", json!("succeeded")),
        ("/exit_code", json!(0)),
        ("/reason", json!(null)),
        ("/started", json!("2026-07-01 12:00:00")),
        ("/world/world_size", json!(0)),
        ("/first_failure/signal", json!("SIGTERM")),
        ("/first_failure/exit_code", json!(null)),
        ("/first_failure/last_lines", json!(vec!["x"; 21])),
    ] {
        let mut wrong = right.clone();
        *wrong.pointer_mut(at).expect("it is there") = value;
        assert!(!DOCUMENT.is_valid(&wrong), "{at}");
    }
}
