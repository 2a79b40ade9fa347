//! The choice on a host with NVML and without vendors' tools.

use std::process::{Command, Stdio};

use super::*;

/// The variables of a host with 8 V100, in this state.
fn driver(state: &str) -> [(&'static str, String); 2] {
    let library = support::fake_library::folder(Path::new(env!("CARGO_TARGET_TMPDIR")));
    [("LD_LIBRARY_PATH", library.display().to_string()), ("FAKE_NVML", format!("gpus=8;links=dgx1;{state}"))]
}

/// `GPU-00000004-fake` is 4.
fn places(list: &str) -> Vec<u32> {
    list.split(',').map(|id| id["GPU-0000000".len()..][..1].parse().unwrap()).collect()
}

fn run(state: &str, flags: &[&str]) -> support::launch::Outcome {
    let mut launch = Launch::new(launcher!()).flags(["--standalone", "--gpu-select=topology"]).flags(flags);
    let locks = tempfile::tempdir().unwrap();
    launch = launch.env("DLROVER_GPU_LOCK_DIR", locks.path());
    for (name, value) in driver(state) {
        launch = launch.env(name, value);
    }
    launch.steps(&["dump"]).finish().expect_code(0)
}

#[test]
fn links_ids_memory_and_health_come_from_the_driver() {
    for (state, words) in [
        ("used=1:61", "(left out: GPU 1 busy)"),
        ("lost=1", "GPU 1 is not used: it has fallen off the bus"),
        ("ecc=1:3", "GPU 1 is not used: 3 uncorrectable ECC errors"),
        ("denied=1", "GPU 1 is not used: permission denied"),
    ] {
        let run = run(state, &["--nproc-per-node=4"]);
        for rank in 0..4 {
            let list = run.dump(rank, 0).var("CUDA_VISIBLE_DEVICES").to_owned();
            assert_eq!(places(&list), [4, 5, 6, 7, 0, 2, 3], "{state}");
        }
        assert!(run.stderr.contains(words), "{state}: {}", run.stderr);
        assert_eq!(run.stderr.contains("GPU 1 busy)"), state.starts_with("used"), "{state}: {}", run.stderr);
    }
}

#[test]
fn a_list_with_a_broken_device_is_refused() {
    for (state, words) in [("lost=1", "it has fallen off the bus"), ("ecc=1:3", "3 uncorrectable ECC errors")]
    {
        let [(path, library), (name, state)] = driver(state);
        let launch = Launch::new(launcher!()).flags(["--standalone", "--gpu-select=0,1"]);
        let run = launch.env(path, library).env(name, state).finish().expect_code(1);
        assert!(run.stderr.contains(&format!("1 cannot be used: {words}")), "{}", run.stderr);
    }
}

#[test]
fn the_user_sets_the_threshold_of_busy() {
    let list = |flags: &[&str]| places(run("used=1:61", flags).dump(0, 0).var("CUDA_VISIBLE_DEVICES"));
    assert_eq!(list(&["--nproc-per-node=4"])[..4], [4, 5, 6, 7]);
    assert_eq!(list(&["--nproc-per-node=4", "--busy-gpu-threshold=80"])[..4], [0, 1, 2, 3]);
}

#[test]
fn a_driver_that_hangs_is_given_up_after_the_deadline_without_a_choice() {
    let run = run("hang=3", &["--nproc-per-node=1"]);
    assert!(run.stderr.contains("is ignored (as with --gpu-select=first)"), "{}", run.stderr);
    assert_eq!(run.dump(0, 0).env.get("CUDA_VISIBLE_DEVICES"), None);
}

#[test]
fn the_diagnosis_shows_the_same() {
    let diag = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-diag-under-test"));
        command.args(args).envs(driver("used=1:61;lost=3")).stdin(Stdio::null());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = diag(&["topo", "-k", "4", "--json"]);
    let topo: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &topo["ring"]), (Some(0), &serde_json::json!([4, 5, 6, 7])), "{text}");
    let (_, text) = diag(&["topo"]);
    let row = |gpu: &str| text.lines().find(|line| line.starts_with(gpu)).unwrap();
    assert!(row("GPU1").ends_with("  busy") && row("GPU3").ends_with("  broken"), "{text}");
    let (_, text) = diag(&["gpus", "--busy-gpu-threshold=80"]);
    assert!(!text.contains("busy"), "{text}");
    let (code, text) = diag(&["gpus"]);
    assert_eq!(code, Some(1), "one is broken");
    assert!(text.contains("BROKEN: it has fallen off the bus"), "{text}");
    let (_, text) = diag(&["gpus", "--json"]);
    let gpus: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&gpus["schema"], &gpus["gpus"][4]["uuid"]),
        (&"dlrover.gpus/v1".into(), &"GPU-00000004-fake".into())
    );
}

/// The driver for computing has no more than the probe of this node needs to say which device it was about to use.
fn checked(state: &str, flags: &[&str]) -> (support::launch::Outcome, serde_json::Value, String) {
    let dir = tempfile::tempdir().unwrap();
    let (seen, report) = (dir.path().join("seen"), dir.path().join("report.json"));
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake-cuda");
    let cuda = support::fake_library::built(&scratch, "fake_cuda.rs", "libcuda.so.1");
    let [(path, nvml), state] = driver(state);
    let flag = format!("--taint-report={}", report.display());
    let launch = Launch::new(launcher!()).flags(["--standalone", "--network-check", &flag]).flags(flags);
    let launch = launch
        .env("DLROVER_GPU_LOCK_DIR", dir.path().join("locks"))
        .env("FAKE_CUDA_SEEN", &seen)
        .env(path, format!("{nvml}:{}", cuda.display()))
        .env(state.0, state.1);
    let outcome = launch.steps(&["dump"]).finish();
    let report = serde_json::from_str(&read(&report)).unwrap();
    (outcome, report, read(&seen))
}

#[test]
fn a_node_computes_on_the_chosen_devices_and_names_their_own_numbers() {
    let flags = ["--nproc-per-node=2", "--gpu-select=5,4"];
    let (outcome, report, seen) = checked("used=0:61", &flags);
    let log = &outcome.stderr;
    assert_eq!(seen, "GPU-00000005-fake,GPU-00000004-fake", "{log}");
    assert!(log.contains("this node is broken: GPU 5: cannot open the device"), "{log}");
    let node = &report["nodes"][0];
    assert_eq!(node["component"], "GPU 5", "{report:#}");
    assert_eq!(node["inventory"]["gpus"].as_array().map(Vec::len), Some(8), "all are asked: {report:#}");
}

#[test]
fn a_device_that_is_not_first_to_the_driver_has_its_own_number_too() {
    let (outcome, report, seen) = checked("", &["--nproc-per-node=1"]);
    assert_eq!(
        (seen.as_str(), &report["nodes"][0]["component"]),
        ("all", &"GPU 7".into()),
        "{}",
        outcome.stderr
    );
}
