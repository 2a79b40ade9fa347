//! The command line, where it is accepted.

use std::os::unix::fs::PermissionsExt;

use support::launcher;

use crate::differs::torchrun_differs;
use crate::launch;

#[test]
fn both_spellings_and_all_forms_name_a_flag_and_the_last_wins() {
    let run = launch();
    let logs = run.dir().join("logs");
    let run = run
        .flags(["--standalone", "--nproc_per_node", "1", "--nproc-per-node=2", "--max-restarts=1"])
        .flags(["--max_restarts", "3", "--role=first", "--role", "second", "-r0", "-r", "3", "-t=0", "-t0"])
        .flags(["--monitor_interval=0.05", "--log_dir"])
        .flags([&logs])
        .steps(&["dump", "out to the file\\n"])
        .finish()
        .expect_code(0);
    assert_eq!(run.dumps(), [(0, 0), (0, 1)]);
    let worker = run.dump(1, 0);
    assert_eq!(worker.var("TORCHELASTIC_MAX_RESTARTS"), "3");
    assert_eq!(worker.var("ROLE_NAME"), "second");
    assert!(worker.var("TORCHELASTIC_ERROR_FILE").starts_with(logs.to_str().expect("a plain path")));
    assert_eq!(run.stdout, "", "redirected by -r 3, and nothing of the launcher's own");
}

#[test]
fn unique_prefixes_are_accepted() {
    let run = launch()
        .flags(["--standal", "--nproc-p", "2", "--max-r=1", "--rol", "short", "--signals-to", "SIGTERM"])
        .finish()
        .expect_code(0);
    let worker = run.dump(1, 0);
    assert_eq!(worker.var("TORCHELASTIC_MAX_RESTARTS"), "1");
    assert_eq!(worker.var("ROLE_NAME"), "short");
    assert_eq!(worker.var("TORCHELASTIC_SIGNALS_TO_HANDLE"), "SIGTERM");
}

#[test]
fn a_prefix_of_both_spellings_is_accepted() {
    let run = launch().flags(["--standalone", "--nproc", "2"]).finish();
    if torchrun_differs("a_prefix_of_both_spellings_is_accepted") {
        // Newer CPythons accept it.
        assert!(matches!(run.code, Some(0 | 2)), "{run:#?}");
        return;
    }
    assert_eq!(run.expect_code(0).dumps(), [(0, 0), (0, 1)]);
}

#[test]
fn everything_after_the_script_is_the_scripts() {
    let args = ["-h", "--", "--nproc-per-node=9", "--standalone", "-r3", "", "a b", "--", "*", "--nnodes"];
    let run = launch().flags(["--standalone"]).args(args).finish().expect_code(0);
    assert_eq!(run.dumps(), [(0, 0)]);
    let worker = run.dump(0, 0);
    assert_eq!(worker.argv[1..], args);
    let script = support::trainer("probe.py");
    assert_eq!(worker.argv[0], script.to_str().expect("a plain path"), "the script's path is left as given");
    let command: Vec<&str> = worker.command.iter().map(String::as_str).collect();
    assert_eq!(command[1], "-u", "python runs unbuffered");
    assert_eq!(command[3..], args);
}

#[test]
fn a_double_dash_before_the_script_is_dropped() {
    let run = launch().flags(["--standalone", "--nproc-per-node=1", "--"]).args(["a", "--", "b"]).finish();
    assert_eq!(run.expect_code(0).dump(0, 0).argv[1..], ["a", "--", "b"]);
}

#[test]
fn a_double_dash_right_behind_the_script_is_dropped() {
    let run = launch().flags(["--standalone"]).args(["--", "-h", "--", "b"]).finish();
    assert_eq!(run.expect_code(0).dump(0, 0).argv[1..], ["-h", "--", "b"]);
}

#[test]
fn a_module_is_run_by_name() {
    for flag in ["-m", "--module"] {
        let run = launch()
            .flags(["--standalone", flag])
            .script("probe")
            .args(["-m", "x"])
            .cwd(support::tests_dir().join("trainers"))
            .finish()
            .expect_code(0);
        let worker = run.dump(0, 0);
        assert_eq!(worker.argv[1..], ["-m", "x"]);
        assert_eq!(worker.command[1..4], ["-u", "-m", "probe"]);
    }
}

#[test]
fn without_python_the_script_itself_is_executed() {
    let run = launch().flags(["--standalone", "--no-python"]).args(["a"]).finish().expect_code(0);
    let worker = run.dump(0, 0);
    assert!(!worker.command.contains(&"-u".to_owned()), "{:?}", worker.command);
    assert_eq!(worker.argv[1..], ["a"]);
}

#[test]
fn without_python_a_bare_name_is_looked_up_on_path() {
    let run = launch()
        .flags(["--standalone", "--no_python", "--nproc-per-node=2"])
        .script("sh")
        .args(["-c", "echo \"$0 $1 $LOCAL_RANK of $WORLD_SIZE\"", "zero", "${local_rank}"])
        .finish()
        .expect_code(0);
    let mut lines: Vec<_> = run.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["zero 0 0 of 2", "zero 1 1 of 2"]);
}

#[test]
fn the_local_rank_is_put_into_arguments() {
    let given = [
        "${local_rank}",
        "$local_rank",
        "a${local_rank}b",
        "$$",
        "$$local_rank",
        "$other",
        "${other}",
        "$",
        "${",
        "$$$$",
        "$local_rankx",
        "100$",
    ];
    let want = |rank: u32| {
        let r = rank.to_string();
        [r.clone(), r.clone(), format!("a{r}b")]
            .into_iter()
            .chain(
                ["$", "$local_rank", "$other", "${other}", "$", "${", "$$", "$local_rankx", "100$"]
                    .map(str::to_owned),
            )
            .collect::<Vec<_>>()
    };
    let run = launch().flags(["--standalone", "--nproc-per-node=2"]).args(given).finish().expect_code(0);
    assert_eq!(run.dump(0, 0).argv[1..], want(0));
    assert_eq!(run.dump(1, 0).argv[1..], want(1));
}

#[test]
fn python_exec_names_the_interpreter() {
    let run = launch().flags(["--standalone"]);
    let python = run.dir().join("my-python");
    std::fs::write(&python, "#!/bin/sh\nMY_PYTHON=yes exec python3 \"$@\"\n").expect("our own directory");
    std::fs::set_permissions(&python, PermissionsExt::from_mode(0o755)).expect("our own file");
    let run = run.env("PYTHON_EXEC", &python).finish().expect_code(0);
    assert_eq!(run.dump(0, 0).var("MY_PYTHON"), "yes");
}

#[test]
fn numbers_of_workers_may_be_names() {
    let mask = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let cpus: u32 = mask
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed:"))
        .expect("Linux says it")
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(u32::count_ones)
        .sum();
    let every: Vec<_> = (0..cpus).map(|rank| (0, rank)).collect();
    let run = launch().flags(["--standalone", "--nproc-per-node=cpu"]).finish().expect_code(0);
    assert_eq!(run.dumps(), every);
    // Python's int() reads these.
    let run = launch().flags(["--standalone", "--nproc-per-node", " +2"]).finish().expect_code(0);
    assert_eq!(run.dumps(), [(0, 0), (0, 1)]);
}

#[test]
fn the_command_line_overrides_pet_variables() {
    let run = launch();
    let logs = run.dir().join("pet-logs");
    let run = run
        .env("PET_STANDALONE", "1")
        .env("PET_NPROC_PER_NODE", "2")
        .env("PET_MAX_RESTARTS", "5")
        .env("PET_ROLE", "pet")
        .env("PET_REDIRECTS", "3")
        .env("PET_LOG_DIR", &logs)
        .env("PET_NO_PYTHON", "0")
        .env("PET_MODULE", "0")
        // Choices are not checked there, and it means nothing for a script.
        .env("PET_START_METHOD", "bogus")
        .env("PET_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT")
        .flags(["--role=cli", "--redirects", "0"])
        .steps(&["dump", "0 out shown\\n"])
        .finish()
        .expect_code(0);
    assert_eq!(run.dumps(), [(0, 0), (0, 1)]);
    let worker = run.dump(1, 0);
    assert_eq!(worker.var("TORCHELASTIC_MAX_RESTARTS"), "5");
    assert_eq!(worker.var("ROLE_NAME"), "cli");
    assert_eq!(worker.var("TORCHELASTIC_SIGNALS_TO_HANDLE"), "SIGTERM,SIGINT");
    assert!(worker.var("TORCHELASTIC_ERROR_FILE").starts_with(logs.to_str().expect("a plain path")));
    assert_eq!(run.stdout, "shown\n");
}

#[test]
fn pet_variables_set_output_flags_too() {
    let run = launch();
    let logs = run.dir().join("logs");
    let run = run
        .env("PET_NNODES", "1:1")
        .env("PET_NPROC_PER_NODE", "2")
        .env("PET_TEE", "0:3,1:3")
        .env("PET_LOG_DIR", &logs)
        .env("PET_LOG_LINE_PREFIX_TEMPLATE", "${rank}> ")
        .env("PET_LOCAL_RANKS_FILTER", "1")
        .env("PET_DUPLICATE_STDOUT_FILTERS", "keep")
        .env("PET_VIRTUAL_LOCAL_RANK", "1")
        .env("PET_EVENT_LOG_HANDLER", "null")
        .steps(&["dump", "out keep\\nthis\\n"])
        .finish()
        .expect_code(0);
    assert_eq!(run.stdout, "1> keep\n1> this\n");
    assert_eq!(run.dump(1, 0).var("LOCAL_RANK"), "0");
    let error_file = std::path::PathBuf::from(run.dump(1, 0).var("TORCHELASTIC_ERROR_FILE"));
    let attempt = error_file.ancestors().nth(2).expect("<run>/attempt_0/1/error.json");
    let kept = std::fs::read_to_string(attempt.join("filtered_stdout.log")).expect("it is made");
    assert_eq!(kept, "1> keep\n", "what the rank filter silences is not kept either");
}

#[test]
fn pet_variables_set_the_rendezvous_too() {
    let port = support::free_port().to_string();
    let run =
        launch().env("PET_MASTER_ADDR", "localhost").env("PET_MASTER_PORT", &port).env("PET_RDZV_ID", "r7");
    let worker = run.env("PET_NODE_RANK", "0").finish().expect_code(0).dump(0, 0);
    assert_eq!((worker.var("MASTER_ADDR"), worker.var("MASTER_PORT")), ("localhost", port.as_str()));
    assert_eq!(worker.var("TORCHELASTIC_RUN_ID"), "r7");

    let endpoint = format!("127.0.0.1:{}", support::free_port());
    let run =
        launch().env("PET_RDZV_BACKEND", "c10d").env("PET_RDZV_ENDPOINT", &endpoint).env("PET_RDZV_ID", "r8");
    let worker = run.env("PET_RDZV_CONF", "timeout=60,join_timeout=60").finish().expect_code(0).dump(0, 0);
    assert_eq!(worker.var("TORCHELASTIC_RUN_ID"), "r8");
}

#[test]
fn a_node_rank_without_a_static_rendezvous_is_a_warning() {
    let run = launch().flags(["--standalone", "--node-rank=3"]).finish().expect_code(0);
    assert!(run.stderr.contains("node_rank") || run.stderr.contains("node-rank"), "{run:#?}");
    assert_eq!(run.dump(0, 0).var("GROUP_RANK"), "0");
}

#[test]
fn flags_of_python_functions_are_ignored_for_scripts() {
    for flag in ["--run-path", "--start-method=fork", "--start-method=forkserver"] {
        let run = launch().flags(["--standalone", flag]).args(["a"]).finish().expect_code(0);
        assert_eq!(run.dump(0, 0).argv[1..], ["a"]);
    }
}

#[test]
fn pet_switches_are_on_when_1() {
    let run = launch()
        .env("PET_MODULE", "1")
        .env("PET_STANDALONE", "0")
        .env("PET_TEE", "1")
        .script("probe")
        .cwd(support::tests_dir().join("trainers"))
        .steps(&["dump", "out hi\\n"])
        .finish()
        .expect_code(0);
    assert_eq!(run.dump(0, 0).command[1..4], ["-u", "-m", "probe"]);
    assert_eq!(run.stdout, "[default0]:hi\n");
}

#[test]
fn help_is_on_stdout_and_names_every_flag() {
    let run = launch().flags(["-h"]).without_script().finish().expect_code(0);
    for flag in [
        "--nnodes",
        "--nproc-per-node",
        "--rdzv-backend",
        "--rdzv-endpoint",
        "--rdzv-id",
        "--rdzv-conf",
        "--standalone",
        "--max-restarts",
        "--monitor-interval",
        "--start-method",
        "--event-log-handler",
        "--role",
        "--module",
        "--no-python",
        "--run-path",
        "--log-dir",
        "--redirects",
        "--tee",
        "--log-line-prefix-template",
        "--local-ranks-filter",
        "--duplicate-stdout-filters",
        "--duplicate-stderr-filters",
        "--node-rank",
        "--master-addr",
        "--master-port",
        "--local-addr",
        "--logs-specs",
        "--numa-binding",
        "--signals-to-handle",
        "--shutdown-timeout",
        "--virtual-local-rank",
        "--print-completion",
    ] {
        assert!(run.stdout.contains(flag), "{flag} is not in {run:#?}");
    }
}

#[test]
fn completion_is_printed() {
    let run = launch().flags(["--print-completion", "bash"]).without_script().finish();
    if torchrun_differs("completion_is_printed") {
        return;
    }
    let run = run.expect_code(0);
    assert!(run.stdout.contains("--nproc-per-node"), "{run:#?}");
}

#[test]
fn the_version_is_printed() {
    for flag in ["--version", "-V"] {
        let run = launch().flags([flag]).without_script().finish();
        if torchrun_differs("the_version_is_printed") {
            assert_eq!(run.code, Some(2), "{run:#?}");
            continue;
        }
        let run = run.expect_code(0);
        let start = concat!("dlrover-run ", env!("CARGO_PKG_VERSION"), " (");
        assert!(run.stdout.starts_with(start), "{run:#?}");
    }
}

#[test]
fn events_can_be_shown() {
    let run = launch().flags(["--standalone", "--event-log-handler", "console"]).finish().expect_code(0);
    let events: Vec<serde_json::Value> =
        run.stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |source: &str| events.iter().filter(|event| event["source"] == source).count();
    assert!(of("AGENT") > 0 && of("WORKER") > 0, "{run:#?}");
    let name = "torchelastic.worker.status.SUCCEEDED";
    assert!(events.iter().any(|event| event["name"] == name), "{run:#?}");
}

#[test]
fn events_have_times_and_process_ids() {
    let differs = torchrun_differs("events_have_times_and_process_ids");
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let run = launch().flags(["--standalone", "--event-log-handler", "console"]).steps(&["dump"]);
    let run = run.finish().expect_code(0);
    let pid = run.dump(0, 0).pid;
    let events = run.stderr.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    for event in events {
        let when = event["timestamp"].as_u64().map(u128::from).expect("milliseconds");
        if differs {
            assert_eq!(when, 0, "{event:#}");
            continue;
        }
        assert!(when >= since, "{since}: {event:#}");
        if event["source"] == "WORKER" {
            let inner = event["metadata"]["metadata"].as_str().expect("JSON in JSON");
            let inner: serde_json::Value = serde_json::from_str(inner).expect("JSON in JSON");
            assert_eq!(inner["worker_pid"], serde_json::json!([pid]), "{event:#}");
        }
    }
}

#[test]
fn loglevel_info_logs_the_course_of_a_run() {
    let quiet = launch().flags(["--standalone"]).finish().expect_code(0);
    assert_eq!(quiet.stderr, "");
    let run =
        launch().flags(["--standalone"]).env("LOGLEVEL", "INFO").steps(&["dump"]).finish().expect_code(0);
    if launcher!().is_torchrun {
        assert_ne!(run.stderr, "");
        return;
    }
    let dump = run.dump(0, 0);
    for told in [
        format!(
            "node rank 0 of 1, rank 0 of 1, MASTER_ADDR={} MASTER_PORT={}",
            dump.var("MASTER_ADDR"),
            dump.var("MASTER_PORT")
        ),
        format!("started local rank 0, pid {}", dump.pid),
        format!("local rank 0, pid {}, succeeded", dump.pid),
        "the run succeeded".to_owned(),
    ] {
        assert!(run.stderr.contains(&told), "{told}: {run:#?}");
    }
}

#[test]
fn an_option_after_the_script_gets_a_hint() {
    let hint = "put options of dlrover-run before it";
    let told = |flags: &[&str], args: &[&str]| {
        // argparse takes the first `--` away.
        let kept = args.strip_prefix(&["--"]).unwrap_or(args);
        let run =
            launch().flags(["--standalone"]).flags(flags).args(args).steps(&["dump"]).finish().expect_code(0);
        assert_eq!(run.dump(0, 0).argv[1..], *kept, "the script has them all the same");
        run.stderr
    };
    let output = told(&[], &["--epochs=3", "--nproc-per-node=2", "--max_restarts", "1"]);
    if !launcher!().is_torchrun {
        let words = "`--nproc-per-node=2`, `--max_restarts` after the script go to the script; ";
        assert!(output.contains(&format!("{words}{hint}")), "{output}");
    }
    for (flags, args) in [
        (&[][..], &["--epochs=3", "--role=x", "--log-dir", "y", "nproc-per-node"][..]),
        (&["--max-restarts=1"], &["--max-restarts=2"]),
        (&[], &["one", "--", "--max-restarts=2"]),
    ] {
        let output = told(flags, args);
        assert!(!output.contains(hint), "{output}");
    }
}

#[test]
fn one_node_may_use_a_file_rendezvous() {
    let run = launch();
    let endpoint = format!("--rdzv-endpoint={}", run.dir().join("store").display());
    let flags = ["--rdzv-backend=c10d", &endpoint, "--rdzv-conf=store_type=file", "--rdzv-id=j1"];
    let run = run.flags(flags).steps(&["dump"]).finish().expect_code(0);
    assert_eq!(run.dump(0, 0).var("TORCHELASTIC_RUN_ID"), "j1");
}

#[test]
fn options_that_need_python_are_refused() {
    let differs = torchrun_differs("options_that_need_python_are_refused");
    let run = launch().flags(["--logs-specs=mine"]).finish().expect_code(if differs { 1 } else { 2 });
    assert!(run.stderr.contains("mine"), "{run:#?}");
    assert_eq!(run.dumps(), []);
}
