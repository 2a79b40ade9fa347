//! Where `dlrover-run` is not torchrun, on purpose.

use std::io::Write;

use support::launcher;

struct Difference {
    /// The name of the test.
    case: &'static str,
    reason: &'static str,
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        case: "a_prefix_of_both_spellings_is_accepted",
        reason: "`--nproc` is ambiguous for torchrun on Python < 3.12.7 only; both spellings are one flag",
    },
    Difference {
        case: "ranks_of_two_digits_can_be_redirected",
        reason: "torchrun's grammar knows ranks 0-9 only and refuses `10:1`",
    },
    Difference {
        case: "options_that_need_python_are_refused",
        reason: "--logs-specs names a class of torchrun's own interpreter (exit 1 there); exit 2 and a sentence",
    },
    Difference {
        case: "a_missing_script_is_reported_once_and_starts_no_worker",
        reason: "torchrun meets the others first, and then lets every worker say it",
    },
    Difference {
        case: "control_characters_of_a_worker_are_escaped_in_the_report",
        reason: "torchrun prints terminal escapes of an error file as they are",
    },
    Difference {
        case: "output_that_the_console_does_not_take_is_reported_once",
        reason: "torchrun's tailer dies of it with a traceback, and the run goes on",
    },
    Difference {
        case: "events_have_times_and_process_ids",
        reason: "torchrun leaves timestamp 0, and knows the pid of a worker only when that failed",
    },
    Difference {
        case: "completion_is_printed",
        reason: "torchrun needs the shtab package for it and exits 1 without",
    },
    Difference { case: "the_version_is_printed", reason: "torchrun has no --version and asks for a script" },
    Difference {
        case: "progress_bars_stay_lines_that_are_rewritten",
        reason: "torchrun's tailer turns every `\\r` into a line of its own",
    },
    Difference {
        case: "a_last_line_without_its_end_is_shown",
        reason: "torchrun leaves it open, and the next rank's line goes on behind it",
    },
    Difference {
        case: "lines_of_concurrent_ranks_are_not_mixed",
        reason: "torchrun's tailers share an unlocked stream: some lines are cut in two",
    },
    Difference {
        case: "bytes_that_are_not_utf8_reach_the_console",
        reason: "torchrun decodes and puts U+FFFD in their place",
    },
    Difference {
        case: "the_last_lines_of_the_root_cause_are_reported",
        reason: "torchrun does not keep what a worker printed",
    },
    Difference {
        case: "a_malformed_error_file_is_not_fatal",
        reason: "torchrun dies of it with a JSONDecodeError and prints no report",
    },
    Difference {
        case: "the_launcher_prints_no_traceback_of_its_own",
        reason: "torchrun's report is the end of a Python traceback",
    },
    Difference {
        case: "a_restart_starts_from_an_empty_store",
        reason: "torchrun serves the keys of the last attempt to the next one (pytorch #135712)",
    },
    Difference {
        case: "the_grace_is_the_same_after_a_failure",
        reason: "torchrun waits 30 s there whatever --shutdown-timeout says; not run against it",
    },
    Difference { case: "a_second_signal_skips_the_grace", reason: "torchrun starts the whole grace anew" },
    Difference {
        case: "usr1_goes_to_the_workers",
        reason: "torchrun dies of SIGUSR1 and leaves the workers running",
    },
    Difference {
        case: "nohup_survives_a_hangup",
        reason: "torchrun puts its handler over the ignored SIGHUP and stops the job",
    },
    Difference {
        case: "a_parent_that_ignores_sigchld_does_not_hang_the_launcher",
        reason: "torchrun takes every worker's end for a success then",
    },
    Difference {
        case: "grandchildren_of_a_failed_run_are_gone",
        reason: "torchrun signals groups of living leaders only: setsid'd, double-forked and leaderless ones stay",
    },
    Difference {
        case: "grandchildren_of_a_run_that_succeeded_are_gone",
        reason: "torchrun does not look for them",
    },
    Difference {
        case: "a_killed_launcher_leaves_no_workers",
        reason: "torchrun's workers live on without it",
    },
    Difference {
        case: "a_parent_that_ignored_sigchld_hides_no_exit",
        reason: "torchrun's subprocess module sees no exit code then and takes every end for success",
    },
    Difference {
        case: "a_refusal_with_closed_output_still_exits_with_its_code",
        reason: "Python exits with 120 when standard error cannot be written",
    },
    Difference {
        case: "a_signal_that_cannot_be_handled_is_skipped",
        reason: "torchrun takes SIGSEGV too; in Rust no handler can go on after one. Ours says so and runs",
    },
    Difference {
        case: "a_full_store_closes_the_connection_and_reports_it",
        reason: "torchrun's store has no limit",
    },
    Difference {
        case: "a_parent_that_blocked_all_signals_delays_nothing",
        reason: "torchrun leaves them blocked and never sees a SIGTERM",
    },
];

/// True where torchrun is tested with a case that it may fail: printed past cargo's capture.
pub fn torchrun_differs(case: &str) -> bool {
    let difference = DIFFERENCES.iter().find(|difference| difference.case == case);
    let difference = difference.unwrap_or_else(|| panic!("{case} is not in the table of differences"));
    let is_torchrun = launcher!().is_torchrun;
    if is_torchrun {
        // A closed stderr must not fail the case.
        let _ = writeln!(std::io::stderr(), "differs: {}: {}", difference.case, difference.reason);
    }
    is_torchrun
}

#[test]
fn every_difference_has_its_case() {
    let sources = [
        include_str!("bad_input.rs"),
        include_str!("environment.rs"),
        include_str!("failures.rs"),
        include_str!("flags.rs"),
        include_str!("logs.rs"),
        include_str!("signals.rs"),
        include_str!("store.rs"),
        include_str!("surroundings.rs"),
        include_str!("training.rs"),
    ];
    for difference in DIFFERENCES {
        let (name, asked) = (difference.case, format!("torchrun_differs(\"{}\")", difference.case));
        let found =
            sources.iter().any(|source| source.contains(&format!("fn {name}()")) && source.contains(&asked));
        assert!(found, "no case {name} asks for its difference");
    }
}
