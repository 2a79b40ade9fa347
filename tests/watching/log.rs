//! The launcher's and the job master's own lines: `--log-format`, `-q`, `-v`, LOGLEVEL.

use serde_json::Value;
use support::{
    cluster::Cluster,
    launch::{Launch, Outcome},
    programs,
};

/// What the workers print, which no option touches.
const WORKERS: &[&str] = &["out {\"not\": \"ours\"}\\n", "err 2026 plain\\n"];

fn launch() -> Launch {
    Launch::new(programs!().launcher).flags(["--standalone", "--nproc-per-node=2"])
}

/// A log line as an object, with exactly the documented keys.
#[track_caller]
fn object(line: &str) -> Value {
    let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let keys: Vec<&String> = object.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["timestamp", "level", "target", "message", "fields"], "{line}");
    is_time(object["timestamp"].as_str().expect("a time"));
    object
}

/// RFC 3339 in UTC, such as 2026-07-01T12:00:00.000Z.
#[track_caller]
fn is_time(word: &str) {
    let form: String = word.chars().map(|sign| if sign.is_ascii_digit() { '0' } else { sign }).collect();
    assert_eq!(form, "0000-00-00T00:00:00.000Z", "{word}");
}

/// The launcher's lines.
fn own_lines(run: &Outcome) -> Vec<&str> {
    run.stderr.lines().filter(|line| *line != "2026 plain").collect()
}

/// What INFO shows, in this order.
const INFO: [&str; 7] = [
    "configuration: run id ",
    "rendezvous: this node alone",
    "log directory: /",
    "round 0: node rank 0 of 1, ranks 0-1 of 2, MASTER_ADDR=",
    "round 0: started local rank ",
    "the run succeeded",
    "the run ended after ",
];

#[track_caller]
fn shows_all(messages: &[String], run: &Outcome) {
    let mut rest = messages.iter();
    for words in INFO {
        assert!(rest.any(|message| message.contains(words)), "{words}: {run:#?}");
    }
}

#[test]
fn json_is_an_object_a_line_and_workers_are_left_alone() {
    let run = launch().flags(["--log-format=json", "-v"]).steps(WORKERS).finish().expect_code(0);
    assert_eq!(run.stdout, "{\"not\": \"ours\"}\n".repeat(2));
    assert_eq!(run.stderr.lines().filter(|line| *line == "2026 plain").count(), 2, "{run:#?}");
    let lines: Vec<Value> = own_lines(&run).into_iter().map(object).collect();
    let messages: Vec<String> =
        lines.iter().map(|line| line["message"].as_str().expect("text").to_owned()).collect();
    shows_all(&messages, &run);
    let notice = lines.iter().find(|line| line["target"] == "dlrover-run").expect("OMP_NUM_THREADS is set");
    assert_eq!(notice["level"], "WARN", "{notice}");
}

#[test]
fn a_failure_is_one_error_in_json() {
    let run = launch().flags(["--log-format=json"]).steps(&["1 err boom\\n", "1 exit 3", "0 hang"]);
    let run = run.finish().expect_code(1);
    let lines: Vec<&str> = run.stderr.lines().filter(|line| *line != "boom").collect();
    let last = object(lines.last().expect("a report"));
    assert_eq!((&last["level"], &last["target"]), (&"ERROR".into(), &"dlrover-run".into()));
    let message = last["message"].as_str().expect("text");
    assert!(message.contains("ChildFailedError: \n===") && message.contains("    | boom"), "{message}");
    let root_cause = last["fields"]["root_cause"].as_str().expect("it is known");
    assert!(message.contains(&format!("root cause: {root_cause}\n")), "{last}");
    let lines: Vec<Value> = lines.into_iter().map(object).collect();
    let failed = lines.iter().find(|line| line["fields"]["rank"] == 1).expect("the failure as it is noticed");
    assert_eq!(failed["level"], "WARN", "{failed}");
    let fields = &failed["fields"];
    assert_eq!(
        (&fields["exit_code"], &fields["signal"], &fields["is_restarted"]),
        (&3.into(), &Value::Null, &false.into())
    );
}

#[test]
fn text_has_the_time_in_log_lines_and_not_in_the_report() {
    for (flags, variable) in [(&["-v"][..], "WARNING"), (&[], "INFO")] {
        let run = launch().flags(flags).env("LOGLEVEL", variable).steps(&["0 exit 0", "1 exit 0"]);
        let run = run.finish().expect_code(0);
        let messages: Vec<String> = own_lines(&run)
            .into_iter()
            .map(|line| {
                let (time, message) = line.split_once(' ').expect("a time and a message");
                is_time(time);
                message.to_owned()
            })
            .collect();
        shows_all(&messages, &run);
        assert!(messages.iter().any(|it| it.starts_with("dlrover-run: OMP_NUM_THREADS ")), "{run:#?}");
    }
    let run = launch().steps(&["1 exit 3", "0 hang"]).finish().expect_code(1);
    let report = run.stderr.lines().position(|line| line.starts_with("dlrover-run: failed (exitcode: 3)"));
    let lines: Vec<&str> = run.stderr.lines().collect();
    let report = &lines[report.expect("the report begins without a time")..];
    assert!(report.iter().any(|line| line.starts_with("dlrover-run: rank 1 ")), "{run:#?}");
}

#[test]
fn a_filter_shows_a_part_and_an_invalid_one_is_named() {
    let run = launch().env("DLROVER_LOG", "agent=debug").steps(WORKERS).finish().expect_code(0);
    assert!(run.stderr.contains(" DEBUG agent::agent: "), "{run:#?}");
    let run = launch().env("DLROVER_LOG", "agent=lots").steps(WORKERS).finish().expect_code(0);
    assert!(
        run.stderr.contains("`DLROVER_LOG=agent=lots` is ignored: give a level, or PART=LEVEL"),
        "{run:#?}"
    );
}

#[test]
fn debug_lines_are_of_this_project_only() {
    let run =
        launch().flags(["-vv", "--log-format=json"]).steps(&["1 exit 3", "0 hang"]).finish().expect_code(1);
    let lines: Vec<Value> = own_lines(&run).into_iter().map(object).collect();
    let ours = ["agent", "launcher", "master", "dlrover-run", "dlrover-master", "probes", "processes"];
    let of =
        |line: &Value| line["target"].as_str().expect("a target").split("::").next().unwrap_or("").to_owned();
    let foreign: Vec<&Value> = lines.iter().filter(|line| !ours.contains(&of(line).as_str())).collect();
    assert!(foreign.is_empty(), "{foreign:#?}");
    assert!(lines.iter().any(|line| line["level"] == "DEBUG"), "{run:#?}");
    let all = launch().env("DLROVER_LOG", "debug").steps(WORKERS).finish().expect_code(0);
    assert!(all.stderr.contains(" DEBUG h2::"), "{all:#?}");
}

/// The master of such a run ends with it.
#[test]
fn the_end_of_a_single_node_run_is_no_loss_of_the_master() {
    let run = launch().flags(["-v"]).steps(&["1 exit 3", "0 hang"]).finish().expect_code(1);
    assert!(!run.stderr.contains("no connection to the job master"), "{run:#?}");
}

#[test]
fn quiet_leaves_the_report() {
    let run = launch().flags(["-q"]).env("LOGLEVEL", "INFO").steps(WORKERS).finish().expect_code(0);
    assert_eq!(own_lines(&run), [""; 0]);
    let run = launch().flags(["--quiet"]).steps(&["1 exit 3", "0 hang"]).finish().expect_code(1);
    let first = run.stderr.lines().next();
    assert!(first.is_some_and(|line| line.starts_with("dlrover-run: root cause: rank 1 (")), "{run:#?}");
    assert!(run.stderr.contains("\ndlrover-run: failed (exitcode: 3)"), "{run:#?}");
    assert!(run.stderr.contains("dlrover-run: rank 1 "), "{run:#?}");
    let run = launch().flags(["-qv"]).finish().expect_code(2);
    assert!(run.stderr.contains("--quiet and --verbose contradict each other"), "{run:#?}");
}

#[test]
fn the_variable_is_the_default_and_a_bad_one_is_named() {
    let run = launch().env("DLROVER_LOG_FORMAT", "json").steps(WORKERS).finish().expect_code(0);
    let lines: Vec<Value> = own_lines(&run).into_iter().map(object).collect();
    assert!(!lines.is_empty(), "OMP_NUM_THREADS is set: {run:#?}");
    let run = launch().env("DLROVER_LOG_FORMAT", "json").flags(["--log-format=text"]);
    let run = run.steps(WORKERS).finish().expect_code(0);
    own_lines(&run).into_iter().for_each(|line| is_time(line.split(' ').next().expect("a word")));
    let run = launch().env("DLROVER_LOG_FORMAT", "xml").finish().expect_code(1);
    assert!(run.stderr.contains("DLROVER_LOG_FORMAT=xml"), "{run:#?}");
}

#[test]
fn the_masters_lines_are_objects_too() {
    let mut job = Cluster::with_master(programs!(), &["--log-format=json"]);
    let node = job.node(0).flags(["--log-format=json", "--nnodes=1"]).start();
    let _world = job.await_world(1, 0);
    job.go();
    job.finish([node], 0);
    let master = job.finish_master();
    let lines: Vec<Value> = master.stderr.lines().map(object).collect();
    assert!(lines.iter().all(|line| line["target"] == "dlrover-master"), "{master:#?}");
    let has =
        |words: &str| lines.iter().any(|it| it["message"].as_str().is_some_and(|it| it.contains(words)));
    assert!(has("listening on ") && has("the job succeeded"), "{master:#?}");
}

#[test]
fn a_launcher_that_serves_the_master_names_it() {
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", support::free_port());
    // The master reports the round that is over.
    let run = Launch::new(programs!().launcher)
        .flags(["--nnodes=1:2", "--rdzv-backend=c10d", &endpoint, "--rdzv-conf=lastcall_timeout=0"])
        .flags(["--max-restarts=1", "--log-format=json"])
        .steps(&["@0 exit 3"]);
    let run = run.finish().expect_code(0);
    let lines: Vec<Value> = run.stderr.lines().map(object).collect();
    let ours = |line: &&Value| line["target"] == "dlrover-master";
    let message = lines.iter().find(ours).and_then(|line| line["message"].as_str()).unwrap_or_default();
    assert!(message.starts_with("round 0 is over"), "{run:#?}");
}
