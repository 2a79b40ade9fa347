//! `dlrover-diag switchbox`, with a probe that prints a file.
#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::{Value, json};

fn diag(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-diag"));
    command.arg("switchbox").args(arguments).env_remove("DLROVER_SWITCHBOX_PROBE");
    command.output().unwrap()
}

/// The check of pairs 0:1 and 2:4 that have these MB/s.
fn of(values: [f64; 2], more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    let result = |pair: [u32; 2], dir: &str, value| json!({"pair": pair, "dir": dir, "mbps": value, "path": "metaxlink"});
    let results = [([0, 1], values[0]), ([2, 4], values[1])]
        .into_iter()
        .flat_map(|(pair, value)| [result(pair, "ab", value), result(pair, "ba", value + 1.0)]);
    fs::write(&file, json!({"v": 1, "results": results.collect::<Vec<_>>()}).to_string()).unwrap();
    let probe = format!("--switchbox-probe=cat '{}'", file.display());
    let arguments: Vec<&str> =
        ["--box-pairs", "0:1", "2:4", &probe].into_iter().chain(more.iter().copied()).collect();
    diag(&arguments)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn enough_good_pairs_pass_and_the_table_has_the_bad_ones() {
    let output = of([50_000.0, 9999.9], &["--min-channels=1"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = text(&output.stdout);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows[1],
        ["0:1", "-", "ab", "50000.0", "50000.0", "50000.0", "5/5", "metaxlink", "good", "(alone)"]
    );
    assert_eq!(
        rows[3],
        ["2:4", "-", "ab", "9999.9", "9999.9", "9999.9", "0/5", "metaxlink", "slow", "(alone)"]
    );
    assert!(table.lines().last().unwrap().starts_with("1 of 2 pairs good, 1 needed: degraded, "), "{table}");
}

#[test]
fn too_few_are_exit_code_1_with_the_reason_in_the_document() {
    let output = of([50_000.0, 0.0], &["--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&document["verdict"], &document["good"]), (&json!("node fault"), &json!(1)));
    assert_eq!(document["pairs"][1]["reason"], "dead", "{document:#}");
    let said = text(&output.stderr);
    assert!(said.contains("dlrover-diag: switchbox check: pair 2:4: dead, 0 MB/s in 5 solo runs"), "{said}");
}

#[test]
fn impossible_pairs_are_exit_code_2() {
    for (arguments, expected) in [
        (&["--box-pairs", "0:1", "1:2"][..], "socket 1 is in 0:1 and in 1:2"),
        (&["--box-pairs", "0:0"], "0:0 pairs a socket with itself"),
        (&["--min-bandwidth", "1e99"], "expected a bandwidth in MB/s above 0 and at most 1000000000"),
        (&["--min-channels", "9"], "--box-pairs names only 4 pairs"),
        (&["--switchbox-path", "host"], "invalid value 'host'"),
    ] {
        let output = diag(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(expected), "{output:?}");
    }
}

#[test]
fn a_probe_without_results_is_shown_with_its_output() {
    let output = diag(&["--box-pairs", "0:1", "--switchbox-probe", "echo 'no driver' >&2; exit 3"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("pair 0:1: probe failed, exited with code 3, output: no driver"), "{said}");
    let table = text(&output.stdout);
    assert!(table.contains("0 of 1 pair good, 1 needed: untested, "), "{table}");
    assert!(
        table.trim_end().ends_with("gave no usable answer for any pair: run it by hand on this node"),
        "{table}"
    );
}

#[test]
fn the_outcome_is_printed_once() {
    const OUTCOME: &str = "2 of 2 pairs good, 2 needed: ok, ";
    let output = of([50_000.0; 2], &[]);
    let (table, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((table.matches(OUTCOME).count(), said.matches(OUTCOME).count()), (1, 0), "{table}{said}");
    assert!(said.contains("switchbox check: measuring 0:1 2:4 by "), "{said}");
    // A document has no such line.
    let said = text(&of([50_000.0; 2], &["--json"]).stderr);
    assert_eq!(said.matches(OUTCOME).count(), 1, "{said}");
}

#[test]
fn without_a_probe_the_message_names_the_option() {
    if Path::new("/proc/driver/nvidia").exists() || Path::new("/sys/class/mxcd").exists() {
        println!("skipped: there is something");
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-diag"));
    command.args(["switchbox", "--switchbox-probe=auto"]).env("SWITCHBOX_CHECK_TOOL_PATH", "/nowhere");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    let end =
        "; choose a probe with --switchbox-probe (--switchbox-probe=cuda says what NVIDIA's driver reports)";
    assert!(said.trim_end().ends_with(end), "{said}");
}
