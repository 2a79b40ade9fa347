//! The switchbox of a node, by a tool that a test has written: what the vendor's would say.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use nix::sys::signal::Signal;
use serde_json::Value;
use support::{
    cluster::Cluster,
    launch::{Launch, Running},
    programs,
};

use super::{report::Report, schema};

const CHECK: [&str; 4] = ["--network-check", "--switchbox-check", "--switchbox-probe=mxom", "--nnodes=1:2"];

/// A job with a master that writes its report and runs a command for nodes at fault.
fn job() -> Cluster {
    let mut job = Cluster::of_lines(programs!());
    let report = format!("--taint-report={}", report_file(&job).display());
    let command = "--on-fault-node=cat >> \"$TMPDIR/at-fault\"; echo >> \"$TMPDIR/at-fault\"";
    let line = job.master_line().flags(["--port=0", "--reconnect-grace=0.5", &report, command]);
    job.start_master(line);
    job
}

fn report_file(job: &Cluster) -> PathBuf {
    job.dir().join("report.json")
}

/// What the check came to, and the document itself.
fn report(job: &Cluster) -> (Report, Value) {
    let text = job.wait("the report", || {
        let text = fs::read_to_string(report_file(job)).ok()?;
        Report::read(&text).map(|_| text)
    });
    (Report::read(&text).expect("as above"), serde_json::from_str(&text).expect("as above"))
}

/// A tool that says these MB/s for GPUs 0, 2, 3 and 6, the first ones of the default pairs.
fn tool(dir: &Path, name: &str, values: [&str; 4]) -> PathBuf {
    let [a, b, c, d] = values;
    let text = format!(
        "#!/bin/sh\ncase $2 in 0) v={a};; 2) v={b};; 3) v={c};; *) v={d};; esac\necho \"bandwidth:${{v}}MB/s\"\n"
    );
    let (draft, file) = (dir.join(format!("{name}.draft")), dir.join(name));
    fs::write(&draft, text).expect("a tool");
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).expect("a tool");
    // Moved by another process, so that no concurrent fork keeps it open for writing.
    let moved = std::process::Command::new("mv").args([&draft, &file]).status().expect("mv");
    assert!(moved.success());
    file
}

fn node(job: &Cluster, rank: u8, values: [&str; 4]) -> Launch {
    let tool = tool(job.dir(), &format!("tool-{rank}"), values);
    job.ranked(rank).flags(CHECK).env("SWITCHBOX_CHECK_TOOL_PATH", tool)
}

const GOOD: [&str; 4] = ["50040.12"; 4];

/// Waits until a launcher has printed `words`.
#[track_caller]
fn has_printed(job: &Cluster, node: &Running, words: &str) {
    let _output = job.await_output(node, words);
}

#[test]
fn a_node_with_too_few_good_channels_is_excluded_and_tainted_for_its_switchbox() {
    let mut job = job();
    let good = node(&job, 0, GOOD).start();
    let bad = node(&job, 1, ["50000.0", "9000.0", "9999.9", "0.0"]).start();
    let outcome = job.finish([bad], 201).remove(0);
    for words in [
        "switchbox check: measuring 0:1 2:4 3:5 6:7 by mxom (",
        "switchbox check: pair 2:4 (GPU 2 -> GPU 4): slow, 9000.0 MB/s in 5 solo runs",
        "switchbox check: pair 3:5 (GPU 3 -> GPU 5): slow, 9999.9 MB/s",
        "switchbox check: pair 6:7 (GPU 6 -> GPU 7): dead, 0 MB/s",
        "switchbox check: 1 of 4 pairs good, 2 needed: node fault, ",
        "excluded by the network check (local-fault): switchbox: 1 of 4 pairs good, 2 needed; ",
        "Check first: the accelerators' driver, and the optical modules and cables",
    ] {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    has_printed(&job, &good, "switchbox check: 4 of 4 pairs good, 2 needed: ok, ");
    let (report, document) = report(&job);
    assert_eq!(report.verdicts(), ["healthy", "local-fault"]);
    let found = &document["nodes"][1];
    assert_eq!((&found["component"], &found["excluded"]), (&"switchbox".into(), &true.into()), "{found:#}");
    assert_eq!(found["taint"]["value"], "switchbox", "{found:#}");
    let _world = job.await_world(1, 0);
    let _said = job.await_master_log("--on-fault-node succeeded for ");
    job.go();
    let _outcomes = job.finish([good], 0);
    let master = job.finish_master().expect_code(0);
    let lines = master.file("at-fault").expect("the command has written it");
    assert_eq!(lines.lines().count(), 1, "once: {lines}");
    let told: Value = serde_json::from_str(lines.trim()).expect("it gets JSON");
    schema::check_node(&told);
    assert_eq!(told["taint"]["value"], "switchbox", "{told:#}");
}

#[test]
fn a_degraded_node_trains_and_its_bad_channels_are_reported() {
    let mut job = job();
    let nodes = [node(&job, 0, GOOD).start(), node(&job, 1, ["50000.0", "50000.0", "9999.9", "0.0"]).start()];
    let _world = job.await_world(2, 0);
    has_printed(&job, &nodes[1], "switchbox check: pair 3:5 (GPU 3 -> GPU 5): slow, 9999.9");
    has_printed(&job, &nodes[1], "switchbox check: 2 of 4 pairs good, 2 needed: degraded, ");
    let (report, document) = report(&job);
    report.blames(&[]);
    assert_eq!(document["nodes"][0]["notes"], Value::Array(Vec::new()), "{document:#}");
    let notes = document["nodes"][1]["notes"].as_array().expect("as the schema says");
    assert_eq!(notes.len(), 2, "{document:#}");
    let last = "switchbox pair 6:7 (GPU 6 -> GPU 7): dead, 0 MB/s in 5 solo runs";
    assert_eq!(notes[1], last, "{document:#}");
    let output = job.await_master_log(&format!("degraded, {last}"));
    assert!(output.contains("2 of 2 nodes healthy"), "{output}");
    job.ends_well(nodes);
}

#[test]
fn a_host_without_a_probe_tool_reports_it_and_is_not_tainted() {
    if Path::new("/proc/driver/nvidia").exists() || Path::new("/sys/class/mxcd").exists() {
        println!("skipped: there is something");
        return;
    }
    let job = Cluster::of_lines(programs!());
    let report = report_file(&job);
    let flags = ["--standalone", "--network-check", "--switchbox-check"];
    let line = job.line().flags(flags).flags([format!("--taint-report={}", report.display())]);
    let outcome = line.env("SWITCHBOX_CHECK_TOOL_PATH", "/nowhere/mxom-client").finish().expect_code(1);
    let words = "dlrover-run: error: no switchbox probe on this host: ";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    assert_eq!(job.ran(), []);
    assert!(!report.exists(), "{:?}", fs::read_to_string(report));
}

#[test]
fn a_node_that_cannot_be_measured_is_excluded_and_not_tainted() {
    let mut job = job();
    let good = node(&job, 0, GOOD).start();
    let missing = job.dir().join("no-such-tool");
    let blind = job.ranked(1).flags(CHECK).env("SWITCHBOX_CHECK_TOOL_PATH", &missing).start();
    let outcome = job.finish([blind], 201).remove(0);
    for words in [
        "switchbox check: pair 0:1 (GPU 0 -> GPU 1): tool missing, ",
        "this node's switchbox cannot be measured: 0 of 4 pairs good, 2 needed; ",
        "too little was measured to call a link broken",
    ] {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    let (report, document) = report(&job);
    assert_eq!(report.verdicts(), ["healthy", "local-fault"]);
    let found = &document["nodes"][1];
    assert_eq!(found["component"], "switchbox-probe", "{found:#}");
    assert_eq!((&found["excluded"], &found["taint"]), (&true.into(), &Value::Null), "{found:#}");
    job.ends_well([good]);
}

/// A library of the vendor's tool is missing on this node; its links are as good as those of the other.
#[test]
fn a_tool_that_cannot_be_started_taints_no_node() {
    let mut job = job();
    let good = node(&job, 0, GOOD).start();
    let lacks = tool(job.dir(), "tool-1", GOOD);
    let script = "#!/bin/sh\necho \"$0: error while loading shared libraries: libmx.so.1: cannot open\" >&2\nexit 127\n";
    fs::write(&lacks, script).expect("a tool that lacks a library");
    let lacking = job.ranked(1).flags(CHECK).env("SWITCHBOX_CHECK_TOOL_PATH", &lacks).start();
    let outcome = job.finish([lacking], 201).remove(0);
    for words in [
        "switchbox check: pair 0:1 (GPU 0 -> GPU 1): cannot start, exited with code 127, output: ",
        "cannot be started: run it by hand on this node; `ldd` lists missing libraries",
        "this node's switchbox cannot be measured: 0 of 4 pairs good, 2 needed; ",
    ] {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    let (report, document) = report(&job);
    assert_eq!(report.verdicts(), ["healthy", "local-fault"]);
    let found = &document["nodes"][1];
    let (component, taint) = (&found["component"], &found["taint"]);
    assert_eq!((component, taint), (&"switchbox-probe".into(), &Value::Null), "{found:#}");
    job.ends_well([good]);
}

/// The default pairs are for a host of eight: a mistake in how the check was asked for.
#[test]
fn default_pairs_on_a_host_of_four_end_the_launcher_and_taint_no_node() {
    let job = Cluster::of_lines(programs!());
    let report = report_file(&job);
    let flags = ["--standalone", "--network-check", "--switchbox-check"];
    let line = job.line().flags(flags).flags([format!("--taint-report={}", report.display())]);
    let four = r#"--switchbox-probe=echo '{"v":1,"devices":4,"results":[]}'"#;
    let outcome = line.flags([four]).finish().expect_code(1);
    for words in [
        "the switchbox cannot be checked: this host has 4 accelerators, and the default pairs 0:1 2:4 3:5 6:7 need \
         an accelerator on each of 8 sockets (pairs that lack one: 2:4 3:5 6:7)",
        "Set --box-pairs to the pairs of this host's sockets",
    ] {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    assert_eq!(job.ran(), []);
    assert!(!report.exists(), "{:?}", fs::read_to_string(report));
}

/// The links of this node are as good as those of the other.
#[test]
fn a_mistake_in_the_command_of_a_probe_taints_no_node() {
    let mut job = job();
    let good = node(&job, 0, GOOD).start();
    let flags = ["--network-check", "--switchbox-check", "--nnodes=1:2"];
    let slip = job.ranked(1).flags(flags).flags(["--switchbox-probe=cat /nowhere/typo.json"]).start();
    let outcome = job.finish([slip], 201).remove(0);
    for words in [
        "switchbox check: pair 0:1: probe failed, exited with code 1, output: cat: /nowhere/typo.json: ",
        "`cat /nowhere/typo.json` gave no usable answer for any pair: run it by hand on this node",
        "this node's switchbox cannot be measured: 0 of 4 pairs good, 2 needed; ",
    ] {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    assert!(!outcome.stderr.contains("optical"), "{}", outcome.stderr);
    let (report, document) = report(&job);
    assert_eq!(report.verdicts(), ["healthy", "local-fault"]);
    let found = &document["nodes"][1];
    assert_eq!(
        (&found["component"], &found["taint"]),
        (&"switchbox-probe".into(), &Value::Null),
        "{found:#}"
    );
    job.ends_well([good]);
}

/// It leaves before it has an assignment: the others are checked and train without it.
#[test]
fn a_node_without_a_probe_exits_alone() {
    if Path::new("/proc/driver/nvidia").exists() || Path::new("/sys/class/mxcd").exists() {
        println!("skipped: there is something");
        return;
    }
    let mut job = job();
    let flags = ["--network-check", "--switchbox-check", "--nnodes=1:2"];
    let blind = job.ranked(1).flags(flags).env("SWITCHBOX_CHECK_TOOL_PATH", "/nowhere/mxom-client");
    let outcome = job.finish([blind.start()], 1).remove(0);
    assert!(outcome.stderr.contains("no switchbox probe on this host: "), "{}", outcome.stderr);
    let good = job.ranked(0).flags(flags).env("SWITCHBOX_CHECK_TOOL_PATH", tool(job.dir(), "tool-0", GOOD));
    let good = good.start();
    let _world = job.await_world(1, 0);
    let (report, _) = report(&job);
    assert_eq!(report.verdicts(), ["healthy"]);
    report.blames(&[]);
    job.ends_well([good]);
}

#[test]
fn a_terminated_launcher_ends_the_check_and_its_tools() {
    let job = Cluster::of_lines(programs!());
    let tool = tool(job.dir(), "tool", GOOD);
    let script = "#!/bin/sh\ntrap '' TERM\necho $$ > \"$PROBE_OUT/tool.$2\"\nwhile :; do sleep 0.01; done\n";
    fs::write(&tool, script).expect("a tool that hangs");
    let line = job.line().flags(["--standalone", "--network-check", "--switchbox-check"]);
    let node = line.env("SWITCHBOX_CHECK_TOOL_PATH", &tool).start();
    let pids = [0, 2, 3, 6].map(|gpu| {
        let file = job.dir().join(format!("tool.{gpu}"));
        job.wait("a tool", || fs::read_to_string(&file).ok()?.trim().parse::<i32>().ok())
    });
    node.signal(Signal::SIGTERM);
    let outcome = node.finish().expect_code(1);
    for pid in pids {
        assert!(!support::cluster::alive(pid), "{pid}: {outcome:#?}");
    }
    assert_eq!(job.ran(), []);
}

#[test]
fn the_host_probe_reports_that_it_tests_no_link() {
    let job = Cluster::of_lines(programs!());
    let flags = ["--standalone", "--network-check", "--switchbox-check", "--min-bandwidth=1"];
    let node = job.line().flags(flags).env("DLROVER_SWITCHBOX_PROBE", "host").start();
    let _world = job.await_world(1, 0);
    let output = job.await_output(&node, "bytes went through the host's memory, which tests no link");
    assert!(output.contains("switchbox check: 4 of 4 pairs good, 2 needed: ok, "), "{output}");
    job.go();
    let _outcomes = job.finish([node], 0);
}

#[test]
fn the_check_command_must_not_use_the_optical_links() {
    let mut job = job();
    let command = format!(
        "--check-command=echo \"$MCCL_DISABLE_OPTIC_LINK\" > {}/mccl-$RANK; \
         echo '{{\"version\":1,\"comm_ms\":1.0}}'",
        job.dir().display()
    );
    let nodes = [0, 1].map(|rank| node(&job, rank, GOOD).flags([&command]).start());
    let _world = job.await_world(2, 0);
    for rank in [0, 1] {
        assert_eq!(job.await_file(&format!("mccl-{rank}")), "1\n");
    }
    job.ends_well(nodes);
}
