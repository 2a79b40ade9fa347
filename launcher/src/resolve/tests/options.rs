//! Options on the command line and in the environment.

use diagnosis::switchbox::{Expected, Path, Rate};
use probes::{SwitchboxProbe, SwitchboxTask};
use proptest::prelude::*;

use super::*;

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
fn what_does_nothing_is_said_once_each() {
    let line = "--training-port=6 --auto-tunning --ucp_device_type=cpu --membind-policy=x \
                --start-method=fork --run-path x";
    assert_eq!(plan(line).notices.len(), 6);
    assert!(plan_in(&[("PET_AUTO_TUNNING", "0")], "--monitor-interval=5 x").notices.is_empty());
}

#[test]
fn checkpoints_in_memory_have_the_memory_that_is_given() {
    assert_eq!(plan("x.py").agent.checkpoint_memory, None);
    assert_eq!(plan("--flash-ckpt-memory=512 x.py").agent.checkpoint_memory, Some(512 << 20));
    assert_eq!(plan("--flash_ckpt_memory 0 x.py").agent.checkpoint_memory, Some(0));
    assert_eq!(
        refusal(&[], "--flash-ckpt-memory=-1 x.py"),
        "`--flash-ckpt-memory=-1` is invalid: expected a number of MiB, 0 or more; with 0, saves to disk are written \
         at once and saves to memory fail"
    );
    assert!(!plan("x.py").agent.terms.save_at_breakpoint);
    assert!(plan("--save-at-breakpoint x.py").agent.terms.save_at_breakpoint);
    assert!(plan_in(&[("PET_SAVE_AT_BREAKPOINT", "1")], "x.py").agent.terms.save_at_breakpoint);
}

#[test]
fn what_only_a_check_looks_at_is_said_to_do_nothing_without_one() {
    let of_checks = "--straggler-ratio=3 --check-command=true --check-ttl=1 --check-max-rounds=2 \
                     --network-check-timeout=3 --on-inconclusive=proceed --on-bad-path=fail --taint-flaky=now \
                     --taint-report=/t --taint-key=k --taint-guard=1";
    let of_switchbox = "--box-pairs 0:1 --min-bandwidth=5 --min-channels=1 --switchbox-probe=host --switchbox-path=any \
                        --probe-loopback";
    let notices = plan(&format!("{of_checks} {of_switchbox} --no-python -- x")).notices;
    assert_eq!(notices.len(), 17, "{notices:#?}");
    for told in [
        "`--check-command=true` is ignored: requires --network-check",
        "`--box-pairs=0:1` is ignored: requires --switchbox-check",
        "`--probe-loopback` is ignored: requires --switchbox-check",
    ] {
        assert!(notices.iter().any(|notice| notice == told), "{notices:#?}");
    }
    assert_eq!(plan(&format!("--precheck=1 {of_checks} x")).notices, [""; 0]);
    assert_eq!(plan(&format!("--network-check --switchbox-check {of_switchbox} -- x")).notices, [""; 0]);
    let env = [("PET_CHECK_COMMAND", "true"), ("PET_MIN_BANDWIDTH", "5"), ("PET_SWITCHBOX_PROBE", "")];
    assert_eq!(plan_in(&env, "x").notices, [""; 0]);
    let probe = plan_in(&env, "--network-check --switchbox-check x").checks.switchbox.unwrap().probe;
    assert_eq!(probe, SwitchboxProbe::Auto);
}

#[test]
fn what_a_check_does_about_passing_troubles_and_cuts_is_said_on_the_line_or_in_the_environment() {
    let choices = |env: &[(&str, &str)], line: &str| {
        let terms = plan_in(env, &format!("--network-check {line} x")).checks.terms.unwrap();
        format!("{} {}", terms.taint_flaky, terms.on_bad_path)
    };
    assert_eq!(choices(&[], ""), "confirmed exclude");
    for taint_flaky in ["now", "confirmed", "never"] {
        for on_bad_path in ["exclude", "fail", "proceed"] {
            let line = format!("--taint-flaky={taint_flaky} --on_bad_path {on_bad_path}");
            assert_eq!(choices(&[], &line), format!("{taint_flaky} {on_bad_path}"));
        }
    }
    let env = [("PET_TAINT_FLAKY", "never"), ("PET_ON_BAD_PATH", "fail")];
    assert_eq!(choices(&env, "--on-bad-path=proceed"), "never proceed");
}

/// Every row of the contract's first section: what the option changes, from the command line and from `PET_*`.
#[test]
fn every_option_of_torchrun_has_its_effect_from_either_place() {
    type Fact = fn(&LaunchPlan) -> String;
    let rows: &[(&str, &str, Fact, &str)] = &[
        ("nnodes", "1:1", |plan| plan.agent.terms.max_nodes.to_string(), "1"),
        ("nproc-per-node", "3", |plan| plan.agent.local_world_size.to_string(), "3"),
        ("rdzv-backend", "c10d", |plan| plan.agent.run_id.0.clone(), "none"),
        (
            "rdzv-endpoint",
            "h:5",
            |plan| format!("{:?}", plan.rendezvous),
            "Static(Endpoint { host: \"h\", port: 5 })",
        ),
        ("rdzv-conf", "a=b", |plan| format!("{:?}", plan.rendezvous), "Loopback"),
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
        ("master-addr", "h", |plan| format!("{:?}", plan.rendezvous), "Loopback"),
        (
            "master-port",
            "6",
            |plan| format!("{:?}", plan.rendezvous),
            "Static(Endpoint { host: \"127.0.0.1\", port: 6 })",
        ),
        ("local-addr", "10.0.0.1", |plan| format!("{:?}", plan.local_addr), "Some(\"10.0.0.1\")"),
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
        ("standalone", |plan| format!("{:?}", plan.rendezvous), "Loopback"),
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
fn checks_are_parsed_from_the_first_day() {
    let checks = plan("--box-pairs 0:2 1:3 --min-bandwidth=1e3 --min-channels=1 x").checks;
    assert!(checks.terms.is_none() && checks.switchbox.is_none());
    let checks = plan_in(&[("PET_ACCELERATOR", "metax-tech.com/gpu")], "x").checks;
    assert_eq!(checks.accelerator, "metax-tech.com/gpu");
}

/// The checks of this command line and these variables.
fn switchbox(words: &str, env: &[(&str, &str)]) -> SwitchboxTask {
    let plan = plan_in(env, &format!("--network-check --switchbox-check {words} x"));
    assert_eq!(plan.checks.switchbox, plan.agent.switchbox);
    plan.agent.switchbox.unwrap()
}

#[test]
fn the_switchbox_check_has_the_guides_defaults() {
    let SwitchboxTask { settings, probe, tool, sysfs, timeout } = switchbox("", &[]);
    assert_eq!(diagnosis::switchbox::pairs_text(&settings.pairs), "0:1 2:4 3:5 6:7");
    assert!(!settings.are_pairs_given, "they say nothing of this host");
    assert_eq!((settings.min, settings.min_channels), (Rate(10_000_000_000), 2));
    assert_eq!((settings.expected, probe, timeout), (Expected::Alike, SwitchboxProbe::Auto, None));
    assert_eq!((tool.to_str(), sysfs.to_str()), (Some("/opt/mxmap/bin/mxom-client"), Some("/sys")));
}

#[test]
fn the_switchbox_check_is_as_it_was_asked_for() {
    let task =
        switchbox("--box-pairs 0:2 1:3 --min-bandwidth=1e3 --min-channels=1 --switchbox-path=nvlink", &[]);
    assert_eq!(diagnosis::switchbox::pairs_text(&task.settings.pairs), "0:2 1:3");
    assert!(task.settings.are_pairs_given);
    assert!(switchbox("", &[("PET_BOX_PAIRS", "0:1 2:4 3:5 6:7")]).settings.are_pairs_given);
    assert_eq!((task.settings.min, task.settings.min_channels), (Rate(1_000_000_000), 1));
    assert_eq!(task.settings.expected, Expected::Exactly(Path::Nvlink));
    let pairs = |words, env| diagnosis::switchbox::pairs_text(&switchbox(words, env).settings.pairs);
    assert_eq!(pairs("", &[("PET_BOX_PAIRS", "0:1 2:4")]), "0:1 2:4");
    assert_eq!(pairs("--box-pairs=0:1,2:4", &[]), "0:1 2:4");
    assert_eq!(pairs("--box_pairs=0:1 2:4", &[]), "0:1 2:4");
    let loopback = switchbox("--box-pairs 0:0 --probe-loopback --switchbox-probe=cuda", &[]);
    assert_eq!((loopback.settings.min_channels, loopback.probe), (1, SwitchboxProbe::Cuda));
    let tool = switchbox("", &[("SWITCHBOX_CHECK_TOOL_PATH", "/a/tool")]).tool;
    assert_eq!(tool.to_str(), Some("/a/tool"));
}

#[test]
fn the_probe_comes_from_the_option_and_then_the_variable() {
    const VARIABLE: &str = "DLROVER_SWITCHBOX_PROBE";
    let probe = |words: &str, env| switchbox(words, env).probe;
    assert_eq!(probe("", &[(VARIABLE, "mxom")]), SwitchboxProbe::Mxom);
    assert_eq!(probe("--switchbox-probe=host", &[(VARIABLE, "mxom")]), SwitchboxProbe::Host);
    assert_eq!(probe("", &[(VARIABLE, "")]), SwitchboxProbe::Auto);
    let command = "/a/probe --fast";
    assert_eq!(probe("", &[(VARIABLE, command)]), SwitchboxProbe::Command(command.into()));
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
