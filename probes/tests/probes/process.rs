//! A probe's process: it ends, whatever it or the agent does.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use diagnosis::network_check::{LocalCheck, Probed};
use probes::{LocalPlan, ProbeProgram, RingMode, check_locally, measure_compute, start_ring};
use processes::tree;
use tokio::{sync::watch, time::sleep};

use crate::support::{
    TIMEOUT, ignores_sigterm, in_time, is_alive, listeners, number_in, plans, ports, probes_below, program,
    until,
};

/// A program in place of the probe.
fn impostor(folder: &tempfile::TempDir, script: &str) -> ProbeProgram {
    let program: PathBuf = folder.path().join("impostor");
    // Written elsewhere and moved here, so that a concurrent fork does not keep it open for writing.
    let draft = folder.path().join("draft");
    fs::write(&draft, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
    Command::new("mv").args([&draft, &program]).status().unwrap();
    ProbeProgram { path: program, ..ProbeProgram::default() }
}

async fn ring_with(program: &ProbeProgram, cancel: bool) -> Probed {
    let listeners = listeners(2);
    let plan = plans(&ports(&listeners), 20, RingMode::Check).remove(0);
    let handle = start_ring(plan, &listeners[0], program, None);
    if cancel {
        handle.cancel();
    }
    in_time(handle.end()).await.unwrap()
}

#[tokio::test]
async fn a_probe_that_ignores_sigterm_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let script = format!("trap '' TERM\necho $$ > {}\nwhile :; do sleep 0.01; done", pid_file.display());
    let program = impostor(&folder, &script);
    let listeners = listeners(2);
    let plan = plans(&ports(&listeners), 20, RingMode::Check).remove(0);
    let handle = start_ring(plan, &listeners[0], &program, None);
    let mut pid = None;
    until("the probe runs", || {
        pid = number_in(&pid_file);
        pid.is_some()
    });
    handle.cancel();
    let end = in_time(handle.end()).await.unwrap();
    assert!(matches!(end, Probed::Unfinished { bytes: 0, .. }), "{end:?}");
    assert!(!is_alive(pid.unwrap()));
}

#[tokio::test]
async fn the_reason_of_a_dead_probe_is_its_standard_error() {
    let folder = tempfile::tempdir().unwrap();
    let program = impostor(&folder, "yes filler | head -c 9000 >&2; echo 'no such device' >&2; exit 3");
    let end = ring_with(&program, false).await;
    let Probed::Failed { reason } = end else { panic!("{end:?}") };
    assert!(reason.starts_with("the probe exited with code 3: "), "{reason}");
    assert!(reason.ends_with("no such device") && reason.len() < 5000, "{reason}");
}

#[tokio::test]
async fn invalid_messages_of_a_probe_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"echo 'nonsense'; echo '{"End":7}'; printf '\377\n'; printf '{"Progress":'"#;
    let end = ring_with(&impostor(&folder, script), false).await;
    let reason = "the probe exited with code 0 without a result".to_owned();
    assert_eq!(end, Probed::Failed { reason });
}

#[tokio::test]
async fn a_missing_probe_program_is_a_failure_and_a_fault() {
    let nowhere = ProbeProgram { path: "/nowhere/probe".into(), ..ProbeProgram::default() };
    let end = ring_with(&nowhere, false).await;
    let Probed::Failed { reason } = end else { panic!("{end:?}") };
    assert!(reason.starts_with("cannot start the probe "), "{reason}");
    let check = check_locally(LocalPlan { program: nowhere, ..LocalPlan::default() }).await;
    let fault = check.fault.unwrap();
    assert_eq!(fault.component.as_str(), "probe");
    assert!(fault.reason.starts_with("cannot start the probe "), "{fault:?}");
}

#[tokio::test]
async fn a_hanging_local_check_is_a_fault_of_its_current_step() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo '{\"At\":\"cpu\"}'; echo '{\"At\":\"GPU 3 (Some Model)\"}'; exec sleep 1000";
    let program = impostor(&folder, script);
    let plan = LocalPlan { deadline: Duration::from_secs(4), program, ..LocalPlan::default() };
    let fault = in_time(check_locally(plan)).await.fault.unwrap();
    assert_eq!(fault.component.as_str(), "GPU 3");
    assert_eq!(fault.reason, "no answer within 4 s; last step: GPU 3 (Some Model)");
}

#[tokio::test]
async fn a_hanging_compute_probe_ends_when_its_caller_stops_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let program = impostor(&folder, &format!("echo $$ > {}; exec sleep 1000", pid.display()));
    let plan = LocalPlan { program, ..LocalPlan::default() };
    let (cancel, cancelled) = watch::channel(false);
    let times = tokio::spawn(measure_compute(2, LocalPlan { deadline: TIMEOUT * 2, ..plan }, cancelled));
    let pid = in_time(async {
        loop {
            match number_in(&pid) {
                Some(pid) => return pid,
                None => sleep(Duration::from_millis(2)).await,
            }
        }
    })
    .await;
    cancel.send_replace(true);
    assert_eq!(in_time(times).await.unwrap(), []);
    assert!(!is_alive(pid));
}

/// An agent that has started what `arguments` say, and waits.
fn agent(arguments: &[&str]) -> Child {
    let mut agent = Command::new(program().path)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(agent.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    agent
}

#[test]
fn a_probe_dies_with_its_agent() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let mut agent = agent(&["ring", "127.0.0.1", &port.to_string()]);
    // It has connected to its peer.
    let _dialled = silent.accept().unwrap();
    let agent_pid = i32::try_from(agent.id()).unwrap();
    let probe = match &probes_below(agent_pid)[..] {
        [probe] => *probe,
        other => panic!("{other:?}"),
    };
    agent.kill().unwrap();
    agent.wait().unwrap();
    until("the probe dies too", || !is_alive(probe));
}

#[test]
fn a_check_command_and_its_daemon_die_with_their_agent() {
    let folder = tempfile::tempdir().unwrap();
    let script = ignores_sigterm(&folder, "while :; do sleep 0.01; done");
    let mut agent = agent(&["command", &script]);
    let pids = ["leader", "daemon"].map(|name| {
        let mut pid = None;
        until("the program has written its process id", || {
            pid = number_in(&folder.path().join(name));
            pid.is_some()
        });
        pid.unwrap()
    });
    agent.kill().unwrap();
    agent.wait().unwrap();
    until("all of it dies too", || pids.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn a_check_ends_where_another_task_reaps_all_children() {
    let agent = Command::new(program().path).arg("reap").output().unwrap();
    let check: LocalCheck = serde_json::from_slice(&agent.stdout).unwrap();
    assert!(check.fault.is_none() && check.compute.is_some(), "{check:?}");
}

/// A cgroup of the freezer, version 1: a frozen process cannot even be killed. `None` where there is none.
fn freezer() -> Option<PathBuf> {
    let folder = PathBuf::from(format!("/sys/fs/cgroup/freezer/probes-test-{}", std::process::id()));
    fs::create_dir(&folder).ok()?;
    Some(folder)
}

#[tokio::test]
async fn a_probe_that_cannot_be_killed_is_given_up_and_named() {
    let Some(freezer) = freezer() else {
        println!("skipped: no freezer");
        return;
    };
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let listeners = listeners(1);
    let ports = [listeners[0].port(), silent.local_addr().unwrap().port()];
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let script = format!(
        "echo $$ > {}/cgroup.procs; echo $$ > {}; while :; do sleep 0.01; done",
        freezer.display(),
        pid_file.display()
    );
    let plan = plans(&ports, 23, RingMode::Check).remove(0);
    let handle = start_ring(plan, &listeners[0], &impostor(&folder, &script), None);
    until("the probe runs", || number_in(&pid_file).is_some());
    fs::write(freezer.join("freezer.state"), "FROZEN").unwrap();
    until("it is frozen", || fs::read_to_string(freezer.join("freezer.state")).unwrap() == "FROZEN\n");
    handle.cancel();
    let end = in_time(handle.end()).await.unwrap();
    fs::write(freezer.join("freezer.state"), "THAWED").unwrap();
    let pid = number_in(&pid_file).unwrap();
    until("it dies once it can", || !is_alive(pid));
    until("its child has ended", || fs::remove_dir(&freezer).is_ok());
    let Probed::Failed { reason } = end else { panic!("{end:?}") };
    let message = format!("the probe (process {pid}) survived SIGKILL: state D, waiting in ");
    assert!(reason.starts_with(&message), "{reason}");
}

#[tokio::test]
async fn dropping_a_handle_ends_its_probe() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let listeners = listeners(1);
    let plan =
        plans(&[listeners[0].port(), silent.local_addr().unwrap().port()], 21, RingMode::Check).remove(0);
    let handle = start_ring(plan, &listeners[0], &program(), None);
    let hello = tokio::task::spawn_blocking(move || {
        let (mut stream, _) = silent.accept().unwrap();
        stream.read_exact(&mut [0; 48]).unwrap();
        stream
    });
    let mut stream = in_time(hello).await.unwrap();
    drop(handle);
    // The end of a process that is gone.
    let gone = tokio::task::spawn_blocking(move || stream.read_to_end(&mut Vec::new()));
    assert_eq!(in_time(gone).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn an_ended_probe_is_reaped_without_a_reaper() {
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    ring_with(&impostor(&folder, &format!("echo $$ > {}", pid_file.display())), false).await;
    let pid = fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
    assert_eq!(tree::process(pid), None);
}

#[tokio::test]
async fn the_compute_probe_sees_only_its_devices() {
    let folder = tempfile::tempdir().unwrap();
    let seen = folder.path().join("seen");
    let script = format!("echo \"$CUDA_VISIBLE_DEVICES $DLROVER_LAUNCHER_ID\" > {}", seen.display());
    let program = ProbeProgram {
        launcher_id: Some("mark".into()),
        variables: vec![("CUDA_VISIBLE_DEVICES".into(), "4,5".into())],
        ..impostor(&folder, &script)
    };
    let _died = in_time(check_locally(LocalPlan { program, ..LocalPlan::default() })).await;
    assert_eq!(fs::read_to_string(&seen).unwrap(), "4,5 mark\n");
}
