//! The environment of a worker.

use support::launch::Outcome;

use crate::launch;

#[test]
fn every_variable_of_two_workers() {
    let run = launch()
        .flags(["--standalone", "--nproc-per-node=2", "--max-restarts=3"])
        // Variables of a pod's controller must not reach the workers.
        .env("RANK", "7")
        .env("WORLD_SIZE", "16")
        .env("LOCAL_RANK", "5")
        .env("LOCAL_WORLD_SIZE", "8")
        .env("GROUP_RANK", "6")
        .env("MASTER_ADDR", "pod-0.nowhere")
        .env("MASTER_PORT", "23456")
        .env("TORCHELASTIC_RESTART_COUNT", "9")
        .env("TORCHELASTIC_RUN_ID", "old")
        .env("TORCHELASTIC_USE_AGENT_STORE", "False")
        // Other variables are passed through.
        .env("NODE_RANK", "4")
        .env("CUDA_VISIBLE_DEVICES", "3,1")
        .env("SOMETHING", "else")
        .finish()
        .expect_code(0);
    for rank in [0, 1] {
        let worker = run.dump(rank, 0);
        let r = rank.to_string();
        for (name, value) in [
            ("LOCAL_RANK", r.as_str()),
            ("RANK", &r),
            ("GROUP_RANK", "0"),
            ("ROLE_RANK", &r),
            ("ROLE_NAME", "default"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("WORLD_SIZE", "2"),
            ("GROUP_WORLD_SIZE", "1"),
            ("ROLE_WORLD_SIZE", "2"),
            ("TORCHELASTIC_RESTART_COUNT", "0"),
            ("TORCHELASTIC_MAX_RESTARTS", "3"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            ("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
            ("OMP_NUM_THREADS", "1"),
            ("NODE_RANK", "4"),
            ("CUDA_VISIBLE_DEVICES", "3,1"),
            ("SOMETHING", "else"),
            ("TORCHELASTIC_TIMER_FILE", "(unset)"),
        ] {
            assert_eq!(worker.var(name), value, "{name} of rank {rank}");
        }
        assert_ne!(worker.var("MASTER_ADDR"), "pod-0.nowhere");
        let port: u16 = worker.var("MASTER_PORT").parse().expect("a port");
        assert!(port != 23456 && port != 29500, "a free port: {port}");
        let error_file = worker.var("TORCHELASTIC_ERROR_FILE");
        assert!(error_file.ends_with(&format!("/attempt_0/{rank}/error.json")), "{error_file}");
        let run_id = worker.var("TORCHELASTIC_RUN_ID");
        assert!(error_file.contains(&format!("/{run_id}_")), "{error_file} and {run_id}");
    }
    let (first, second) = (run.dump(0, 0), run.dump(1, 0));
    for name in ["TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"] {
        assert_eq!(first.var(name), second.var(name));
    }
}

fn warns_of_threads(run: &Outcome) -> bool {
    run.stderr.contains("OMP_NUM_THREADS")
}

#[test]
fn threads_are_limited_for_several_workers_unless_the_user_set_a_number() {
    let several = launch().flags(["--standalone", "--nproc-per-node=2"]).finish().expect_code(0);
    assert_eq!(several.dump(0, 0).var("OMP_NUM_THREADS"), "1");
    assert!(warns_of_threads(&several), "{several:#?}");

    let alone = launch().flags(["--standalone"]).finish().expect_code(0);
    assert_eq!(alone.dump(0, 0).var("OMP_NUM_THREADS"), "(unset)");
    assert!(!warns_of_threads(&alone), "{alone:#?}");

    let output = launch().flags(["--standalone", "--nproc-per-node=2"]).env("OMP_NUM_THREADS", "4");
    let output = output.env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0").finish().expect_code(0);
    assert_eq!(output.dump(1, 0).var("OMP_NUM_THREADS"), "4");
    assert_eq!(output.dump(1, 0).var("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "0");
    assert!(!warns_of_threads(&output), "{output:#?}");
}

#[test]
fn a_standalone_run_has_an_id_of_its_own() {
    let run = launch().flags(["--standalone", "--rdzv-id=mine"]).finish().expect_code(0);
    let id = run.dump(0, 0).var("TORCHELASTIC_RUN_ID").to_owned();
    assert_eq!((id.len(), id.matches('-').count()), (36, 4), "a uuid: {id}");
    // One node without options is the same.
    let run = launch().flags(["--rdzv-id=mine"]).finish().expect_code(0);
    let other = run.dump(0, 0).var("TORCHELASTIC_RUN_ID").to_owned();
    assert_eq!((other.len(), other.matches('-').count()), (36, 4), "a uuid: {other}");
    assert_ne!(id, other);
}

#[test]
fn virtual_local_ranks_all_see_device_zero() {
    let flags = ["--standalone", "--nproc-per-node=2", "--virtual-local-rank"];
    let run = launch().flags(flags).env("CUDA_VISIBLE_DEVICES", "4, 7").finish().expect_code(0);
    for (rank, device) in [(0, "4"), (1, "7")] {
        let worker = run.dump(rank, 0);
        assert_eq!(worker.var("LOCAL_RANK"), "0");
        assert_eq!(worker.var("RANK"), rank.to_string());
        assert_eq!(worker.var("CUDA_VISIBLE_DEVICES"), device);
    }
    let run = launch().flags(flags).finish().expect_code(0);
    assert_eq!(run.dump(0, 0).var("CUDA_VISIBLE_DEVICES"), "0");
    assert_eq!(run.dump(1, 0).var("CUDA_VISIBLE_DEVICES"), "1");

    let run = launch().flags(flags).env("CUDA_VISIBLE_DEVICES", "4,7").env("HIP_VISIBLE_DEVICES", "2,3");
    let run = run.finish().expect_code(0);
    assert_eq!(run.dump(1, 0).var("HIP_VISIBLE_DEVICES"), "3");
    assert_eq!(run.dump(1, 0).var("CUDA_VISIBLE_DEVICES"), "3");

    let run = launch().flags(flags).env("CUDA_VISIBLE_DEVICES", "4,7").env("HIP_VISIBLE_DEVICES", "");
    let run = run.finish().expect_code(0);
    assert_eq!(run.dump(1, 0).var("HIP_VISIBLE_DEVICES"), "", "an empty list is none");
    assert_eq!(run.dump(1, 0).var("CUDA_VISIBLE_DEVICES"), "7");
}

#[test]
fn a_worker_leads_a_session_and_inherits_only_what_it_should() {
    let run = launch().flags(["--standalone", "--nproc-per-node=2"]);
    let cwd = run.dir().join("here");
    std::fs::create_dir(&cwd).expect("our own directory");
    let run = run
        .cwd(&cwd)
        // Bash keeps the descriptors open over the exec.
        .after("umask 027; exec 7</dev/null 9>/dev/null")
        .stdin("first\nsecond\n")
        .steps(&["dump", "0 stdin"])
        .finish()
        .expect_code(0);
    for rank in [0, 1] {
        let worker = run.dump(rank, 0);
        assert_eq!((worker.pid, worker.pid), (worker.pgid, worker.sid), "pid == pgid == sid");
        assert_eq!(worker.cwd, cwd);
        assert_eq!(worker.umask, 0o027);
        assert_eq!(worker.fds.keys().collect::<Vec<_>>(), ["0", "1", "2"], "{:?}", worker.fds);
        assert!(
            worker.fds["0"].ends_with("/stdin"),
            "every worker has the launcher's stdin: {:?}",
            worker.fds
        );
        assert_eq!(worker.ignored_signals, support::seen::ignored_signals(&[]));
        assert_eq!(worker.blocked_signals, 0);
    }
    assert_eq!(run.file("0.0.stdin").as_deref(), Some("first\n"));
}
