//! The number of workers, their command, and how they are stopped.

use std::time::Duration;

use super::*;

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
    assert_eq!(python(&host, &[]), Ok("/usr/bin/python3".to_owned()), "the usual directories without PATH");
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
fn a_script_is_looked_for_where_this_launcher_can_tell() {
    let mut host = FakeHost::new();
    host.missing = ["nosuch.py", "/usr/bin/tool"].map(Into::into).into();
    let refused = |line: &str, env: &[(&str, &str)]| {
        let mut env = env.to_vec();
        env.push(PATH);
        plan_on(&host, line, &env).err()
    };
    let told = refused("--nnodes=2 --master-port=1 nosuch.py", &[]).unwrap();
    assert!(told.starts_with("cannot run nosuch.py: "), "{told}");
    assert!(refused("--no-python tool", &[]).unwrap().contains("cannot run tool: not found on PATH"));
    assert!(refused("nosuch.py", &[("PYTHON_EXEC", "/venv/bin/python3.12")]).is_some());
    for (line, env) in [
        ("there.py", &[][..]),
        ("-m nosuch.py", &[]),
        ("nosuch.py", &[("PYTHON_EXEC", "/opt/run-in-container")]),
        ("--no-python /opt/other", &[]),
    ] {
        assert_eq!(refused(line, env), None, "{line}");
    }
}

#[test]
fn the_template_may_have_2_gib_or_2_percent_of_the_node() {
    let limit = |memory_kib: Option<u64>, line: &str| {
        let host = FakeHost { memory_kib, ..FakeHost::new() };
        let plan = plan_on(&host, line, &[PATH]).unwrap();
        plan.agent.warm.map(|warm| warm.limit_kib)
    };
    const GIB: u64 = 1 << 20;
    for (memory, expected) in [
        (None, 2 * GIB),
        (Some(16 * GIB), 2 * GIB),
        (Some(1000 * GIB), 20 * GIB),
        (Some(u64::MAX), u64::MAX / 50),
    ] {
        assert_eq!(limit(memory, "--warm=start x.py"), Some(expected), "{memory:?}");
    }
    assert_eq!(limit(Some(1000 * GIB), "--warm=start --warm-memory=7 x.py"), Some(7 << 10));
    assert_eq!(limit(None, "x.py"), None);
}
