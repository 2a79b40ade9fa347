//! `--dry-run`: the plan is what the run does, and nothing is done.

use std::{collections::BTreeMap, ffi::OsString, fs, net::TcpListener};

use support::{
    launch::{Launch, Outcome},
    programs,
};

fn launch() -> Launch {
    Launch::new(programs!().launcher)
}

/// The variables of a local rank in the plan.
fn planned(plan: &Outcome, local_rank: u32) -> BTreeMap<&str, &str> {
    let heading = format!("local rank {local_rank}");
    let lines = plan.stdout.lines().skip_while(|line| *line != heading).skip(1);
    lines.take_while(|line| !line.is_empty()).filter_map(|line| line.trim().split_once('=')).collect()
}

#[test]
fn the_plan_is_what_the_run_does() {
    let line = |flags: &[&str]| {
        let flags = flags.iter().chain(&["--standalone", "--nproc-per-node=2", "--role=trainer"]);
        let flags = flags.chain(&["--max-restarts=2", "--virtual-local-rank", "--log-dir=logs"]);
        launch().flags(flags).env("DLROVER_JOB_TOKEN", "secret").args(["--seed", "${local_rank}"])
    };
    let plan = line(&["--dry-run"]).steps(&["dump"]).finish().expect_code(0);
    let run = line(&[]).steps(&["dump"]).finish().expect_code(0);
    assert_eq!(plan.stderr, "");
    assert!(!plan.stdout.contains("secret"), "{plan:#?}");
    for local_rank in [0, 1] {
        let (worker, planned) = (run.dump(local_rank, 0), planned(&plan, local_rank));
        let mut compared = 0;
        for (name, value) in &planned {
            let real = worker.env.get(*name).unwrap_or_else(|| panic!("{name}: {plan:#?}"));
            // What a run makes or decides is named as such.
            if !value.contains('<') {
                assert_eq!(real, value, "{name}");
                compared += 1;
            }
        }
        assert!(compared > 14, "{planned:#?}");
        assert_eq!(planned["OMP_NUM_THREADS"], "1");
        let error_file = planned["TORCHELASTIC_ERROR_FILE"];
        assert!(error_file.ends_with(&format!("/attempt_0/{local_rank}/error.json")), "{error_file}");
        let command = plan.stdout.lines().filter(|line| line.starts_with("  command: "));
        let command = command.clone().nth(local_rank as usize).expect("a command for each worker");
        // What is called python3 may be a script that starts another one.
        let ours = format!(" {}", worker.command[1..].join(" "));
        assert!(command.ends_with(&ours), "{command} does not end with {ours}");
    }
}

#[test]
fn nothing_is_bound_made_or_started() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let line = launch().flags([
        "--dry-run",
        "--nnodes=2",
        "--rdzv-backend=c10d",
        &format!("--rdzv-endpoint={address}"),
        "--rdzv-conf=is_host=true",
        &format!("--http={address}"),
        "--log-dir=logs",
        "--state-dir=state",
        "--report-json=run.json",
        "--network-check",
        "--gpu-select=topology",
    ]);
    let plan = line.env("DLROVER_GPU_LOCK_DIR", "locks").steps(&["dump"]).finish().expect_code(0);
    assert!(plan.stdout.contains(&format!("served by this launcher at {address}")), "{plan:#?}");
    assert!(plan.stdout.contains("  RANK=<decided at the rendezvous>\n"), "{plan:#?}");
    assert!(plan.stdout.contains("before every start of workers: each node, the network"), "{plan:#?}");
    let mut names: Vec<OsString> =
        fs::read_dir(plan.dir()).expect("our own directory").flatten().map(|file| file.file_name()).collect();
    names.sort();
    assert_eq!(names, ["stderr", "stdin", "stdout"], "{plan:#?}");
}

#[test]
fn what_a_run_refuses_is_refused() {
    for (flags, code) in [(["--dry-run", "--nnodes=0"], 1), (["--dry-run", "--max-restarts=x"], 2)] {
        let (plan, run) = (launch().flags(flags).finish(), launch().flags(&flags[1..]).finish());
        assert_eq!(plan.code, Some(code), "{plan:#?}");
        assert_eq!((plan.code, &plan.stderr), (run.code, &run.stderr));
        assert_eq!(plan.stdout, "");
    }
    let missing = launch().flags(["--dry-run"]).script("missing.py").finish().expect_code(1);
    assert!(missing.stderr.starts_with("dlrover-run: error: cannot run missing.py"), "{missing:#?}");
}
