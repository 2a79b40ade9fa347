//! The switchbox check with real processes, a fake vendor's tool, and a fake driver's tree.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use diagnosis::switchbox::{
    Expected, Path as Way, Rate, Settings, SocketPair, SwitchboxFinding, SwitchboxStatus, Trouble,
};
use probes::{SwitchboxError, SwitchboxProbe, SwitchboxTask, check_switchbox};
use processes::tree;
use tokio::sync::mpsc;

use crate::support::{in_time, is_alive, number_in, program, until};

mod unfit;

/// The timeout of a hanging tool: longer than an answering one takes on a busy machine.
const SHORT: Duration = Duration::from_secs(4);

/// A directory with a tool and a log of its calls.
struct Box {
    folder: tempfile::TempDir,
}

fn settings() -> Settings {
    let pairs = vec![SocketPair(0, 1), SocketPair(2, 4), SocketPair(3, 5), SocketPair(6, 7)];
    Settings {
        pairs,
        are_pairs_given: true,
        min: Rate::from_mb_per_s(10_000.0).unwrap(),
        min_channels: 2,
        expected: Expected::Alike,
        models: Vec::new(),
    }
}

impl Box {
    /// A tool that runs this script. `$A` and `$B` are the GPUs, `$TURN` counts this pair's calls from 1, `$DIR` is
    /// the directory. `say MB` prints a bandwidth.
    fn with(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "#!/bin/sh\nDIR={}\nA=$2 B=$4\necho \"$*\" >> $DIR/calls.$A-$B\n\
             TURN=$(($(wc -l < $DIR/calls.$A-$B)))\n\
             say() {{ echo \"[info] link up\"; echo \"bandwidth:$1MB/s\"; }}\n{script}\n",
            folder.path().display()
        );
        let made = Self { folder };
        made.write(&made.tool(), &text, 0o755);
        made
    }

    fn write(&self, file: &Path, text: &str, mode: u32) {
        // Written elsewhere and moved, so that a concurrent fork does not keep it open for writing.
        let draft = self.folder.path().join("draft");
        fs::write(&draft, text).unwrap();
        fs::set_permissions(&draft, fs::Permissions::from_mode(mode)).unwrap();
        Command::new("mv").args([&draft, file]).status().unwrap();
    }

    fn tool(&self) -> PathBuf {
        self.folder.path().join("tool")
    }

    fn task(&self) -> SwitchboxTask {
        let task = SwitchboxTask::new(settings(), SwitchboxProbe::Mxom, Some(self.tool().as_os_str()));
        SwitchboxTask { sysfs: self.folder.path().join("sys"), ..task }
    }

    /// The calls for these two GPUs.
    fn calls(&self, pair: &str) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join(format!("calls.{pair}"))).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// A driver's tree with the GPU of each socket.
    fn tree(&self, sockets: &[u32]) {
        let layout = self.folder.path().join("sys/class/mxcd/mxcd/layout");
        fs::create_dir_all(layout.join("nodes/0")).unwrap();
        fs::write(layout.join("properties"), "num_cpu_nodes 1\n").unwrap();
        fs::write(layout.join("nodes/0/properties"), "cpu_cores 8\n").unwrap();
        for (gpu, socket) in sockets.iter().enumerate() {
            let node = layout.join(format!("nodes/{}", gpu + 1));
            fs::create_dir_all(&node).unwrap();
            fs::write(node.join("properties"), format!("mgpu_id {socket}\n")).unwrap();
        }
    }
}

/// The check and its log lines.
async fn check(task: SwitchboxTask) -> (Result<SwitchboxFinding, SwitchboxError>, Vec<String>) {
    let (said, mut run) = mpsc::channel(1000);
    let found = in_time(check_switchbox(task, &program(), Some(said), None)).await;
    let mut lines = Vec::new();
    while let Some(line) = run.recv().await {
        lines.push(line);
    }
    (found, lines)
}

async fn finding(task: SwitchboxTask) -> SwitchboxFinding {
    check(task).await.0.unwrap()
}

fn troubles(finding: &SwitchboxFinding) -> Vec<Option<Trouble>> {
    finding.pairs.iter().map(|pair| pair.wrong.as_ref().map(|wrong| wrong.trouble)).collect()
}

/// The description of the third pair, when the others are good.
async fn third(script: &str) -> String {
    let made = Box::with(&format!("if [ $A = 3 ]; then\n{script}\nelse say 50040.12; fi"));
    let task = SwitchboxTask { timeout: Some(SHORT), ..made.task() };
    let finding = finding(task).await;
    assert_eq!(finding.status(), SwitchboxStatus::Degraded, "{finding:?}");
    let others = finding.pairs.iter().filter(|it| it.is_good()).count();
    assert_eq!(others, 3, "{finding:?}");
    finding.pairs[2].wrong.as_ref().unwrap().to_string()
}

#[tokio::test]
async fn each_pair_of_a_healthy_box_is_measured_five_times() {
    let made = Box::with("say 50040.12");
    let (found, lines) = check(made.task()).await;
    let finding = found.unwrap();
    assert_eq!((finding.status(), finding.good()), (SwitchboxStatus::Ok, 4));
    for (pair, calls) in
        [("0-1", "-l 0 -p 1"), ("2-4", "-l 2 -p 4"), ("3-5", "-l 3 -p 5"), ("6-7", "-l 6 -p 7")]
    {
        let line = format!("{calls} -t 1 -c -w 1");
        assert_eq!(made.calls(pair), [line.as_str(); 5]);
    }
    let tool = made.tool();
    assert_eq!(
        lines[..2],
        [
            format!(
                "switchbox check: measuring 0:1 2:4 3:5 6:7 by mxom ({}); at least 2 must reach 10000.0 MB/s",
                tool.display()
            ),
            "switchbox check: warning: the MetaX driver shows no layout; each socket is assumed to have the number of \
             its GPU"
                .to_owned(),
        ]
    );
    assert!(lines[2].starts_with("switchbox check: 4 of 4 pairs good, 2 needed: ok, "), "{lines:?}");
    assert_eq!(lines.len(), 3);
    assert!(finding.pairs.iter().all(|pair| pair.path == Way::Metaxlink && !pair.alone));
}

#[tokio::test]
async fn slow_and_dead_channels_of_a_node_that_passes_are_named() {
    let made = Box::with("case $A in 3) say 9999.9;; 6) say 0.0;; *) say 50000.0;; esac");
    let (found, lines) = check(made.task()).await;
    let finding = found.unwrap();
    assert_eq!(finding.status(), SwitchboxStatus::Degraded);
    assert_eq!(troubles(&finding), [None, None, Some(Trouble::Slow), Some(Trouble::Dead)]);
    let notes = finding.notes();
    assert_eq!(notes[1], "switchbox pair 6:7 (GPU 6 -> GPU 7): dead, 0 MB/s in 5 solo runs");
    assert!(
        lines.iter().any(|line| line.starts_with("switchbox check: pair 3:5 (GPU 3 -> GPU 5): slow, 9999.9"))
    );
    assert!(lines.last().unwrap().contains("2 of 4 pairs good, 2 needed: degraded"), "{lines:?}");
    // One with the others, then five alone; five with the others.
    assert_eq!((made.calls("3-5").len(), made.calls("0-1").len()), (6, 5));
}

#[tokio::test]
async fn too_few_good_channels_are_a_fault_of_the_node() {
    let made = Box::with("if [ $A = 0 ]; then say 50000.0; else say 9000.0; fi");
    let finding = finding(made.task()).await;
    let fault = finding.fault().unwrap();
    assert_eq!(fault.component.as_str(), "switchbox");
    assert!(fault.reason.starts_with("1 of 4 pairs good, 2 needed; pair 2:4 (GPU 2 -> GPU 4): slow, 9000.0"));
}

#[tokio::test]
async fn a_hanging_tool_is_retried_alone_and_leaves_nothing_behind() {
    let made = Box::with(
        "[ $A = 3 ] || { say 50000.0; exit; }
         trap '' TERM INT HUP
         (setsid sh -c \"trap '' TERM; echo \\$\\$ > $DIR/daemon; while :; do sleep 0.01; done\" &)
         while [ ! -s $DIR/daemon ]; do sleep 0.01; done
         echo $$ > $DIR/leader
         while :; do sleep 0.01; done",
    );
    let task = SwitchboxTask { timeout: Some(SHORT), ..made.task() };
    let finding = in_time(finding(task)).await;
    assert_eq!(finding.pairs[2].wrong.as_ref().unwrap().to_string(), "dead, not finished within 4 s");
    assert_eq!((made.calls("3-5").len(), finding.status()), (2, SwitchboxStatus::Degraded));
    for name in ["leader", "daemon"] {
        assert!(!is_alive(number_in(&made.folder.path().join(name)).unwrap()), "{name}");
    }
}

#[tokio::test]
async fn a_tool_that_hangs_only_in_parallel_runs_is_good() {
    let made = Box::with("if [ $A = 3 ] && [ $TURN = 1 ]; then exec sleep 1000; fi; say 50000.0");
    let task = SwitchboxTask { timeout: Some(SHORT), ..made.task() };
    let finding = finding(task).await;
    assert_eq!((finding.status(), made.calls("3-5").len()), (SwitchboxStatus::Ok, 6));
}

#[tokio::test]
async fn every_failure_has_its_own_description() {
    assert_eq!(
        third("echo 'bandwith: 12 GB/s'").await,
        "no answer, the output has no `bandwidth:NUMBERMB/s`: bandwith: 12 GB/s"
    );
    assert_eq!(third("kill -SEGV $$").await, "no answer, killed by SIGSEGV, output: (empty)");
    assert_eq!(
        third("say 50000.0; echo 'link 3 down' >&2; exit 4").await,
        "no answer, exited with code 4, output: link 3 down"
    );
    assert_eq!(third("exec yes").await, "no answer, the output has more than 1 MiB");
    assert_eq!(third("exec yes >&2").await, "no answer, the output has more than 1 MiB");
    assert_eq!(
        third("echo '/dev/mxcd: Permission denied' >&2; exit 1").await,
        "no permission, exited with code 1, output: /dev/mxcd: Permission denied"
    );
    let unstable = third("case $TURN in 2|4) say 50000.0;; *) say 3000.0;; esac").await;
    assert_eq!(unstable, "unstable, 2 of 5 solo runs reached 10000.0 MB/s, 3000.0 to 50000.0 MB/s");
}

#[tokio::test]
async fn endless_output_is_cut_off_and_a_tool_that_ignores_it_is_killed() {
    let message = third("trap '' PIPE; while :; do echo flood; done 2>/dev/null").await;
    assert_eq!(message, "dead, not finished within 4 s");
}

#[tokio::test]
async fn a_missing_or_not_executable_tool_is_reported() {
    let made = Box::with("say 1.0");
    let missing = SwitchboxTask { tool: "/nowhere/mxom-client".into(), ..made.task() };
    let found = finding(missing).await;
    assert_eq!(troubles(&found), [Some(Trouble::ToolMissing); 4]);
    let fault = found.fault().unwrap();
    let told = "tool missing, /nowhere/mxom-client does not exist; set SWITCHBOX_CHECK_TOOL_PATH to the path of the tool";
    assert!(fault.reason.contains(told), "{}", fault.reason);
    made.write(&made.tool(), "#!/bin/sh\n", 0o644);
    let found = finding(made.task()).await;
    assert_eq!(troubles(&found), [Some(Trouble::NoPermission); 4]);
}

#[tokio::test]
async fn sockets_are_looked_up_in_the_drivers_tree() {
    let made = Box::with("say 50000.0");
    // GPU 0 is on socket 7 and so on; none on socket 0.
    made.tree(&[7, 6, 5, 4, 3, 2, 1]);
    let (found, lines) = check(made.task()).await;
    let finding = found.unwrap();
    assert_eq!(troubles(&finding), [Some(Trouble::NoSuchDevice), None, None, None]);
    assert_eq!(made.calls("5-3"), ["-l 5 -p 3 -t 1 -c -w 1"; 5], "sockets 2 and 4");
    assert!(lines.iter().all(|line| !line.contains("warning")), "{lines:?}");
    let message = "switchbox check: pair 0:1 (no GPU -> GPU 6): no such device, socket 0 has no GPU in the driver's layout";
    assert!(lines.iter().any(|line| line == message), "{lines:?}");

    made.tree(&[7, 6, 5, 4, 3, 2, 2]);
    let Err(SwitchboxError::Cannot(why)) = check(made.task()).await.0 else { panic!("a socket twice") };
    assert!(why.starts_with("socket 2 belongs to GPU 5 and to GPU 6"), "{why}");
}

/// A program with the documents of the contract.
async fn by(line: &str, settings: Settings) -> SwitchboxFinding {
    let probe = SwitchboxProbe::Command(line.into());
    let task = SwitchboxTask { timeout: Some(SHORT), ..SwitchboxTask::new(settings, probe, None) };
    finding(task).await
}

fn results(values: [f64; 4], path: &str) -> String {
    let result = |(pair, value): (&SocketPair, f64)| {
        let SocketPair(a, b) = pair;
        let of = |dir: &str| {
            format!(
                r#"{{"pair":[{a},{b}],"dir":"{dir}","mbps":{value},"path":"{path}","verified":true,"err":null}}"#
            )
        };
        format!("{},{}", of("ab"), of("ba"))
    };
    let all: Vec<String> = settings().pairs.iter().zip(values).map(result).collect();
    format!(r#"{{"v":1,"probe":"maca-om","devices":8,"results":[{}]}}"#, all.join(","))
}

#[tokio::test]
async fn the_decision_table_holds_for_a_user_program() {
    let link = Settings { expected: Expected::Exactly(Way::Metaxlink), ..settings() };
    for (values, path, settings, expected) in [
        ([50_000.0; 4], "metaxlink", settings(), (SwitchboxStatus::Ok, 4)),
        ([50_000.0, 50_000.0, 9999.9, 0.0], "metaxlink", settings(), (SwitchboxStatus::Degraded, 2)),
        ([50_000.0, 9000.0, 9000.0, 9000.0], "metaxlink", settings(), (SwitchboxStatus::Fault, 1)),
        ([10_000.0; 4], "metaxlink", settings(), (SwitchboxStatus::Ok, 4)),
        ([50_000.0; 4], "pcie", link.clone(), (SwitchboxStatus::Fault, 0)),
        ([50_000.0; 4], "host", link, (SwitchboxStatus::Fault, 0)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("result.json");
        fs::write(&file, results(values, path)).unwrap();
        let finding = by(&format!("cat {}", file.display()), settings).await;
        assert_eq!((finding.status(), finding.good()), expected, "{values:?} {path}");
    }
}

#[tokio::test]
async fn a_failing_program_fails_for_all_pairs_with_its_message() {
    let (untested, fault) = (SwitchboxStatus::Untested, SwitchboxStatus::Fault);
    for (line, expected, status) in [
        ("echo 'driver gone' >&2; exit 3", "probe failed, exited with code 3, output: driver gone", untested),
        ("cat /nowhere/typo.json", "probe failed, exited with code 1, output: ", untested),
        ("echo 'x: No such device' >&2; exit 1", "probe failed, exited with code 1, output: x", untested),
        ("/nowhere/probe", "tool missing, exited with code 127, output: ", untested),
        ("echo '{}'", "probe failed, the output is not a result, missing field `v`", untested),
        (r#"echo '{"v":1,"results":[]}'"#, "probe failed, no result for this pair in", untested),
        ("kill -KILL $$", "probe failed, killed by SIGKILL", untested),
        // Alone, too.
        ("exec sleep 1000", "dead, not finished within 4 s", fault),
        (r#"echo '{"v":1,"devices":0,"results":[]}'"#, "no such device, ", fault),
    ] {
        let pairs = vec![SocketPair(0, 1), SocketPair(2, 3)];
        let finding = by(line, Settings { pairs, ..settings() }).await;
        assert_eq!((finding.status(), finding.good()), (status, 0), "{line}: {finding}");
        let advice = format!("`{line}` gave no usable answer for any pair: run it by hand on this node");
        let has_failed = expected.starts_with("probe failed");
        assert_eq!(finding.to_string().ends_with(&advice), has_failed, "{finding}");
        let fault = finding.fault().unwrap();
        assert_eq!(fault.reason.contains(&advice), has_failed, "{fault:?}");
        assert_eq!(fault.component.is_nothing_broken(), status == untested, "{fault:?}");
        for pair in &finding.pairs {
            let message = pair.wrong.as_ref().unwrap().to_string();
            assert!(message.starts_with(expected), "{line}: {message}");
        }
    }
}

/// It answers for the others, so the pair is at fault.
#[tokio::test]
async fn a_program_that_fails_for_one_pair_faults_that_pair() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    fs::write(&file, results([50_000.0; 4], "metaxlink")).unwrap();
    let line = format!(
        r"if grep -q '\[2,4\]'; then echo 'link 2 is down' >&2; exit 3; fi; exec cat {}",
        file.display()
    );
    let finding = by(&line, settings()).await;
    assert_eq!((finding.status(), finding.good()), (SwitchboxStatus::Degraded, 3));
    let message = finding.pairs[1].wrong.as_ref().unwrap().to_string();
    assert_eq!(message, "no answer, exited with code 3, output: link 2 is down");
}

#[tokio::test]
async fn a_program_gets_the_request_and_one_direction_may_be_slow() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    let one = Settings { pairs: vec![SocketPair(3, 5)], min_channels: 1, ..settings() };
    let line = format!(
        r#"cat > {at}/request; echo '{{"v":1,"results":[{{"pair":[3,5],"dir":"ab","mbps":50000}},{{"pair":[3,5],"dir":"ba","mbps":900.5}}]}}'"#
    );
    let finding = by(&line, one.clone()).await;
    let message = finding.pairs[0].wrong.as_ref().unwrap().to_string();
    let expected = "slow, first->second 50000.0 MB/s, second->first 900.5 MB/s in \
                    5 solo runs; 0 of 5 reached 10000.0 MB/s both ways, too slow only from the second \
                    socket to the first";
    assert_eq!(message, expected);
    let request: String = fs::read_to_string(folder.path().join("request")).unwrap();
    assert_eq!(
        request,
        "{\"v\":1,\"pairs\":[[3,5]],\"bytes\":268435456,\"iters\":8,\"warmup\":2,\"directions\":[\"ab\",\"ba\"],\
         \"min_mbps\":10000.0,\"deadline_ms\":4000}\n"
    );
    let half = by(r#"echo '{"v":1,"results":[{"pair":[3,5],"dir":"ab","mbps":50000}]}'"#, one).await;
    let message = half.pairs[0].wrong.as_ref().unwrap().to_string();
    assert_eq!(message, "probe failed, no result for this pair in direction ba");
    assert_eq!(half.status(), SwitchboxStatus::Untested);
}

#[tokio::test]
async fn the_host_probe_measures_memory_and_is_no_link() {
    let slow = Settings { min: Rate::from_mb_per_s(1.0).unwrap(), ..settings() };
    let task = SwitchboxTask::new(slow.clone(), SwitchboxProbe::Host, None);
    let (found, lines) = check(task).await;
    let finding = found.unwrap();
    assert_eq!((finding.status(), finding.good()), (SwitchboxStatus::Ok, 4), "{lines:?}");
    assert_eq!(finding.remarks, Vec::<String>::new(), "no accelerator took part");
    for pair in &finding.pairs {
        assert_eq!((pair.path, pair.values.len()), (Way::Host, 5), "{pair:?}");
        assert!(
            pair.values.iter().all(|it| it.there > Rate(1_000_000) && it.back.unwrap() > Rate(1_000_000))
        );
        assert!(pair.devices.as_ref().unwrap().0.starts_with("core "), "{pair:?}");
    }
    let last = lines.last().unwrap();
    assert!(last.ends_with("; bytes went through the host's memory, which tests no link"), "{last}");
    println!("{lines:#?}\n{:#?}", finding.pairs[0].values);

    let link = Settings { expected: Expected::Exactly(Way::Nvlink), ..slow };
    let (found, lines) = check(SwitchboxTask::new(link, SwitchboxProbe::Host, None)).await;
    assert_eq!(troubles(&found.unwrap()), [Some(Trouble::WrongPath); 4]);
    assert!(lines[1].contains("warning: the host probe does not use the links"), "{lines:?}");
}

/// Whether this host has NVIDIA's driver: then the results differ.
fn has_nvidia() -> bool {
    Path::new("/proc/driver/nvidia").exists()
}

#[tokio::test]
async fn a_host_without_devices_has_no_probe() {
    if has_nvidia() {
        println!("skipped: there is a driver");
        return;
    }
    let made = Box::with("say 50000.0");
    let nothing = SwitchboxTask { probe: SwitchboxProbe::Auto, tool: "/nowhere".into(), ..made.task() };
    let (found, lines) = check(nothing.clone()).await;
    assert_eq!(found, Err(SwitchboxError::NoProbe));
    assert!(lines.is_empty(), "{lines:?}");
    assert!(SwitchboxError::NoProbe.to_string().starts_with("no switchbox probe on this host"));
    // The tool alone, or the driver's tree alone, is MetaX.
    let with_tool = SwitchboxTask { tool: made.tool(), ..nothing.clone() };
    assert_eq!(finding(with_tool).await.status(), SwitchboxStatus::Ok);
    made.tree(&[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(troubles(&finding(nothing.clone()).await), [Some(Trouble::ToolMissing); 4]);
    let cuda = finding(SwitchboxTask { probe: SwitchboxProbe::Cuda, ..nothing }).await;
    assert_eq!(troubles(&cuda), [Some(Trouble::ToolMissing); 4]);
}

#[test]
fn a_check_and_its_tool_die_with_their_agent() {
    let made = Box::with("echo $$ > $DIR/leader; trap '' TERM; while :; do sleep 0.01; done");
    let mut agent = Command::new(program().path)
        .args(["switchbox", made.tool().to_str().unwrap()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let agent_pid = i32::try_from(agent.id()).unwrap();
    let mut leader = None;
    until("the tool runs", || {
        leader = number_in(&made.folder.path().join("leader"));
        leader.is_some()
    });
    let below: Vec<i32> = tree::below(agent_pid).iter().map(|process| process.pid).collect();
    assert!(below.contains(&leader.unwrap()) && below.len() >= 2, "{below:?}");
    agent.kill().unwrap();
    agent.wait().unwrap();
    until("all of it dies too", || below.iter().all(|pid| !is_alive(*pid)));
}
