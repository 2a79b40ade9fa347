//! Two launchers on one host.

use nix::sys::signal::Signal;

use super::*;

const FOUR: [&str; 3] = ["--nproc-per-node=4", "--gpu-select=topology", "--gpu-select-only"];

/// The numbers that the workers of a run see.
fn seen(run: &support::launch::Outcome) -> Vec<usize> {
    numbers(run.dump(0, 0).var("CUDA_VISIBLE_DEVICES"))
}

#[test]
fn the_second_launcher_chooses_from_the_rest() {
    let node = FakeNode::dgx(&[]);
    let first = node.launch(&FOUR).steps(&["dump", "touch here", "await end"]).start();
    first.await_file("here");
    let second = node.launch(&FOUR).steps(&["dump"]).finish().expect_code(0);
    assert_eq!(seen(&second), [4, 5, 6, 7]);
    let with_the_rest = node.launch(&["--nproc-per-node=2", "--gpu-select=topology"]).steps(&["dump"]);
    assert_eq!(seen(&with_the_rest.finish().expect_code(0)), [4, 7, 5, 6], "what others hold is not free");
    // For a third nothing is left while the first runs; it starts without a choice.
    let third = node.launch(&["--nproc-per-node=5", "--gpu-select=topology"]).steps(&["dump"]);
    let third = third.finish().expect_code(0);
    assert!(!third.dump(0, 0).env.contains_key("CUDA_VISIBLE_DEVICES"));
    assert!(
        third.stderr.contains(
            "too few free GPUs: 5 requested, 4 free (left out: GPUs 0,1,2,3 taken by one or more other launchers)"
        ),
        "{}",
        third.stderr
    );
    let refused = node.launch(&["--nproc-per-node=1", "--gpu-select=3"]).finish().expect_code(1);
    assert!(refused.stderr.contains("GPU 3 is taken by another launcher on this host"), "{}", refused.stderr);

    first.touch("end");
    assert_eq!(seen(&first.finish().expect_code(0)), [0, 1, 2, 3]);
    let next = node.launch(&FOUR).steps(&["dump"]).finish().expect_code(0);
    assert_eq!(seen(&next), [0, 1, 2, 3], "what an ended launcher held is free");
}

#[test]
fn concurrent_launchers_choose_different_devices() {
    let node = FakeNode::dgx(&[]);
    let flags = ["--nproc-per-node=2", "--gpu-select=topology", "--gpu-select-only"];
    let start = |_| node.launch(&flags).steps(&["dump", "0 touch here", "await end"]).start();
    let runs: Vec<_> = (0..4).map(start).collect();
    for run in &runs {
        run.await_file("here");
    }
    let mut all = Vec::new();
    for run in runs {
        run.touch("end");
        all.extend(seen(&run.finish().expect_code(0)));
    }
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_killed_launcher_holds_no_locks() {
    let node = FakeNode::dgx(&[]);
    let killed = node.launch(&FOUR).steps(&["touch here", "hang"]).start();
    killed.await_file("here");
    killed.signal(Signal::SIGKILL);
    drop(killed.finish_whatever_is_left());
    let next = node.launch(&FOUR).steps(&["dump"]).finish().expect_code(0);
    assert_eq!(seen(&next), [0, 1, 2, 3]);
}

#[test]
fn a_lock_folder_that_others_can_write_is_not_used() {
    let node = FakeNode::dgx(&[]);
    fs::set_permissions(node.path("locks"), fs::Permissions::from_mode(0o777)).unwrap();
    let run = node.launch(&FOUR).steps(&["dump"]).finish().expect_code(0);
    assert!(run.stderr.contains("GPUs cannot be locked"), "{}", run.stderr);
    assert_eq!(seen(&run), [0, 1, 2, 3]);
}
