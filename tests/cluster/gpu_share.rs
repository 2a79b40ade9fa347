//! A container that has a share of an accelerator (Alibaba Cloud's gpushare).

use std::path::Path;

use support::{cluster::Cluster, fake_library, launch::Launch};

use crate::lines;

/// 5 of 80 units of a device with 80 GB, for two workers.
fn sharing(job: &Cluster) -> Launch {
    let library = fake_library::folder(Path::new(env!("CARGO_TARGET_TMPDIR")));
    job.line()
        .flags(["--standalone", "--nproc-per-node=2"])
        .env("ALIYUN_COM_GPU_MEM_IDX", "0")
        .env("ALIYUN_COM_GPU_MEM_POD", "10")
        .env("ALIYUN_COM_GPU_MEM_CONTAINER", "10")
        .env("ALIYUN_COM_GPU_MEM_DEV", "80")
        .env("LD_LIBRARY_PATH", library)
        .env("FAKE_NVML", "gpus=1")
        .env("FAKE_NVML_PROCESSES", job.dir().join("processes"))
}

#[test]
fn a_container_without_memory_fails_at_once_with_the_plugins_message() {
    let job = lines();
    let run = sharing(&job)
        .env("ALIYUN_COM_GPU_MEM_IDX", "-1")
        .env("NVIDIA_VISIBLE_DEVICES", "no-gpu-has-10GiB-to-run");
    let outcome = run.start().finish().expect_code(1);
    assert!(outcome.stderr.contains("NVIDIA_VISIBLE_DEVICES=no-gpu-has-10GiB-to-run"), "{}", outcome.stderr);
    assert_eq!(job.ran(), []);
}

#[test]
fn workers_get_their_share_of_the_device_in_the_environment() {
    let job = lines();
    let run = sharing(&job).env("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.05").start();
    let world = job.await_world(2, 0);
    for worker in &world {
        assert_eq!(worker.var("DLROVER_GPU_MEM_FRACTION"), "0.062");
        assert_eq!(worker.var("FLAGS_fraction_of_gpu_memory_to_use"), "0.062");
        assert_eq!(worker.var("XLA_PYTHON_CLIENT_MEM_FRACTION"), "0.05", "the user's own word counts");
    }
    job.go();
    let outcomes = job.finish([run], 0);
    let output = &outcomes[0].stderr;
    assert!(
        output.contains(
            "this container has 10 of 80 units of accelerator 0, 0.062 of the accelerator's memory for each \
             of 2 workers; "
        ),
        "{output}"
    );
}

/// Others fill the rest of the device, as the plugin intends: that excludes no node.
#[test]
fn a_shared_device_is_not_busy() {
    let job = lines();
    let report = format!("--taint-report={}", job.dir().join("report.json").display());
    let run =
        sharing(&job).flags(["--network-check", &report]).env("FAKE_NVML", "gpus=1;used=0:70;pid=0:4711");
    let run = run.start();
    let _world = job.await_world(2, 0);
    job.go();
    let _outcomes = job.finish([run], 0);
}

#[test]
fn a_worker_above_its_share_is_reported_and_killed_if_enforced() {
    for enforces in [false, true] {
        let job = lines();
        let flags = if enforces { &["--gpu-mem-enforce"][..] } else { &[] };
        let run = sharing(&job).flags(flags).start();
        let world = job.await_world(2, 0);
        let greedy = world.iter().find(|worker| worker.var("LOCAL_RANK") == "1").expect("it runs");
        let modest = world.iter().find(|worker| worker.var("LOCAL_RANK") == "0").expect("it runs");
        let processes = format!("0 {} 5\n0 {} 6\n0 1 60\n", modest.pid, greedy.pid);
        std::fs::write(job.dir().join("processes"), processes).expect("the fake reads it");
        let held = "local rank 1 uses 6.0 GB of accelerator memory (its share: 5.0 GB); ";
        let _said = job.await_output(&run, held);
        // In a PID namespace of its own no process is killed by the host's process ids.
        let namespace = std::fs::read_link("/proc/self/ns/pid").expect("Linux has it");
        let has_hosts_numbers = namespace == Path::new("pid:[4026531836]");
        if enforces && has_hosts_numbers {
            let outcomes = job.finish([run], 1);
            let output = &outcomes[0].stderr;
            assert!(output.contains("killing it, because the share is enforced"), "{output}");
            assert!(output.contains("rank 1 (local rank 1, pid ") && output.contains("SIGKILL"), "{output}");
        } else {
            job.go();
            let outcomes = job.finish([run], 0);
            let output = &outcomes[0].stderr;
            assert_eq!(output.matches(held).count(), 1, "{output}");
            assert!(!output.contains("local rank 0 uses"), "{output}");
            assert_eq!(output.contains("--gpu-mem-enforce is not enforced"), enforces, "{output}");
        }
    }
}
