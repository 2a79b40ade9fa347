//! The launcher as process 1 of a container: here, of a fresh pid namespace.

use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use nix::unistd::Uid;
use support::census::{Census, Process};
use support::launch::{Launch, Launcher, Outcome, Running};
use support::{launcher, trainer, wait_for};

use crate::{VANISH, show};

/// A PID namespace with the launcher as process 1; gone with it.
struct Container {
    census: Census,
    run: Running,
}

/// The launcher under `unshare`, or `None` (and a message) where that is impossible.
fn unshare() -> Option<(Launcher, String)> {
    let launcher = launcher!();
    if launcher.is_torchrun {
        show("torchrun as process 1 is not measured: skipped\n");
        return None;
    }
    let tried = Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).output();
    let can = tried.as_ref().is_ok_and(|tried| tried.status.success());
    if !can {
        show(&format!("no fresh pid namespace (uid {}): {tried:?}: skipped\n", Uid::effective()));
        return None;
    }
    let unshare = Launcher { program: "unshare".into(), is_torchrun: false };
    Some((unshare, launcher.program.to_string_lossy().into_owned()))
}

fn container(breeds: &str, flags: &[&str], options: &[&str]) -> Option<Container> {
    let (unshare, program) = unshare()?;
    let launch = Launch::new(unshare)
        .flags(["--pid", "--fork", "--mount-proc", &program, "--standalone", "--nproc-per-node=2"])
        .flags(flags)
        .script(trainer("breeder.py"))
        .args([breeds])
        .args(options);
    let run = launch.start();
    let census = Census::of(run.dir(), run.mark());
    run.await_file("worker.0.0");
    run.await_file("worker.1.0");
    // The process ids that they wrote down are the namespace's own and mean nothing here.
    std::fs::remove_file(run.dir().join("pids")).ok();
    Some(Container { census, run })
}

impl Container {
    /// Process 1, by its id in the outer namespace.
    fn init(&self) -> Process {
        let mut children = Process::all().into_iter().filter(|process| process.parent == self.run.pid());
        children.next().expect("unshare waits for it")
    }

    fn guard(&self) -> Process {
        let init = self.init().pid;
        let guard = Process::all().into_iter().find(|one| one.parent == init && one.name == "dlrover-guard");
        guard.expect("the launcher has one")
    }

    fn finish(self) -> Outcome {
        let Self { mut census, mut run } = self;
        run.wait();
        let left = census.left_after(VANISH);
        let outcome = run.finish_whatever_is_left();
        assert!(left.is_empty(), "left behind: {left:?}, {outcome:#?}");
        outcome
    }
}

/// A process in the container without a parent there, as `kubectl exec` leaves them.
fn stranger(init: &Process) -> Child {
    let mut command = Command::new("nsenter");
    command.args(["--pid", "--target", &init.pid.to_string(), "sh", "-c", "sleep 300 & :"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("util-linux has it")
}

#[test]
fn process_1_reaps_orphans() {
    let Some(container) = container("plain,daemon", &[], &[]) else { return };
    let init = container.init();
    for mut stranger in [(); 5].map(|()| stranger(&init)) {
        assert!(stranger.wait().expect("our own child").success());
    }
    let strangers = || -> Vec<Process> {
        let all = Process::all().into_iter();
        all.filter(|one| one.parent == init.pid && one.name != "dlrover-guard").collect()
    };
    let adopted = strangers();
    assert_eq!(adopted.len(), 5, "they became children of process 1: {adopted:?}");
    for stranger in &adopted {
        stranger.signal(Signal::SIGKILL);
    }
    // A zombie would still be found.
    wait_for("the strangers are reaped", || strangers().is_empty().then_some(()));
    container.run.touch("go");
    let _ = container.finish().expect_code(0);
}

#[test]
fn process_1_passes_the_exit_code() {
    if let Some(container) = container("plain,stubborn", &["--shutdown-timeout=1"], &["fail"]) {
        container.run.touch("fail");
        let _ = container.finish().expect_code(1);
    }
    if let Some(container) =
        container("plain,setsid", &["--shutdown-timeout=1", "--propagate-exit-code"], &["fail"])
    {
        container.run.touch("fail");
        let _ = container.finish().expect_code(3);
    }
}

#[test]
fn process_1_ends_on_a_signal_and_leaves_no_process() {
    let Some(container) =
        container("plain,stubborn,setsid,daemon,bare,hopper", &["--shutdown-timeout=1"], &[])
    else {
        return;
    };
    container.init().signal(Signal::SIGTERM);
    let run = container.finish().expect_code(1);
    assert!(run.stderr.contains("stopped by SIGTERM; no worker is left"), "{run:#?}");
}

#[test]
fn process_1_survives_its_guard_and_reports_it() {
    let Some(container) = container("plain,stubborn,setsid,daemon,bare,hopper", &[], &[]) else { return };
    container.guard().signal(Signal::SIGKILL);
    let run = container.finish().expect_code(1);
    assert!(run.stderr.contains("guard process was killed by SIGKILL"), "{run:#?}");
}

#[test]
fn process_1_restarts_its_workers() {
    let Some(container) = container("plain,daemon,hopper", &["--max-restarts=1"], &["restart"]) else {
        return;
    };
    container.run.await_file("worker.1.1");
    container.run.touch("go");
    let run = container.finish().expect_code(0);
    // Read inside the namespace, by the environment: `pids` was taken away.
    assert_eq!(run.file("old.0.1").as_deref(), Some(""), "{run:#?}");
}
