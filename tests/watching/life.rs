//! A job from its first node to its end, watched from everywhere at once: all agree.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use nix::sys::signal::Signal;
use serde_json::Value;
use support::{
    cluster::{Cluster, kill_node},
    free_port,
    launch::Launch,
    programs,
};

use crate::{agreement::seen_alike, check, diag, diag_command, get, metric, status};

fn states(status: &Value) -> Vec<&str> {
    status["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|node| node["state"].as_str().expect("a state"))
        .collect()
}

#[test]
fn a_job_is_seen_alike_by_status_page_and_metrics() {
    let port = free_port();
    let state = tempfile::tempdir().unwrap();
    let state_dir = format!("--state-dir={}", state.path().display());
    let http = format!("--http={port}");
    let flags = ["--reconnect-grace=0.5", "--heartbeat-timeout=120", &http, &state_dir];
    let mut job = Cluster::with_master(programs!(), &flags);
    let page = format!("http://127.0.0.1:{port}/");
    assert!(job.await_master_log(&page).contains("page and metrics of the job: "));
    assert_eq!(get(port, "/healthz", "").0, 200);
    assert_eq!(status(port)["phase"], "pending");

    // A follower from before the first node to the end.
    let followed = File::create(job.dir().join("followed")).unwrap();
    let mut follower = diag_command(&["status", job.address(), "--watch", "--json"])
        .stdout(followed)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();

    // Rank 3 fails once, in the round that it is in first.
    let steps = ["dump", "3@1 await fail", "3@1 exit 3", "await go"];
    let node = |rank: u8| {
        let line = ["--nnodes=3:4", "--max-restarts=1", "--network-check", "--network-check-timeout=120"];
        job.ranked(rank).flags(line).flags(["--rdzv-conf=last_call_timeout=1"]).steps(&steps).start()
    };
    let is_in = |phase: &'static str, states_of: &'static [&'static str]| {
        move |it: &Value| it["phase"] == phase && states(it) == states_of
    };
    let stopped = node(2);
    let joined = seen_alike(&job, port, "joined", is_in("pending", &["waiting"]));
    assert_eq!(joined["round"], Value::Null);
    // A check waits for a node that does not answer.
    stopped.signal(Signal::SIGSTOP);
    let [first, second] = [node(0), node(1)];
    let _checked = seen_alike(&job, port, "check", is_in("check", &["checking"; 3]));
    stopped.signal(Signal::SIGCONT);
    let nodes = [first, second, stopped];
    let _world = job.await_world(3, 0);
    let now = seen_alike(&job, port, "running", is_in("running", &["running"; 3]));
    assert_eq!(now["round"], 0, "{now:#}");
    assert_eq!(now["check"]["nodes"].as_array().unwrap().len(), 3);
    let metrics = get(port, "/metrics", "").1;
    let world_size = now["world_size"].as_f64().expect("it runs");
    assert_eq!(metric(&metrics, "dlrover_world_size"), world_size);
    let info = format!("dlrover_job_info{{job={}}}", now["job"]);
    assert_eq!(metric(&metrics, &info), 1.0);
    assert!(!metrics.contains("\ndlrover_job_succeeded "), "it has not ended: {metrics}");
    let asked = diag(&["status", job.address(), "--json"]);
    let asked: Value = serde_json::from_slice(&asked.stdout).expect("JSON");
    assert_eq!(
        (&asked["nodes"][1]["first_rank"], &asked["world_size"]),
        (&now["nodes"][1]["first_rank"], &now["world_size"])
    );
    let shown = diag(&["status", job.address()]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(": running, round 0 on 3 nodes, 3 workers\n"), "{shown}");

    let fourth = node(3);
    let _world = job.await_world(4, 1);
    let now = seen_alike(&job, port, "scale-out", is_in("running", &["running"; 4]));
    assert_eq!((&now["round"], &now["totals"]["worker_restarts"]), (&1.into(), &0.into()), "{now:#}");

    job.touch("fail");
    let _world = job.await_world(4, 2);
    let now = seen_alike(&job, port, "failure", is_in("running", &["running"; 4]));
    assert_eq!((&now["round"], &now["totals"]["worker_restarts"]), (&2.into(), &1.into()), "{now:#}");

    // The node rank that is gone keeps its restarts.
    kill_node(fourth);
    let _world = job.await_world(3, 3);
    let now = seen_alike(&job, port, "loss", is_in("running", &["running"; 3]));
    assert_eq!((&now["totals"]["node_losses"], &now["totals"]["worker_restarts"]), (&1.into(), &1.into()));
    assert!(now["last_failure"]["node"].as_str().unwrap().starts_with("node rank 3 "), "{now:#}");
    let replacement = node(3);
    let _world = job.await_world(4, 4);
    let before = seen_alike(&job, port, "replacement", is_in("running", &["running"; 4]));

    // The master dies and continues: nothing that it counted is lost.
    job.kill_master();
    job.restart_master(&flags);
    let now = seen_alike(&job, port, "the master is back", is_in("running", &["running"; 4]));
    assert_eq!((&now["round"], &now["totals"]["rounds"]), (&before["round"], &before["totals"]["rounds"]));
    assert_ne!(now["master"]["epoch"], before["master"]["epoch"]);
    // What the master had recorded; the time since the last event dies with it.
    let rounds = before["rounds"].as_array().unwrap();
    let recorded: f64 = rounds[..4].iter().map(|round| round["ran_seconds"].as_f64().unwrap()).sum();
    assert!(now["totals"]["training_seconds"].as_f64().unwrap() >= recorded - 1e-6, "{recorded}: {now:#}");
    // The follower has found the new master.
    let epoch = now["master"]["epoch"].as_str().unwrap();
    let followed = job.dir().join("followed");
    job.wait("the follower to be back", || {
        fs::read_to_string(&followed).unwrap().contains(epoch).then_some(())
    });
    let events = diag(&["events", job.address(), "--no-follow"]);
    let events = String::from_utf8(events.stdout).unwrap();
    for words in [
        " joined\n",
        " round 0: workers start on 3 nodes\n",
        " was lost: ",
        " round 4: workers start on 4 nodes\n",
    ] {
        assert!(events.contains(words), "{words}: {events}");
    }

    job.ends_well(nodes.into_iter().chain([replacement]));
    let code = follower.wait().unwrap().code();
    let followed = fs::read_to_string(&followed).unwrap();
    let documents: Vec<Value> =
        followed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    documents.iter().for_each(check);
    let last = documents.last().expect("documents");
    assert_eq!((code, last["end"]["succeeded"].as_bool()), (Some(0), Some(true)), "{last:#}");
    let rounds: Vec<u64> = documents.iter().filter_map(|it| it["round"].as_u64()).collect();
    assert!(rounds.is_sorted(), "{rounds:?}");
}

#[test]
fn the_words_of_the_last_failure_are_in_the_status_and_survive_the_master() {
    let port = free_port();
    let state = tempfile::tempdir().unwrap();
    let state_dir = format!("--state-dir={}", state.path().display());
    let http = format!("--http={port}");
    let flags = [&*http, &state_dir];
    let mut job = Cluster::with_master(programs!(), &flags);
    let steps = ["dump", "1@0 await fail", "1@0 raise no data in shard 13", "await go"];
    let line = ["--nnodes=2", "--max-restarts=1"];
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(line).steps(&steps).start());
    let _world = job.await_world(2, 0);
    job.touch("fail");
    let _world = job.await_world(2, 1);
    let failure = job.wait("the words of rank 1", || {
        let failure = status(port)["last_failure"].clone();
        failure["root_cause"].is_string().then_some(failure)
    });
    let root_cause = failure["root_cause"].as_str().unwrap();
    assert!(root_cause.starts_with("rank 1 (local rank 0, node rank 1, host "), "{root_cause}");
    assert!(root_cause.ends_with("): exited with code 1: RuntimeError: no data in shard 13"), "{root_cause}");
    let lines = failure["last_lines"].as_array().unwrap();
    assert_eq!(lines.last().unwrap(), "RuntimeError: no data in shard 13");
    let shown = String::from_utf8(diag(&["status", job.address()]).stdout).unwrap();
    assert!(shown.contains("\n    | RuntimeError: no data in shard 13\n"), "{shown}");

    job.kill_master();
    job.restart_master(&flags);
    let after = job.wait("the master to be back", || Some(status(port)["last_failure"].clone()));
    for field in ["round", "node", "reason", "root_cause", "last_lines"] {
        assert_eq!(after[field], failure[field], "{field}");
    }
    job.ends_well(nodes);
}

#[test]
fn a_master_that_is_not_there_is_named() {
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    for command in [&["status", &address][..], &["events", &address], &["status", &address, "--watch"]] {
        let output = diag(command);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(&format!("cannot connect to the job master at {address}")), "{stderr}");
    }
    let output = diag(&["status", "nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("`nowhere` is not an address: give HOST:PORT"));
}

/// A renamed metric must not leave the dashboard empty.
#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let dashboard = include_str!("../../packaging/grafana-dashboard.json");
    let _json: Value = serde_json::from_str(dashboard).expect("JSON");
    let sources = include_str!("../../master/src/http/metrics.rs");
    let mut asked = 0;
    for rest in dashboard.split("dlrover_").skip(1) {
        let name: String =
            rest.chars().take_while(|letter| letter.is_ascii_lowercase() || *letter == '_').collect();
        let family = name.trim_end_matches("_bucket").trim_end_matches("_total");
        assert!(sources.contains(&format!("\"dlrover_{family}\"")), "dlrover_{name}");
        asked += 1;
    }
    assert!(asked > 10, "{asked}");
}

/// The port of `--http` is mistaken for that of the master, and the endpoint's port may have been taken by anything.
#[test]
fn a_web_server_is_not_taken_for_a_master() {
    let port = free_port();
    let mut job = Cluster::with_master(programs!(), &[&format!("--http={port}")]);
    let page = format!("127.0.0.1:{port}");
    let says = |at: &str| format!("a web server or a proxy answers at {at}, and not a job master: ");
    for command in ["status", "events"] {
        let output = diag(&[command, &page]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && stderr.contains(&says(&page)), "{stderr}");
    }
    // One that does not speak HTTP/2.
    let mut other = Command::new("python3")
        .args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1"])
        .current_dir(job.dir())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(other.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let other_port = line.split(' ').nth(5).unwrap_or_else(|| panic!("{line}"));
    let other_at = format!("127.0.0.1:{other_port}");
    let output = diag(&["status", &other_at]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && stderr.contains(&says(&other_at)), "{stderr}");
    for at in [&page, &other_at] {
        let endpoint = format!("--rdzv-endpoint={at}");
        let line = ["--nnodes=2", "--rdzv-backend=c10d", &endpoint, "--rdzv-conf=join_timeout=1"];
        let node = Launch::new(programs!().launcher).flags(line).steps(&["hang"]).finish().expect_code(1);
        assert!(node.stderr.contains(&says(at)), "{node:#?}");
    }
    other.kill().unwrap();
    let _status = other.wait().unwrap();
    job.signal_master(Signal::SIGTERM);
    let _gone = job.finish_master();
}
