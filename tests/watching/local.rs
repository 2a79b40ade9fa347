//! On a node, without an address: the launcher that runs there is asked.

use serde_json::Value;
use support::{cluster::Cluster, programs};

use crate::{check, diag};

#[test]
fn a_standalone_run_is_found_by_its_run_id() {
    let job = Cluster::of_lines(programs!());
    let id = format!("watched-{}", std::process::id());
    let rdzv = format!("--rdzv-id={id}");
    // A job of one node on a c10d line, whose master has a token that no other process knows.
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", support::free_port());
    let run = job.line().flags(["--nnodes=1", "--rdzv-backend=c10d", &endpoint, &rdzv]).start();
    let _world = job.await_world(1, 0);
    let output = diag(&["status", "--run-id", &id, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    check(&status);
    assert_eq!((&status["job"], &status["phase"]), (&id.as_str().into(), &"running".into()));
    let events = diag(&["events", "--run-id", &id, "--no-follow", "--json"]);
    let events = String::from_utf8(events.stdout).unwrap();
    let numbers: Vec<u64> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());

    let other = diag(&["status", "--run-id", "no-such-run"]);
    assert_eq!(other.status.code(), Some(1));
    let stderr = String::from_utf8(other.stderr).unwrap();
    assert!(
        stderr.contains("runs a job with the run id no-such-run; there are: ") && stderr.contains(&id),
        "{stderr}"
    );
    job.go();
    job.finish([run], 0);
}
