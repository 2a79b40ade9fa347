//! What the launcher's own parent left it: variables, signals, children, descriptors, a full host.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::launch;

#[test]
fn a_job_that_a_dead_launchers_worker_submitted_is_no_leftover() {
    // What sbatch and at do: the variables of whoever submits reach the job. Process 1 is not that young.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let namespace = fs::metadata("/proc/self/ns/pid").unwrap().ino();
    let mark = format!("3f2504e0-4f89-41d3-9a0c-0305e82c3301:1:987654321987:{}:{namespace}", boot.trim());
    let run = launch().flags(["--standalone"]).env("DLROVER_LAUNCHER_ID", mark);
    // The script of the job carries the mark too, and so does what runs beside the launcher.
    let run = run.after("trap 'kill $aside' EXIT; sleep 60 & aside=$!; \"$@\"; exit $?");
    let outcome = run.finish().expect_code(0);
    assert!(!outcome.stderr.contains("had left behind"), "{outcome:#?}");
}
