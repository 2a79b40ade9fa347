use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use agent::config::LogDir;
use proptest::prelude::*;
use rules::redirects::Streams;

use super::*;
use crate::{
    cli::Request,
    testing::{FakeHost, variables, words},
};

fn plan_on(host: &FakeHost, line: &str, env: &[(&str, &str)]) -> Result<LaunchPlan, String> {
    let env = variables(env);
    match Request::read(&words(line), Environment(&env)).map_err(|error| error.to_string())? {
        Request::Run(cli) => resolve(cli, env, host).map_err(|error| error.to_string()),
        other => Err(format!("{other:?}")),
    }
}

fn plan_in(env: &[(&str, &str)], line: &str) -> LaunchPlan {
    let mut env = env.to_vec();
    env.push(("PATH", "/usr/local/bin:/usr/bin"));
    plan_on(&FakeHost::new(), line, &env).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn plan(line: &str) -> LaunchPlan {
    plan_in(&[], line)
}

fn argv(plan: &LaunchPlan) -> Vec<String> {
    plan.agent.command.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn four_gpus() -> FakeHost {
    let host = FakeHost::new();
    for gpu in 0..4 {
        host.root.gpu(gpu, &format!("0000:{gpu}0:00.0"), 0);
    }
    host.root.write("sys/devices/system/node/node0/cpulist", "0-3\n");
    host
}

const PATH: (&str, &str) = ("PATH", "/usr/bin");

#[test]
fn a_line_that_says_nothing_is_one_worker_on_the_loopback_with_a_fresh_id() {
    let plan = plan("--rdzv-id=mine x.py");
    assert_eq!(plan.meeting, Meeting::Loopback);
    assert_eq!(plan.agent.run_id.0, "fresh-id");
    assert_eq!((plan.agent.nodes, plan.agent.local_world_size), ((1, 1), 1));
    assert_eq!(argv(&plan), ["/usr/bin/python3", "-u", "x.py"]);
    assert_eq!(plan.agent.master_port, MasterPort::Served);
    assert_eq!((plan.agent.max_restarts, plan.agent.shutdown_timeout), (0, Duration::from_secs(30)));
    assert_eq!(plan.agent.role, "default");
    assert_eq!(plan.agent.node_rank, None);
    assert!(plan.notices.is_empty(), "{:?}", plan.notices);
    assert!(!plan.propagate_exit_code);
}

#[test]
fn a_port_makes_it_a_static_meeting_at_exactly_that_port() {
    let plan = plan("--master-port=1234 --rdzv-id=j1 x.py");
    assert_eq!(plan.meeting, Meeting::Static { addr: "127.0.0.1".to_owned(), port: 1234 });
    assert_eq!((plan.agent.run_id.0.as_str(), plan.agent.node_rank), ("j1", Some(NodeRank(0))));
    let plan = plan_in(&[("PET_MASTER_PORT", "77"), ("PET_MASTER_ADDR", "[::1]")], "x.py");
    assert_eq!(plan.meeting, Meeting::Static { addr: "::1".to_owned(), port: 77 });
    assert_eq!(plan.agent.run_id.0, "none");
}

#[test]
fn an_endpoint_makes_it_a_static_meeting_there() {
    let plan = plan("--rdzv-endpoint=node-0:99 x.py");
    assert_eq!(plan.meeting, Meeting::Static { addr: "node-0".to_owned(), port: 99 });
}

#[test]
fn c10d_on_this_node_alone_is_a_loopback_that_keeps_its_id() {
    for endpoint in [
        "",
        "--rdzv-endpoint=localhost:0",
        "--rdzv-endpoint=127.0.0.1:29400",
        "--rdzv-endpoint=[::1]:1",
        "--rdzv-endpoint=localhost",
        "--rdzv-endpoint=node-7:29500",
    ] {
        let plan = plan(&format!("--nnodes=1 --rdzv-backend=c10d --rdzv-id=j1 {endpoint} x.py"));
        assert_eq!((plan.meeting, plan.agent.run_id.0.as_str()), (Meeting::Loopback, "j1"), "{endpoint}");
    }
}

#[test]
fn port_zero_is_any_free_port_of_one_node() {
    for line in ["--master-port=0 --rdzv-id=j1 x.py", "--rdzv-endpoint=localhost:0 --rdzv-id=j1 x.py"] {
        let plan = plan(line);
        assert_eq!((plan.meeting, plan.agent.run_id.0.as_str()), (Meeting::Loopback, "j1"), "{line}");
    }
    let elsewhere = plan_on(&FakeHost::new(), "--master-addr=10.0.0.1 --master-port=0 x.py", &[PATH]);
    assert!(elsewhere.is_err_and(|error| error.contains("--master-port=0")));
}

#[test]
fn standalone_ignores_every_other_word_about_the_rendezvous() {
    let plan =
        plan("--standalone --rdzv-backend=bogus --rdzv-endpoint=: --rdzv-id=j1 --master-port=99999 x.py");
    assert_eq!((plan.meeting, plan.agent.run_id.0.as_str()), (Meeting::Loopback, "fresh-id"));
}

#[test]
fn standalone_says_what_it_ignores() {
    let plan = plan_in(&[("DLROVER_MASTER_ADDR", "master:50001"), ("NODE_RANK", "3")], "--standalone x.py");
    assert_eq!(
        plan.notices,
        [
            "--standalone runs on this node alone: `DLROVER_MASTER_ADDR=master:50001` is ignored",
            "--standalone runs on this node alone: `NODE_RANK=3` is ignored",
        ]
    );
}

#[test]
fn standalone_of_an_elastic_job_is_one_node() {
    let plan = plan("--standalone --nnodes=1:4 x.py");
    assert_eq!(plan.agent.nodes, (1, 1));
    assert_eq!(plan.notices.len(), 1);
}

#[test]
fn the_command_line_beats_the_environment_and_the_last_word_the_first() {
    let env = [("PET_MAX_RESTARTS", "5"), ("PET_ROLE", "trainer"), ("PET_NPROC_PER_NODE", "3")];
    let plan = plan_in(&env, "--max-restarts=1 --max_restarts 2 x.py");
    assert_eq!((plan.agent.max_restarts, plan.agent.role.as_str()), (2, "trainer"));
    assert_eq!(plan.agent.local_world_size, 3);
}

#[test]
fn a_bad_number_in_the_environment_does_not_matter_when_the_flag_is_given() {
    assert_eq!(plan_in(&[("PET_MAX_RESTARTS", "a")], "--max-restarts=1 x.py").agent.max_restarts, 1);
}

#[test]
fn a_switch_in_the_environment_is_a_number() {
    assert!(plan_in(&[("PET_VIRTUAL_LOCAL_RANK", " 1 ")], "x.py").agent.env.virtual_local_rank);
    assert!(!plan_in(&[("PET_VIRTUAL_LOCAL_RANK", "0")], "x.py").agent.env.virtual_local_rank);
    assert_eq!(argv(&plan_in(&[("PET_MODULE", "1")], "pkg"))[1..], ["-u", "-m", "pkg"]);
}

#[test]
fn choices_are_not_checked_in_the_environment() {
    assert_eq!(plan_in(&[("PET_START_METHOD", "bogus")], "x.py").notices.len(), 1);
}

#[test]
fn workers_are_counted_as_asked() {
    for (word, workers) in [("2", 2), ("1_0", 10), ("+2", 2), ("cpu", 4), ("auto", 4)] {
        assert_eq!(plan(&format!("--nproc-per-node={word} x.py")).agent.local_world_size, workers, "{word}");
    }
    let host = four_gpus();
    let count =
        |line: &str, env: &[(&str, &str)]| plan_on(&host, line, env).map(|plan| plan.agent.local_world_size);
    assert_eq!(count("--nproc-per-node=gpu x.py", &[PATH]), Ok(4));
    assert_eq!(count("--nproc-per-node=auto x.py", &[PATH, ("CUDA_VISIBLE_DEVICES", "0,2")]), Ok(2));
    assert_eq!(count("--auto-config x.py", &[PATH]), Ok(4));
}

#[test]
fn several_workers_get_one_thread_each_unless_something_is_said() {
    let threads = |plan: &LaunchPlan| {
        Environment(&plan.agent.env.inherited).get("OMP_NUM_THREADS").map(|value| value.to_owned())
    };
    let two = plan("--nproc-per-node=2 x.py");
    assert_eq!((threads(&two), two.notices.len()), (Some("1".into()), 1));
    assert_eq!(threads(&plan("x.py")), None);
    let preset = plan_in(&[("OMP_NUM_THREADS", "7")], "--nproc-per-node=2 x.py");
    assert_eq!((threads(&preset), preset.notices.len()), (Some("7".into()), 0));
}

#[test]
fn the_command_is_python_unbuffered_with_the_scripts_words() {
    assert_eq!(argv(&plan("-m pkg.mod -h -- a"))[1..], ["-u", "-m", "pkg.mod", "-h", "--", "a"]);
    let program = plan("--no-python ./prog a");
    assert_eq!(
        (argv(&program), program.agent.command.title.as_str()),
        (vec!["./prog".into(), "a".into()], "./prog")
    );
    // --run-path beats --no-python and does not know modules.
    assert_eq!(argv(&plan("--run-path --no-python -m x.py"))[1..], ["-u", "x.py"]);
}

#[test]
fn python_is_the_named_one_then_ours_then_the_virtual_environments_then_paths() {
    let mut host = FakeHost::new();
    let python = |host: &FakeHost, env: &[(&str, &str)]| {
        plan_on(host, "x.py", env).map(|plan| argv(&plan).swap_remove(0))
    };
    let venv = ("VIRTUAL_ENV", "/venv");
    assert_eq!(python(&host, &[PATH, venv]), Ok("/usr/bin/python3".to_owned()));
    assert_eq!(python(&host, &[]), Ok("/usr/bin/python3".to_owned()), "the usual folders without PATH");
    host.programs.push("/venv/bin/python".into());
    assert_eq!(python(&host, &[PATH, venv]), Ok("/venv/bin/python".to_owned()));
    host.programs.push("/opt/dlrover/bin/python".into());
    assert_eq!(python(&host, &[PATH, venv]), Ok("/opt/dlrover/bin/python".to_owned()));
    assert_eq!(python(&host, &[PATH, venv, ("PYTHON_EXEC", "py")]), Ok("py".to_owned()));
    host.programs.clear();
    assert!(python(&host, &[PATH]).is_err_and(|error| error.starts_with("no Python found")));
    assert!(plan_on(&host, "--no-python x", &[]).is_ok());
}

#[test]
fn logs_go_where_they_are_sent() {
    let dir = |env: &[(&str, &str)], line: &str| plan_in(env, line).agent.logs.dir;
    assert_eq!(dir(&[], "x"), LogDir::Temporary(PathBuf::from("/tmp")));
    assert_eq!(dir(&[("TMPDIR", "/scratch")], "x"), LogDir::Temporary(PathBuf::from("/scratch")));
    assert_eq!(dir(&[("DLROVER_LOG_AGENT_DIR", "/logs")], "x"), LogDir::At(PathBuf::from("/logs")));
    assert_eq!(dir(&[("DLROVER_LOG_AGENT_DIR", "/logs")], "--log-dir=a x"), LogDir::At(PathBuf::from("a")));
    assert_eq!(dir(&[], "--log-dir=/dev/null x"), LogDir::Nowhere);
}

#[test]
fn a_temporary_folder_that_is_none_is_passed_over() {
    let mut host = FakeHost::new();
    host.files = vec!["/gone".into(), "/tmp".into()];
    let plan = plan_on(&host, "--no-python x", &[("TMPDIR", "/gone"), ("TMP", "/scratch")]).unwrap();
    assert_eq!(plan.agent.logs.dir, LogDir::Temporary(PathBuf::from("/scratch")));
    let plan = plan_on(&host, "--no-python x", &[("TMPDIR", "/gone")]).unwrap();
    assert_eq!(plan.agent.logs.dir, LogDir::Temporary(PathBuf::from("/var/tmp")));
    assert_eq!(
        plan.notices,
        [
            "`TMPDIR=/gone` is not a folder that can be written: logs go to /var/tmp unless --log-dir says where"
        ]
    );
}

#[test]
fn streams_prefixes_and_filters_reach_the_agent() {
    let line = "--nproc-per-node=2 -r1:2 -t 3 --local-ranks-filter=0,7 --duplicate-stdout-filters=a,,b,c x";
    let logs = plan(line).agent.logs;
    assert_eq!(logs.redirects, [Streams::NONE, Streams { out: false, err: true }]);
    assert_eq!(logs.tee, [Streams { out: true, err: true }; 2]);
    assert_eq!(logs.console_ranks, Some(BTreeSet::from([0, 7])));
    assert_eq!(logs.stdout_filters, ["a,b", "c"]);
    assert!(logs.stderr_filters.is_empty() && logs.keep_stderr_tail);
    assert_eq!(logs.prefix_template, "[${role_name}${local_rank}]:");
    let env = [("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "e:"), ("DLROVER_STDERR_TAIL", "0")];
    let logs = plan_in(&env, "x").agent.logs;
    assert_eq!((logs.prefix_template.as_str(), logs.keep_stderr_tail), ("e:", false));
    assert_eq!(plan_in(&env, "--log-line-prefix-template=f: x").agent.logs.prefix_template, "f:");
}

#[test]
fn the_grace_is_the_flags_then_the_variables_then_30_seconds() {
    let env = [("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7")];
    assert_eq!(plan_in(&env, "x").agent.shutdown_timeout, Duration::from_secs(7));
    assert_eq!(plan_in(&env, "--shutdown-timeout=0 x").agent.shutdown_timeout, Duration::ZERO);
}

#[test]
fn unknown_signals_cost_a_notice_and_the_text_is_passed_on() {
    let plan = plan("--signals-to-handle=SIGTERM,SIGUSR1,SIGFOO,SIGKILL x");
    assert_eq!(plan.agent.signals, ["SIGTERM", "SIGUSR1"]);
    assert_eq!(plan.agent.env.signals_to_handle, "SIGTERM,SIGUSR1,SIGFOO,SIGKILL");
    assert_eq!(plan.notices.len(), 2);
}

#[test]
fn the_store_is_left_to_rank_zero_when_asked_but_not_on_a_static_line() {
    let env = [("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")];
    assert_eq!(plan_in(&env, "x").agent.master_port, MasterPort::LeftToRankZero);
    assert_eq!(plan_in(&env, "--master-port=9 x").agent.master_port, MasterPort::Served);
    assert_eq!(
        plan_in(&[("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "true")], "x").agent.master_port,
        MasterPort::Served
    );
}

#[test]
fn host_ports_are_ports_and_ranges() {
    assert_eq!(
        plan_in(&[("HOST_PORTS", "20000, 20010-20012")], "x").agent.port_choices,
        [20000..=20000, 20010..=20012]
    );
    assert!(plan_in(&[("HOST_PORTS", "")], "x").agent.port_choices.is_empty());
}

#[test]
fn workers_are_bound_near_their_accelerators_when_asked() {
    let host = four_gpus();
    let cpus = |line: &str| plan_on(&host, line, &[PATH]).map(|plan| plan.agent.cpus);
    assert_eq!(cpus("--numa-binding=node --nproc-per-node=2 x"), Ok(vec![vec![0, 1, 2, 3]; 2]));
    assert_eq!(cpus("--numa-affinity --nproc-per-node=1 x"), Ok(vec![vec![0, 1, 2, 3]]));
    assert_eq!(cpus("x"), Ok(vec![]));
    let without = plan("--numa-affinity x");
    assert_eq!((without.agent.cpus.len(), without.notices.len()), (0, 1));
}

#[test]
fn what_does_nothing_is_said_once_each() {
    let line = "--training-port=6 --auto-tunning --ucp_device_type=cpu --membind-policy=x --save-at-breakpoint \
                --start-method=fork --run-path x";
    assert_eq!(plan(line).notices.len(), 7);
    assert!(plan_in(&[("PET_AUTO_TUNNING", "0")], "--monitor-interval=5 x").notices.is_empty());
}

/// Every row of the contract's first section: what the option changes, from the command line and from `PET_*`.
#[test]
fn every_option_of_torchrun_has_its_effect_from_either_place() {
    type Fact = fn(&LaunchPlan) -> String;
    let rows: &[(&str, &str, Fact, &str)] = &[
        ("nnodes", "1:1", |plan| format!("{:?}", plan.agent.nodes), "(1, 1)"),
        ("nproc-per-node", "3", |plan| plan.agent.local_world_size.to_string(), "3"),
        ("rdzv-backend", "c10d", |plan| plan.agent.run_id.0.clone(), "none"),
        ("rdzv-endpoint", "h:5", |plan| format!("{:?}", plan.meeting), "Static { addr: \"h\", port: 5 }"),
        ("rdzv-conf", "a=b", |plan| format!("{:?}", plan.meeting), "Loopback"),
        ("max-restarts", "4", |plan| plan.agent.max_restarts.to_string(), "4"),
        ("monitor-interval", "1e-3", |plan| format!("{:?}", plan.notices), "[]"),
        ("start-method", "fork", |plan| plan.notices.len().to_string(), "1"),
        ("event-log-handler", "console", |plan| format!("{:?}", plan.event_log), "Console"),
        ("role", "trainer", |plan| plan.agent.role.clone(), "trainer"),
        ("log-dir", "/logs", |plan| format!("{:?}", plan.agent.logs.dir), "At(\"/logs\")"),
        (
            "redirects",
            "0:1",
            |plan| format!("{:?}", plan.agent.logs.redirects),
            "[Streams { out: true, err: false }]",
        ),
        ("tee", "2", |plan| format!("{:?}", plan.agent.logs.tee), "[Streams { out: false, err: true }]"),
        ("log-line-prefix-template", "${rank}:", |plan| plan.agent.logs.prefix_template.clone(), "${rank}:"),
        ("local-ranks-filter", "0,2", |plan| format!("{:?}", plan.agent.logs.console_ranks), "Some({0, 2})"),
        ("duplicate-stdout-filters", "a,b", |plan| plan.agent.logs.stdout_filters.join("|"), "a|b"),
        ("duplicate-stderr-filters", "a,,b", |plan| plan.agent.logs.stderr_filters.join("|"), "a,b"),
        ("node-rank", "0", |plan| format!("{:?}", plan.agent.node_rank), "None"),
        ("master-addr", "h", |plan| format!("{:?}", plan.meeting), "Loopback"),
        ("master-port", "6", |plan| format!("{:?}", plan.meeting), "Static { addr: \"127.0.0.1\", port: 6 }"),
        ("local-addr", "10.0.0.1", |plan| format!("{:?}", plan.agent.local_addr), "Some(\"10.0.0.1\")"),
        ("signals-to-handle", "SIGUSR1", |plan| plan.agent.signals.join("|"), "SIGUSR1"),
        ("shutdown-timeout", "2", |plan| format!("{:?}", plan.agent.shutdown_timeout), "2s"),
    ];
    for (name, value, fact, expected) in rows {
        let pet = format!("PET_{}", name.replace('-', "_").to_uppercase());
        for line in [format!("--{name}={value} x"), format!("--{} {value} x", name.replace('-', "_"))] {
            assert_eq!(fact(&plan(&line)), *expected, "{line}");
        }
        assert_eq!(fact(&plan_in(&[(&pet, value)], "x")), *expected, "{pet}");
    }
    let switches: &[(&str, Fact, &str)] = &[
        ("standalone", |plan| format!("{:?}", plan.meeting), "Loopback"),
        ("module", |plan| argv(plan)[1..].join(" "), "-u -m x"),
        ("no-python", |plan| argv(plan).join(" "), "x"),
        ("run-path", |plan| argv(plan)[1..].join(" "), "-u x"),
        ("virtual-local-rank", |plan| plan.agent.env.virtual_local_rank.to_string(), "true"),
        ("propagate-exit-code", |plan| plan.propagate_exit_code.to_string(), "true"),
    ];
    for (name, fact, expected) in switches {
        let pet = format!("PET_{}", name.replace('-', "_").to_uppercase());
        assert_eq!(fact(&plan(&format!("--{name} x"))), *expected, "{name}");
        assert_eq!(fact(&plan_in(&[(&pet, "1")], "x")), *expected, "{pet}");
        assert_eq!(fact(&plan_in(&[(&pet, "0")], &format!("--{name} x"))), *expected, "{pet}=0 loses");
    }
}

#[test]
fn two_options_have_no_variable() {
    let plan = plan_in(&[("PET_NUMA_BINDING", "node"), ("PET_LOGS_SPECS", "mine")], "x");
    assert!(plan.agent.cpus.is_empty());
}

#[test]
fn a_rendezvous_setting_is_held_to_what_it_means() {
    let fine = "--rdzv-conf=join_timeout=5,is_host=True,store_type=FILE,cas_backoff_max_seconds=0.5,mine=x x";
    assert_eq!(plan(fine).meeting, Meeting::Loopback);
    for bad in
        ["join_timeout=0", "read_timeout=a", "is_host=maybe", "store_type=disk", "cas_backoff_max_seconds=-1"]
    {
        let answer = plan_on(&FakeHost::new(), &format!("--rdzv-conf={bad} x"), &[PATH]);
        assert!(answer.is_err_and(|error| error.contains("is not a rendezvous configuration")), "{bad}");
    }
    assert!(plan_on(&FakeHost::new(), "--master-port=1 --rdzv-conf=timeout=soon x", &[PATH]).is_err());
}

#[test]
fn checks_are_parsed_from_the_first_day() {
    let checks = plan("--box-pairs 0:2 1:3 --min-bandwidth=1e3 --min-channels=1 x").checks;
    assert_eq!((checks.box_pairs.len(), checks.min_channels, checks.min_bandwidth_mb_per_s), (2, 1, 1000.0));
    let checks =
        plan_in(&[("PET_BOX_PAIRS", "0:1 2:4"), ("PET_ACCELERATOR", "metax-tech.com/gpu")], "x").checks;
    assert_eq!((checks.box_pairs.len(), checks.accelerator.as_str()), (2, "metax-tech.com/gpu"));
    assert!(!checks.network && !checks.switchbox);
}

proptest! {
    #[test]
    fn no_pet_variable_panics(
        name in prop::sample::select(crate::options::OPTIONS.iter().map(|spec| spec.pet_name()).collect::<Vec<_>>()),
        value in ".{0,12}",
    ) {
        let _ = plan_on(&FakeHost::new(), "--max-restarts=1 x.py", &[(name.as_str(), value.as_str()), PATH]);
    }

    #[test]
    fn no_value_panics(
        name in prop::sample::select(crate::options::OPTIONS.iter().map(|spec| spec.long).collect::<Vec<_>>()),
        value in "[-+0-9a-z_:=,.\\[\\]${}]{0,12}",
    ) {
        let _ = plan_on(&FakeHost::new(), &format!("--{name}={value} x.py"), &[PATH]);
    }
}
