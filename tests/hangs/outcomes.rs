//! One job of each kind: whether it is declared, who is named, the files, and the status.

use std::io::{Write as _, stderr};

use support::launcher;

use crate::{
    case::{Case, Kind, TORCH_KINDS},
    observed::{Observed, all_files, observe},
    torch_python,
};

/// The hang is declared, with the ranks, the reason and the files that the case has.
#[track_caller]
fn declared(case: &Case) {
    let launch = case.launch(launcher!());
    let stacks = launch.dir().join("stacks");
    let observed = observe(case, launch);
    let Observed::Declared(hang) = &observed else { panic!("{case:?}: {observed:?}") };
    assert_eq!(Some(hang.ranks()), case.expected(), "{hang:?}");
    for words in [hang.sentence(), &hang.line] {
        assert!(case.says().iter().all(|word| words.contains(word)), "{:?}: {hang:?}", case.says());
    }
    assert!(
        hang.line
            .ends_with(&format!("; stacks of all ranks, written by the job master: {}", stacks.display())),
        "{hang:?}"
    );
    assert_eq!(hang.files, all_files(case.ranks), "{hang:?}");
    let status = &hang.status;
    assert_eq!((&status["count"], &status["is_over"]), (&1.into(), &false.into()), "{hang:?}");
    assert_eq!(status["folder"], *stacks.to_string_lossy(), "{hang:?}");
    assert!(
        status["idle_seconds"].as_f64().is_some_and(|idle| idle >= f64::from(case.kind.timeout)),
        "{hang:?}"
    );
}

/// The job succeeds, and no hang is declared.
#[track_caller]
fn not_declared(case: &Case) {
    let observed = observe(case, case.launch(launcher!()));
    assert!(matches!(observed, Observed::Ended), "{case:?}: {observed:?}");
}

#[test]
fn an_endless_loop() {
    declared(&Case::of("loop", 3, 1));
}

/// It is the stack of the shell's child that tells.
#[test]
fn an_endless_loop_below_a_shell() {
    declared(&Case::of("below a shell", 3, 1));
}

#[test]
fn a_lock_that_is_never_released() {
    declared(&Case::of("lock", 2, 0));
}

#[test]
fn a_rank_that_is_stopped() {
    declared(&Case::of("stopped", 4, 2));
}

#[test]
fn a_fifo_without_a_writer() {
    declared(&Case::of("fifo", 3, 2));
}

#[test]
fn a_helper_that_died_without_notice() {
    declared(&Case::of("dead helper", 3, 0));
}

#[test]
fn a_queue_that_a_thread_no_longer_fills() {
    declared(&Case::of("queue of a thread", 2, 1));
}

#[test]
fn two_ranks_that_wait_for_each_other() {
    declared(&Case { other: 3, ..Case::of("deadlock", 4, 1) });
}

#[test]
fn a_rank_that_skips_a_sum() {
    declared(&Case::of("skipped sum", 4, 3));
}

#[test]
fn a_rank_that_has_ended_well() {
    declared(&Case::of("early exit", 3, 1));
}

/// Its peers wait in `recv`, by sockets that a process of its own keeps open.
#[test]
fn a_ring_that_waits_for_a_dead_peer() {
    let case = Case::of("dead peer", 4, 2);
    let kind = Kind { says: &["rank 2 has no process", "0-1,3 wait in all_reduce"], ..case.kind };
    declared(&Case { kind, ..case });
}

#[test]
fn a_lost_message_is_no_ranks_fault() {
    declared(&Case::of("lost message", 3, 0));
}

#[test]
fn slow_steps_are_no_hang() {
    not_declared(&Case::of("slow", 2, 0));
}

/// It is waited for by its peers in each step.
#[test]
fn one_slow_rank_is_no_hang() {
    not_declared(&Case::of("one slow rank", 3, 1));
}

#[test]
fn a_declared_checkpoint_is_no_hang() {
    not_declared(&Case::of("checkpoint", 2, 1));
}

#[test]
fn a_long_first_step_is_no_hang() {
    not_declared(&Case::of("long first step", 2, 0));
}

/// Hangs of DDP over gloo, and not a line of ours.
const TORCH_HANGS: [&str; 5] = [
    "torch: loader",
    "torch: skipped backward",
    "torch: stopped",
    "torch: skipped collective",
    "torch: backward in its thread",
];

/// Each of them, with the rank at fault.
#[track_caller]
fn declared_with_torch(ranks: u32, at_fault: [u32; 5]) {
    let Some(python) = torch_python() else {
        // Past cargo's capture; a closed stderr fails nothing.
        let _written = writeln!(stderr(), "skipped: TORCH_PYTHON is not set");
        return;
    };
    for (name, who) in TORCH_HANGS.iter().zip(at_fault) {
        let kind = TORCH_KINDS.iter().find(|kind| kind.name == *name).expect("a kind");
        declared(&Case::of_torch(*kind, ranks, who, python.clone()));
    }
}

#[test]
fn torch_of_two_ranks_without_a_change_of_the_script() {
    declared_with_torch(2, [1, 0, 1, 0, 1]);
}

#[test]
fn torch_of_four_ranks_without_a_change_of_the_script() {
    declared_with_torch(4, [2, 3, 0, 1, 2]);
}
