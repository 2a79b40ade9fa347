//! On a node, without an address: the launcher that runs there is asked.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _, stderr},
    net::TcpStream,
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

use crate::{check, diag, diag_command, status};

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
        stderr.contains("no job with run id no-such-run on this node; jobs here:\n  --pid ")
            && stderr.contains(&id),
        "{stderr}"
    );
    job.go();
    job.finish([run], 0);
}

/// The master of such a run is gone with its launcher, at once.
#[test]
fn all_that_follow_a_standalone_run_see_how_it_failed() {
    let port = free_port();
    let http = format!("--http={port}");
    let run = Launch::new(programs!().launcher)
        .flags(["--standalone", "--nproc-per-node=2", &http])
        .steps(&["touch started", "1 await fail", "1 raise no data in shard 13", "hang"]);
    let run = run.start();
    run.await_file("started");
    let id = status(port)["job"].as_str().expect("a name").to_owned();
    let [events, watch] = [&["events"][..], &["status", "--watch", "--json"]].map(|command| {
        let mut child = diag_command(&[command, &["--run-id", &id]].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut first = String::new();
        lines.read_line(&mut first).expect("it follows");
        (child, lines, first)
    });
    let mut page = TcpStream::connect(("127.0.0.1", port)).expect("the web server listens");
    write!(page, "GET /status-stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("it reads");
    let mut page = BufReader::new(page);
    let mut line = String::new();
    while !line.starts_with("data:") {
        line.clear();
        assert_ne!(page.read_line(&mut line).expect("it answers"), 0, "a status comes first");
    }

    run.touch("fail");
    let run = run.finish().expect_code(1);
    // On its own node, which is the only one, the rank of the node is not said.
    let summary = run.stderr.lines().find_map(|line| line.strip_prefix("dlrover-run: root cause: "));
    let summary = summary.expect("it is printed").replace("local rank 1, ", "local rank 1, node rank 0, ");
    let mut ends = [events, watch].into_iter().map(|(child, mut lines, mut text)| {
        lines.read_to_string(&mut text).expect("it ends");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!((output.status.code(), output.stderr), (Some(1), Vec::new()), "{text}");
        text
    });
    let events = ends.next().expect("the first");
    let last: Vec<&str> =
        events.lines().rev().take(2).map(|line| line.split_once(' ').expect("a time").1).collect();
    assert!(
        last[0].starts_with("the job failed: ") && last[1] == format!("root cause: {summary}"),
        "{events}"
    );

    let watch = ends.next().expect("the second");
    let last: Value = serde_json::from_str(watch.lines().last().expect("a status")).expect("JSON");
    check(&last);
    assert_eq!((&last["phase"], &last["end"]["succeeded"]), (&"over".into(), &false.into()));
    assert_eq!(last["last_failure"]["root_cause"], summary, "{last:#}");

    let mut rest = String::new();
    page.read_to_string(&mut rest).expect("it ends");
    assert!(rest.contains(r#""end":{"succeeded":false"#), "{rest}");
}

/// A later job of this node may have the same name, as `--rdzv-id` gives it.
#[test]
fn a_follower_of_a_launcher_that_was_killed_ends_and_takes_no_other_job() {
    let id = format!("killed-{}", std::process::id());
    let start = || {
        let line = ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-id", &id];
        let run = Launch::new(programs!().launcher).flags(line).steps(&["touch started", "hang"]).start();
        run.await_file("started");
        run
    };
    let first = start();
    let mut child = diag_command(&["events", "--run-id", &id])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    lines.read_line(&mut String::new()).expect("it follows");
    let second = start();
    kill_node(first);
    let output = child.wait_with_output().expect("it ends");
    kill_node(second);
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: the launcher with pid "), "{stderr}");
    assert!(stderr.contains(" on this node, so how the job ended is unknown; "), "{stderr}");
}

/// Jobs of one node have no run id of their own, as with torchrun.
#[test]
fn of_several_jobs_one_is_chosen_by_its_launcher() {
    let start = || {
        let run = Launch::new(programs!().launcher).steps(&["touch started", "hang"]).start();
        run.await_file("started");
        run
    };
    let runs = [start(), start()];
    let pids = runs.each_ref().map(|run| run.pid().to_string());
    let several = diag(&["status"]);
    let stderr = String::from_utf8(several.stderr).expect("text");
    assert_eq!(several.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("several jobs run on this node; choose one with --pid"), "{stderr}");
    for pid in &pids {
        let line = stderr.lines().find(|line| line.trim_start().starts_with(&format!("--pid {pid} ")));
        assert!(line.is_some_and(|line| line.contains("  run id ") && line.ends_with(".py")), "{stderr}");
        let output = diag(&["status", "--json", "--pid", pid]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        check(&status);
        let events = diag(&["events", "--no-follow", "--pid", pid]);
        assert_eq!(events.status.code(), Some(0), "{events:?}");
    }
    let [one, other] = pids.each_ref().map(|pid| {
        let status: Value =
            serde_json::from_slice(&diag(&["status", "--json", "--pid", pid]).stdout).expect("JSON");
        status["master"]["epoch"].clone()
    });
    assert_ne!(one, other, "each is asked for its own job");
    for run in runs {
        kill_node(run);
    }
    let gone = diag(&["status", "--pid", &pids[0]]);
    let stderr = String::from_utf8(gone.stderr).expect("text");
    assert_eq!(gone.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("no dlrover-run of this user has pid {} on", pids[0])), "{stderr}");
}

#[test]
fn a_job_that_ctrl_c_ends_says_so() {
    let run = Launch::new(programs!().launcher).steps(&["touch started", "hang"]).start();
    run.await_file("started");
    let mut child = diag_command(&["events", "--pid", &run.pid().to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    lines.read_line(&mut String::new()).expect("it follows");
    run.signal(Signal::SIGINT);
    let run = run.finish();
    let mut events = String::new();
    lines.read_to_string(&mut events).expect("it ends");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let end = "the job failed: the launcher was stopped by SIGINT (Ctrl-C)";
    assert!(events.trim_end().ends_with(end), "{events}\n{run:#?}");
}

/// Asks beside sockets that have the names of launchers: one that another user has opened, and one that says nothing.
const STRANGERS: &str = r#"
import os, socket, subprocess, sys, threading

def listen(name):
    at = socket.socket(socket.AF_UNIX)
    at.bind(f"\0dlrover-run.{name}")
    at.listen()
    return at

def answer(at):
    while True:
        peer, _ = at.accept()
        peer.recv(1)
        peer.sendall(b'{"error": "its\\nwords"}\n')
        peer.close()

def ask(*words):
    run = subprocess.run([sys.argv[1], "status", *words], capture_output=True, text=True)
    print(run.returncode, run.stderr.replace("\n", " "))

# The name of this process, whose user is root.
reader, writer = os.pipe()
stranger = os.fork()
if stranger == 0:
    os.setuid(65534)
    at = listen(os.getppid())
    os.write(writer, b"x")
    answer(at)
os.close(writer)
if not os.read(reader, 1):
    print("skipped: this root cannot become another user")
    sys.exit()
try:
    ask("--pid", str(os.getpid()))
    silent, honest = listen(2), listen(3)
    threading.Thread(target=answer, args=[honest], daemon=True).start()
    ask("--pid", "3", "--timeout", "60")
    ask("--pid", "2", "--timeout", "5")
    ask("--run-id", "x", "--timeout", "5")
finally:
    os.kill(stranger, 9)
    os.waitpid(stranger, 0)
"#;

#[test]
fn no_other_user_answers_for_a_launcher_and_none_delays_the_others() {
    let diag = diag_command(&[]).get_program().to_owned();
    let mut command = Command::new("unshare");
    command.args(["--net", "python3", "-c", STRANGERS]).arg(diag);
    let output = command.output().expect("unshare is there");
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() && !nix::unistd::geteuid().is_root() {
        writeln!(stderr(), "skipped: strangers' sockets need root").expect("standard error is open");
        return;
    }
    if text.starts_with("skipped: ") {
        write!(stderr(), "{text}").expect("standard error is open");
        return;
    }
    let lines: Vec<&str> = text.lines().collect();
    let [stranger, honest, silent, all] = lines[..] else { panic!("{output:?}") };
    assert!(
        stranger.starts_with("1 ") && stranger.contains("no dlrover-run of this user has pid "),
        "{stranger}"
    );
    assert!(honest.contains("the launcher with pid 3 has no status: its words"), "{honest}");
    let late = "the launcher with pid 2 did not answer within 4 s";
    assert!(silent.contains(late), "{silent}");
    assert!(all.contains(late) && all.contains("pid 3 has no status: its words"), "{all}");
}
