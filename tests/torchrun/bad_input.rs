//! Invalid input: the exit code, the offending value in the message, and no worker started.
//!
//! 2 is argparse's code; everything else that is wrong exits 1.

use std::io::Write;

use support::launch::Launch;
use support::launcher;

use crate::{differs::torchrun_differs, launch};

/// Each command line must end with `code`, print `told` on stderr, and start no worker.
#[track_caller]
fn refused(code: i32, cases: &[(&[&str], &str)]) {
    for (flags, told) in cases {
        refuse(code, launch().flags(*flags), told);
    }
}

#[track_caller]
fn refuse(code: i32, run: Launch, told: &str) {
    let run = run.finish().expect_code(code);
    assert!(run.stderr.contains(told), "`{told}` is not told: {run:#?}");
    assert_eq!(run.dumps(), [], "{run:#?}");
    assert_eq!(run.stdout, "", "{run:#?}");
    if !launcher!().is_torchrun {
        // torchrun prints usage and tracebacks; ours prints messages.
        assert!(
            run.stderr.starts_with("dlrover-run: error: ") || run.stderr.starts_with("usage: "),
            "{run:#?}"
        );
        assert!(run.stderr.lines().count() < 10 && !run.stderr.contains("panicked"), "{run:#?}");
    }
}

#[test]
fn an_unknown_or_ambiguous_flag_is_2() {
    refused(2, &[(&["--bogus"], "--bogus"), (&["--no"], "--no"), (&["--standalone=1"], "--standalone")]);
}

#[test]
fn a_missing_script_is_2() {
    refuse(2, launch().flags(["--standalone"]).without_script(), "training_script");
}

#[test]
fn a_missing_value_is_2() {
    refuse(2, launch().flags(["--standalone", "--max-restarts"]).without_script(), "--max-restarts");
    refused(2, &[(&["--max-restarts", "--standalone"], "--max-restarts")]);
}

#[test]
fn text_instead_of_a_number_is_2() {
    refused(
        2,
        &[
            (&["--max-restarts=ten"], "ten"),
            (&["--monitor-interval=often"], "often"),
            (&["--node-rank=first"], "first"),
            (&["--master-port=http"], "http"),
            (&["--shutdown-timeout=1.5"], "1.5"),
        ],
    );
}

#[test]
fn an_invalid_choice_is_2() {
    refused(2, &[(&["--start-method=thread"], "thread"), (&["--numa-binding=moon"], "moon")]);
    refuse(2, launch().flags(["--print-completion=cobol"]).without_script(), "cobol");
}

#[test]
fn an_invalid_pet_number_is_2() {
    refuse(2, launch().env("PET_MAX_RESTARTS", "ten"), "ten");
    refuse(2, launch().env("PET_MONITOR_INTERVAL", "often"), "often");
}

#[test]
fn an_invalid_pet_switch_is_1() {
    refuse(1, launch().env("PET_STANDALONE", "yes"), "yes");
    refuse(1, launch().env("PET_MODULE", ""), "");
}

#[test]
fn a_bad_number_of_nodes_is_1() {
    refused(
        1,
        &[
            (&["--nnodes=1:2:3"], "1:2:3"),
            (&["--nnodes=a"], "a"),
            (&["--nnodes=0"], "0"),
            (&["--nnodes=2:1"], "2"),
        ],
    );
}

#[test]
fn a_bad_number_of_workers_is_1() {
    refused(
        1,
        &[
            (&["--nproc-per-node=abc"], "Unsupported nproc_per_node value: abc"),
            (&["--nproc-per-node=0"], ""),
            (&["--nproc-per-node=-1"], ""),
        ],
    );
}

#[test]
fn missing_devices_are_1() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        // Past cargo's capture. A closed stderr must not fail the case.
        let _ = writeln!(std::io::stderr(), "skipped: this host has a GPU");
        return;
    }
    refused(
        1,
        &[
            (&["--nproc-per-node=gpu"], "Cuda is not available."),
            (&["--nproc-per-node=xpu"], "Xpu is not available."),
            (&["--numa-binding=node"], "No accelerator available"),
        ],
    );
}

#[test]
fn a_bad_rendezvous_is_1() {
    refused(
        1,
        &[
            (&["--rdzv-backend=bogus"], "bogus"),
            (&["--rdzv-conf=abc"], "abc"),
            (&["--rdzv-conf==x"], ""),
            (&["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:http"], "localhost:http"),
        ],
    );
}

#[test]
fn a_number_out_of_range_is_1() {
    refused(
        1,
        &[
            (&["--max-restarts=-1"], "max_restarts"),
            (&["--monitor-interval=0"], ""),
            (&["--shutdown-timeout=-1"], "-1"),
        ],
    );
}

#[test]
fn an_unknown_event_handler_is_1() {
    refused(1, &[(&["--event-log-handler=zzz"], "zzz")]);
}

#[test]
fn a_module_without_python_is_1() {
    refused(1, &[(&["-m", "--no-python"], "--no-python")]);
}

#[test]
fn a_bad_redirect_is_1() {
    refused(1, &[(&["-r9"], "9"), (&["-r", "0:9"], "0:9"), (&["--tee=0:1,"], "0:1,"), (&["--tee=x"], "x")]);
}

#[test]
fn a_bad_rank_filter_is_1() {
    refused(1, &[(&["--local-ranks-filter=0,x"], "--local")]);
}

#[test]
fn a_log_dir_that_is_a_file_is_1() {
    let run = launch();
    let file = run.dir().join("file");
    std::fs::write(&file, "").expect("our own directory");
    let flag = format!("--log-dir={}", file.display());
    refuse(1, run.flags([flag]), file.to_str().expect("a plain path"));
}

#[test]
fn too_few_devices_for_virtual_ranks_is_1() {
    let run = launch().flags(["--standalone", "--virtual-local-rank", "--nproc-per-node=2"]);
    refuse(1, run.env("CUDA_VISIBLE_DEVICES", "4"), "CUDA_VISIBLE_DEVICES=4");
}

#[test]
fn a_missing_script_is_reported_once_and_starts_no_worker() {
    let differs = torchrun_differs("a_missing_script_is_reported_once_and_starts_no_worker");
    let run =
        launch().flags(["--standalone", "--nproc-per-node=8"]).script("nosuch.py").finish().expect_code(1);
    assert_eq!(run.stderr.contains("ChildFailedError"), differs, "{run:#?}");
    if differs {
        return;
    }
    assert_eq!(run.stderr.lines().count(), 1, "{run:#?}");
    // There is no wait before that.
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", support::free_port());
    let lines = [&["--nnodes=2", "--rdzv-backend=c10d", &endpoint][..], &["--run-path"], &["--no-python"]];
    for flags in lines {
        refuse(1, launch().flags(flags).script("./nosuch.py"), "./nosuch.py: No such file or directory");
    }
    refuse(
        1,
        launch().flags(["--no-python"]).script("no-such-program"),
        "cannot run no-such-program: not found on PATH; give its path",
    );
    let private = launch();
    let script = private.dir().join("private.py");
    std::fs::write(&script, "").expect("our own directory");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o000))
        .expect("our own file");
    if std::fs::File::open(&script).is_err() {
        refuse(1, private.script(&script), "Permission denied");
    }
}

#[test]
fn scripts_that_only_python_finds_are_accepted() {
    // A directory with a main program, one for each rank, and standard input.
    let run = launch().flags(["--standalone"]);
    // Unbuffered, `print` writes the text and the end of its line apart, and two ranks share the pipe.
    let program = "import os; os.write(1, b'ran\\n')";
    for name in ["app", "of_0", "of_1"] {
        std::fs::create_dir(run.dir().join(name)).expect("our own directory");
        std::fs::write(run.dir().join(name).join("__main__.py"), program).expect("our own directory");
    }
    let dir = run.dir().to_owned();
    for script in ["app", "of_${local_rank}"] {
        let again = launch().flags(["--standalone", "--nproc-per-node=2"]);
        let run = again.script(dir.join(script)).finish().expect_code(0);
        assert_eq!(run.stdout, "ran\nran\n", "{run:#?}");
    }
    // One rank: unbuffered, two would read the program from the same pipe, each a part of it.
    let run = run.script("-").stdin(program).finish().expect_code(0);
    assert_eq!(run.stdout, "ran\n", "{run:#?}");
}

#[test]
fn a_file_rendezvous_of_several_nodes_is_refused() {
    if launcher!().is_torchrun {
        // Past cargo's capture. A closed stderr must not fail the case.
        let _ = writeln!(std::io::stderr(), "skipped: torchrun would wait there for the second node");
        return;
    }
    let flags =
        ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=/tmp/store", "--rdzv-conf=store_type=file"];
    refuse(1, launch().flags(flags), "`--rdzv-conf=store_type=file` is a rendezvous over a file");
}

#[test]
fn a_missing_or_invalid_executable_is_1_without_a_report() {
    let run =
        launch().flags(["--standalone", "--no-python"]).script("/nowhere/at-all").finish().expect_code(1);
    assert!(
        run.stderr.contains("No such file or directory") && run.stderr.contains("/nowhere/at-all"),
        "{run:#?}"
    );
    assert!(!run.stderr.contains("ChildFailedError"), "{run:#?}");

    let run = launch();
    let plain = run.dir().join("plain");
    std::fs::write(&plain, "text").expect("our own directory");
    let run = run.flags(["--standalone", "--no-python"]).script(&plain).finish().expect_code(1);
    assert!(run.stderr.contains("Permission denied"), "{run:#?}");
    assert!(!run.stderr.contains("ChildFailedError"), "{run:#?}");
}
