//! One node.

use std::io::Write as _;

use nix::sys::signal::Signal;
use support::{
    free_port,
    launch::{Launch, Launcher, Running},
    programs, wait_for,
    web::{get, metric},
};

use crate::{Folder, flash, from, kill_pid, loaded, nothing, savers};

fn launch(folder: &Folder, steps: &[&str]) -> Launch {
    flash(Launch::new(programs!().launcher), folder.path(), steps)
        .env("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "20")
        .flags(["--max-restarts=3"])
}

/// Where a rank has loaded from in a round.
fn loaded_by(run: &Running, rank: u32, round: u32) -> (String, Option<u64>) {
    loaded(&run.await_file(&format!("{rank}.{round}.loaded")))
}

#[test]
fn a_run_without_checkpoints_starts_no_saver() {
    let folder = Folder::new();
    let run = launch(&folder, &["say here", "await go", "exit 0"]).start();
    let _here = run.await_file("0.0.here");
    assert_eq!(savers(&run), [0; 0]);
    run.touch("go");
    let _outcome = run.finish().expect_code(0);
}

#[test]
fn metrics_have_the_steps_in_memory_and_on_disk() {
    let folder = Folder::new();
    let port = free_port();
    let http = format!("--http={port}");
    let steps = ["load", "disk 10", "wait", "memory 20", "say saved", "await go", "exit 0"];
    let run = launch(&folder, &steps).flags(["--nproc-per-node=2", &http]).start();
    let _saved = [0, 1].map(|rank| run.await_file(&format!("{rank}.0.saved")));
    let path = folder.path().display();
    wait_for("the steps of the checkpoint", || {
        let (code, text) = get(port, "/metrics", "");
        assert_eq!(code, 200, "{text}");
        let step = |of: &str| metric(&text, &format!("dlrover_checkpoint_{of}{{folder=\"{path}\"}}"));
        (["memory_step", "disk_step", "writing_bytes"].map(step) == [Some(20.0), Some(10.0), None])
            .then_some(())
    });
    run.touch("go");
    let _outcome = run.finish().expect_code(0);
}

#[test]
fn a_killed_rank_is_restored_from_memory_on_all_ranks() {
    let folder = Folder::new();
    let steps = [
        "load",
        // Ranks load before one of them saves: later ones would find that.
        "0@0 await 1.0.loaded",
        "@0 disk 10",
        "@0 wait",
        "@0 memory 20",
        "@0 say saved",
        "@0 hang",
        "@1 memory 30",
        "exit 0",
    ];
    let run = launch(&folder, &steps).flags(["--nproc-per-node=2"]).start();
    assert_eq!([0, 1].map(|rank| loaded_by(&run, rank, 0)), [nothing(), nothing()]);
    assert_eq!(run.await_file("0.0.waited"), "true");
    let _other = run.await_file("1.0.saved");
    kill_pid(&run.await_file("0.0.saved"));
    let memory = from("memory", 20);
    assert_eq!([0, 1].map(|rank| loaded_by(&run, rank, 1)), [memory.clone(), memory]);
    let _outcome = run.finish().expect_code(0);
    assert_eq!(folder.step(), Some(10), "what was saved into memory only stays there");
    folder.assert_swept();
}

#[test]
fn after_a_kill_in_the_middle_of_a_copy_the_step_before_it_is_restored() {
    for (flags, on_disk) in [(&["--max-restarts=3"][..], 10), (&["--save-at-breakpoint"], 30)] {
        let folder = Folder::new();
        let steps = [
            "load",
            "0@0 await 1.0.loaded",
            "@0 disk 10",
            "@0 wait",
            "@0 memory 30",
            "1@0 say ready",
            "1@0 hang",
            "@0 await 1.0.ready",
            "@0 torn 40",
            "exit 0",
        ];
        let run = launch(&folder, &steps).flags(["--nproc-per-node=2"]).flags(flags).start();
        let memory = from("memory", 30);
        assert_eq!([0, 1].map(|rank| loaded_by(&run, rank, 1)), [memory.clone(), memory]);
        let _outcome = run.finish().expect_code(0);
        assert_eq!(folder.step(), Some(on_disk));
        folder.assert_swept();
    }
}

/// As containers have it by default. DLRover's shared memory is there, and a worker that writes beyond it is killed.
#[test]
fn states_larger_than_dev_shm_are_saved_and_restored() {
    if !nix::unistd::geteuid().is_root() {
        // Past cargo's capture. A closed stderr must not fail the case.
        let _ = writeln!(std::io::stderr(), "skipped: a small /dev/shm can be mounted by root only");
        return;
    }
    let folder = Folder::new();
    let small = "mount -t tmpfs -o size=64m tmpfs /dev/shm && df -k /dev/shm && exec \"$@\"";
    let launcher = Launcher { program: "unshare".into(), is_torchrun: false };
    let launch = Launch::new(launcher).flags(["--mount", "sh", "-c", small, "sh"]);
    let steps =
        ["load", "@0 disk 10", "@0 wait", "@0 memory 20", "@0 say saved", "@0 hang", "disk 30", "exit 0"];
    let launch = flash(launch.flags([programs!().launcher.program]), folder.path(), &steps);
    let run = launch.env("FLASH_BYTES", "100000000").flags(["--max-restarts=3"]).start();
    kill_pid(&run.await_file("0.0.saved"));
    assert_eq!(loaded_by(&run, 0, 1), from("memory", 20));
    let outcome = run.finish().expect_code(0);
    assert!(outcome.stdout.contains(" 65536 "), "{outcome:#?}");
    assert_eq!(folder.step(), Some(30));
}

#[test]
fn with_save_at_breakpoint_the_step_in_memory_goes_to_disk_when_a_rank_fails() {
    let folder = Folder::new();
    let steps = ["load", "@0 disk 10", "@0 memory 20", "@0 say saved", "@0 hang", "wait", "exit 0"];
    let run = launch(&folder, &steps).flags(["--save-at-breakpoint"]).start();
    kill_pid(&run.await_file("0.0.saved"));
    assert_eq!(loaded_by(&run, 0, 1), from("memory", 20));
    let _outcome = run.finish().expect_code(0);
    assert_eq!(folder.step(), Some(20));
}

#[test]
fn the_last_save_is_on_disk_when_a_run_that_succeeded_has_ended() {
    let folder = Folder::new();
    let run = launch(&folder, &["load", "disk 1", "memory 2", "disk 3", "exit 0"]).start();
    let _outcome = run.finish().expect_code(0);
    assert_eq!(folder.step(), Some(3));
    folder.assert_swept();
}

#[test]
fn after_sigterm_the_step_in_memory_is_on_disk() {
    for ignores in ["say ready", "term"] {
        let folder = Folder::new();
        let steps = ["load", "disk 1", ignores, "memory 2", "say saved", "hang"];
        let run = launch(&folder, &steps).env("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3").start();
        let _saved = run.await_file("0.0.saved");
        run.signal(Signal::SIGTERM);
        let outcome = run.finish().expect_code(1);
        assert_eq!(folder.step(), Some(2), "{outcome:#?}");
        assert!(outcome.stderr.contains("of checkpoints to disk before the saver exits"), "{outcome:#?}");
    }
}

#[test]
fn the_run_after_it_continues_from_disk() {
    let folder = Folder::new();
    let _first = launch(&folder, &["load", "disk 7", "exit 0"]).finish().expect_code(0);
    let run = launch(&folder, &["load", "disk 8", "exit 0"]).start();
    assert_eq!(loaded_by(&run, 0, 0), from("disk", 7));
    let _outcome = run.finish().expect_code(0);
    assert_eq!(folder.step(), Some(8));
}

#[test]
fn workers_survive_the_death_of_their_saver_and_the_next_ones_have_another() {
    let folder = Folder::new();
    let steps = [
        "load",
        "@0 disk 10",
        "@0 wait",
        "@0 memory 20",
        "@0 say saved",
        "@0 await killed",
        "@0 try 21",
        "@0 say alive",
        "@0 hang",
        "@1 memory 30",
        "@1 say saved",
        "@1 await go",
        "exit 0",
    ];
    let run = launch(&folder, &steps).start();
    let _saved = run.await_file("0.0.saved");
    let first = savers(&run);
    assert_eq!(first.len(), 1);
    kill_pid(&first[0].to_string());
    let told = "this node has no saver (killed by SIGKILL); checkpoints that it had in memory are lost";
    wait_for("the message", || run.stderr().contains(told).then_some(()));
    run.touch("killed");
    kill_pid(&run.await_file("0.0.alive"));
    assert_eq!(loaded_by(&run, 0, 1), from("disk", 10));
    let _saved = run.await_file("0.1.saved");
    assert!(matches!(savers(&run)[..], [second] if second != first[0]));
    run.touch("go");
    let _outcome = run.finish().expect_code(0);
}

#[test]
fn a_launcher_that_is_killed_leaves_no_saver_and_nothing_half_written() {
    let folder = Folder::new();
    let run =
        launch(&folder, &["load", "disk 10", "wait", "disk 20", "memory 30", "say saved", "hang"]).start();
    let _saved = run.await_file("0.0.saved");
    run.signal(Signal::SIGKILL);
    let outcome = run.finish();
    assert_eq!(outcome.signal, Some(9), "{outcome:#?}");
    assert!(matches!(folder.step(), Some(10 | 20)), "{outcome:#?}");
    let again = launch(&folder, &["load", "disk 40", "exit 0"]).start();
    let (source, step) = loaded_by(&again, 0, 0);
    assert_eq!((source.as_str(), step), ("disk", folder.step()));
    let _outcome = again.finish().expect_code(0);
    folder.assert_swept();
}

/// No saver has a part in what the worker writes by itself, and it counts all the same: with each restart, not only
/// with the first one of a directory in which the job has found nothing.
#[test]
fn without_memory_each_round_continues_from_the_last_save_of_the_one_before() {
    let folder = Folder::new();
    let steps = [
        "load",
        "@0 disk 5",
        "@0 disk 10",
        "@1 disk 15",
        "@1 disk 20",
        "@2 disk 25",
        "@2 disk 30",
        "@3 exit 0",
        "say saved",
        "hang",
    ];
    let run = launch(&folder, &steps).flags(["--flash-ckpt-memory=0"]).start();
    assert_eq!(loaded_by(&run, 0, 0), nothing());
    for (round, step) in [(0, 10), (1, 20), (2, 30)] {
        kill_pid(&run.await_file(&format!("0.{round}.saved")));
        assert_eq!(loaded_by(&run, 0, round + 1), from("disk", step));
    }
    let _outcome = run.finish().expect_code(0);
    assert_eq!(folder.step(), Some(30));
}

#[test]
fn what_workers_save_after_the_death_of_their_saver_is_what_the_next_ones_load() {
    let folder = Folder::new();
    let steps = [
        "load",
        "@0 disk 10",
        "@0 wait",
        "@0 say saved",
        "@0 await killed",
        "@0 disk 20",
        "@0 disk 30",
        "@0 say alive",
        "@0 hang",
        "exit 0",
    ];
    let run = launch(&folder, &steps).start();
    let _saved = run.await_file("0.0.saved");
    kill_pid(&savers(&run)[0].to_string());
    wait_for("the message", || run.stderr().contains("this node has no saver").then_some(()));
    run.touch("killed");
    kill_pid(&run.await_file("0.0.alive"));
    // The next saver may have taken it already.
    assert_eq!(loaded_by(&run, 0, 1).1, Some(30));
    let _outcome = run.finish().expect_code(0);
    assert_eq!(folder.step(), Some(30));
}

#[test]
fn without_memory_each_save_is_written_at_once() {
    let folder = Folder::new();
    let run = launch(&folder, &["load", "disk 5", "exit 0"]).flags(["--flash-ckpt-memory=0"]).start();
    let _outcome = run.finish().expect_code(0);
    assert_eq!(folder.step(), Some(5));
}
