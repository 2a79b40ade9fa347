//! A share of an accelerator.

use std::os::unix::fs::symlink;

use super::*;

fn sharing(host: &FakeHost, flags: &str) -> LaunchPlan {
    let env = [
        ("ALIYUN_COM_GPU_MEM_IDX", "0"),
        ("ALIYUN_COM_GPU_MEM_CONTAINER", "10"),
        ("ALIYUN_COM_GPU_MEM_DEV", "80"),
        PATH,
    ];
    plan_on(host, &format!("--standalone {flags} x.py"), &env).unwrap_or_else(|error| panic!("{error}"))
}

/// Numbers of another namespace may be those of a worker here.
#[test]
fn nobody_is_killed_by_numbers_that_may_be_anothers() {
    for (namespace, kills) in
        [(Some("pid:[4026531836]"), true), (Some("pid:[4026532447]"), false), (None, false)]
    {
        let host = FakeHost::new();
        host.root.write("proc/self/ns/net", "");
        if let Some(namespace) = namespace {
            symlink(namespace, host.root.path().join("proc/self/ns/pid")).unwrap();
        }
        let plan = sharing(&host, "--gpu-mem-enforce");
        assert_eq!(plan.agent.gpu_share.map(|terms| terms.enforces), Some(kills), "{namespace:?}");
        let given = |words: &str| plan.notices.iter().filter(|line| line.contains(words)).count();
        assert_eq!(given("--gpu-mem-enforce is not enforced: the driver reports"), usize::from(!kills));
        assert_eq!(given("and neither does this launcher"), usize::from(!kills), "{:?}", plan.notices);
        let plan = sharing(&host, "");
        assert_eq!(plan.agent.gpu_share.map(|terms| terms.enforces), Some(false));
        assert!(!plan.notices.iter().any(|line| line.contains("is not enforced")), "{:?}", plan.notices);
    }
}
