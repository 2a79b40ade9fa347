//! What a command line leads to: a run, a page of help, or a refusal.

use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;

use super::*;
use crate::testing::{FakeHost, variables, words};

fn run_entry(line: &str, env: &[(&str, &str)]) -> Action {
    let mut host = FakeHost::new();
    host.files.push("/etc/passwd".into());
    let mut args = vec!["dlrover-run".into()];
    args.extend(words(line));
    let mut env = env.to_vec();
    env.push(("PATH", "/usr/bin"));
    entry(&args, variables(&env), &host)
}

/// A refusal as printed.
fn refusal(line: &str, env: &[(&str, &str)]) -> String {
    match run_entry(line, env) {
        Action::Refused { message, exit_code, usage } => {
            assert_eq!(usage.is_some(), exit_code == 2, "{line}");
            assert!(!message.contains('\n') && !message.ends_with('.'), "{message}");
            let env: String = env.iter().map(|(name, value)| format!("{name}={value} ")).collect();
            format!("$ {env}dlrover-run {line}\n{exit_code}: {message}")
        }
        other => panic!("{line}: {other:?}"),
    }
}

fn refusals(lines: &[(&[(&str, &str)], &str)]) -> String {
    lines.iter().map(|(env, line)| refusal(line, env)).collect::<Vec<_>>().join("\n\n")
}

/// A snapshot without the source of its expression, which only repeats the text.
macro_rules! assert_texts {
    ($texts:expr) => {
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!($texts) })
    };
}

#[test]
fn a_line_that_cannot_be_parsed_is_refused_as_by_argparse() {
    assert_texts!(refusals(&[
        (&[], ""),
        (&[], "--standalone"),
        (&[], "--bogus"),
        (&[], "--bogus --also=1 x.py"),
        (&[], "--no x.py"),
        (&[], "--nnodes"),
        (&[], "--role --standalone x.py"),
        (&[], "--standalone=1 x.py"),
        (&[], "--max-restarts=many x.py"),
        (&[], "--monitor-interval=fast x.py"),
        (&[], "--start-method=thread x.py"),
        (&[], "--numa-binding=all x.py"),
        (&[], "--print-completion=elvish"),
        (&[], "--box-pairs train.py"),
        (&[], "--box-pairs=0:1 --standalone 2:4 train.py"),
        (&[("PET_MAX_RESTARTS", "many")], "x.py"),
        (&[("PET_MASTER_PORT", "")], "x.py"),
        (&[("PET_BOX_PAIRS", "0-1")], "x.py"),
        (&[], "--exclude-straggler x.py"),
        (&[("PET_SWITCHBOX_CHECK", "1")], "x.py"),
        (&[], "--logs-specs=mine x.py"),
    ]));
}

#[test]
fn an_unusable_value_is_named_with_its_origin_and_what_is_allowed() {
    assert_texts!(refusals(&[
        (&[], "--nnodes=1:2:3 x.py"),
        (&[], "--nnodes=a x.py"),
        (&[], "--nnodes=0 x.py"),
        (&[("PET_NNODES", "2:1")], "x.py"),
        (&[], "--nproc-per-node=0 x.py"),
        (&[], "--nproc-per-node=abc x.py"),
        (&[], "--nproc-per-node=gpu x.py"),
        (&[], "--nproc-per-node=xpu x.py"),
        (&[], "--rdzv-backend=bogus x.py"),
        (&[], "--rdzv-backend=c10d --rdzv-endpoint=localhost:http x.py"),
        (&[], "--rdzv-endpoint=localhost x.py"),
        (&[], "--rdzv-endpoint=a/b:1 x.py"),
        (&[], "--master-port=70000 x.py"),
        (&[], "--master-port=1 --node-rank=1 x.py"),
        (&[], "--rdzv-conf=abc x.py"),
        (&[], "--rdzv-conf==x x.py"),
        (&[], "--rdzv-conf=join_timeout=1.5 x.py"),
        (&[], "--rdzv-backend=etcd x.py"),
        (&[("DLROVER_MASTER_ADDR", "master")], "x.py"),
        (&[("DLROVER_MASTER_ADDR", "[::1:50001")], "x.py"),
        (&[("DLROVER_MASTER_ADDR", "m:1"), ("NODE_RANK", "-1")], "x.py"),
        (&[("DLROVER_MASTER_ADDR", "m:1"), ("NODE_IP", "a/b")], "x.py"),
        (&[("DLROVER_MASTER_ADDR", "m:1"), ("GANG_MIN_AVAILABLE", "all")], "x.py"),
        (&[("DLROVER_MASTER_ADDR", "m:1"), ("GANG_SCHEDULE_TIMEOUT", "10m")], "x.py"),
        (&[("DLROVER_MASTER_ADDR", "m:1"), ("DLROVER_JOB_TOKEN", "a b")], "x.py"),
        (&[], "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=h:0 x.py"),
        (&[], "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=h --job-token-file=/none x.py"),
        (&[], "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=h --tls-cert=/none x.py"),
        (&[], "--restart-count=-1 x.py"),
        (&[], "--heartbeat-timeout=0 x.py"),
        (&[], "--standalone --nnodes=2 x.py"),
        (&[], "--max-restarts=-1 x.py"),
        (&[], "--monitor-interval=0 x.py"),
        (&[], "--event-log-handler=zzz x.py"),
        (&[], "--no-python -m x"),
        (&[("PATH", "/nowhere")], "x.py"),
        (&[], "--log-dir=/etc/passwd x.py"),
        (&[], "--redirects=9 x.py"),
        (&[("PET_TEE", "0:1,x:2")], "x.py"),
        (&[], "--local-ranks-filter=0,a x.py"),
        (&[], "--shutdown-timeout=-1 x.py"),
        (&[("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon")], "x.py"),
        (&[("PET_STANDALONE", "abc")], "-h"),
        (&[("PET_STANDALONE", "")], "x.py"),
        (&[("HOST_PORTS", "20000,x")], "x.py"),
        (&[("CUDA_VISIBLE_DEVICES", "4")], "--virtual-local-rank --nproc-per-node=2 x.py"),
        (&[], "--numa-binding=node x.py"),
        (&[("PET_PRECHECK", "7")], "x.py"),
        (&[], "--network-check --straggler-ratio=1 x.py"),
        (&[], "--network-check --check-ttl=-1 x.py"),
        (&[], "--network-check --check-max-rounds=0 x.py"),
        (&[], "--network-check --network-check-timeout=0 x.py"),
        (&[("NETWORK_CHECK_TIMEOUT", "soon")], "--network-check x.py"),
        (&[("PET_ON_INCONCLUSIVE", "maybe")], "--network-check x.py"),
        (&[], "--taint-guard=1.5 x.py"),
        (&[], "--taint-key= x.py"),
        (&[("PET_TAINT_KEY", "bad key !!")], "x.py"),
        (&[], "--box-pairs=3:3 x.py"),
        (&[], "--min-bandwidth=0 x.py"),
        (&[], "--min-channels=5 x.py"),
        (&[], "--node-unit=2 x.py"),
        (&[("NODE_NUM", "some")], "--auto-config x.py"),
    ]));
}

#[test]
fn an_impossible_switchbox_check_is_refused() {
    assert_texts!(refusals(&[
        (&[], "--switchbox-check x.py"),
        (&[], "--box-pairs 0:0 -- x.py"),
        (&[], "--box-pairs 0:1 1:2 x.py"),
        (&[], "--box-pairs 0:1 2:3 1:0 x.py"),
        (&[], "--min-channels=0 x.py"),
        (&[], "--min-bandwidth=nan x.py"),
        (&[], "--switchbox-path=pcie x.py"),
        (&[("PET_SWITCHBOX_PATH", "host")], "x.py"),
        (&[], "--network-check --switchbox-check --switchbox-probe=mxon x.py"),
        (&[], "--network-check --switchbox-check --switchbox-probe= x.py"),
        (&[("DLROVER_SWITCHBOX_PROBE", "gpu")], "--network-check --switchbox-check x.py"),
    ]));
}

#[test]
fn help_version_and_completion_are_printed() {
    for line in ["--version", "-V", "--nnodes=2 --version", "-mV"] {
        let text = match run_entry(line, &[("PET_VERSION", "0")]) {
            Action::Print { text } => text,
            other => panic!("{line}: {other:?}"),
        };
        let start = concat!("dlrover-run ", env!("CARGO_PKG_VERSION"), " (");
        assert!(text.starts_with(start) && text.ends_with("-linux-gnu)\n"), "{line}: {text}");
    }
    assert!(matches!(run_entry("-h", &[]), Action::Print { text } if text.starts_with("Usage: dlrover-run")));
    assert!(
        matches!(run_entry("--print-completion=bash", &[]), Action::Print { text } if text.contains("complete"))
    );
}

#[test]
fn words_that_are_not_utf8_reach_the_script() {
    let odd = OsString::from_vec(vec![b'-', 0xff, b'=']);
    let args = ["dlrover-run".into(), "--no-python".into(), "x".into(), odd.clone()];
    let Action::Run(plan) = entry(&args, Vec::new(), &FakeHost::new()) else { panic!("a fine line") };
    assert_eq!(plan.agent.command.argv, [OsString::from("x"), odd]);
}

fn any_bytes() -> impl Strategy<Value = OsString> {
    // argv and the environment hold no NUL.
    prop::collection::vec(1u8..=255, 0..10).prop_map(OsString::from_vec)
}

proptest! {
    #[test]
    fn any_argv_and_environment_gets_an_answer(
        args in prop::collection::vec(any_bytes(), 0..4),
        script_args in prop::collection::vec(any_bytes(), 0..4),
        variables in prop::collection::vec((prop::sample::select(VARIABLES), any_bytes()), 0..3),
    ) {
        let mut all: Vec<OsString> = vec!["dlrover-run".into(), "--no-python".into()];
        all.extend(args);
        all.extend(["--".into(), "script".into()]);
        all.extend(script_args.iter().cloned());
        let env = variables.into_iter().map(|(name, value)| (OsString::from(name), value)).collect();
        match entry(&all, env, &FakeHost::new()) {
            Action::Run(plan) => prop_assert!(plan.agent.command.argv.ends_with(&script_args)),
            Action::Refused { message, .. } => prop_assert!(!message.is_empty()),
            Action::Print { text } => prop_assert!(!text.is_empty()),
        }
    }
}

/// Variables that the entry point reads.
const VARIABLES: &[&str] = &[
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_RDZV_CONF",
    "PET_RDZV_ENDPOINT",
    "PET_TEE",
    "PET_LOG_DIR",
    "PET_MODULE",
    "PET_DUPLICATE_STDOUT_FILTERS",
    "PET_MASTER_PORT",
    "PET_MONITOR_INTERVAL",
    "PET_BOX_PAIRS",
    "PET_ROLE",
    "PET_SIGNALS_TO_HANDLE",
    "HOST_PORTS",
    "CUDA_VISIBLE_DEVICES",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    "PYTHON_EXEC",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
    "TMPDIR",
    "DLROVER_MASTER_ADDR",
    "DLROVER_JOB_TOKEN",
    "ELASTIC_JOB_NAME",
    "GANG_MIN_AVAILABLE",
    "GANG_SCHEDULE_TIMEOUT",
    "NODE_RANK",
    "POD_IP",
    "POD_NAME",
    "PET_NODE_RANK",
    "PET_RDZV_BACKEND",
    "PET_HEARTBEAT_TIMEOUT",
    "NODE_NUM",
    "OMP_NUM_THREADS",
];
