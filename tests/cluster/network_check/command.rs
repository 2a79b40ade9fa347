//! A program of the user's in place of the built-in probe.

use std::path::Path;

use support::{fake_library, trainer};

use super::job::{Job, take};
use crate::hosts::{Network, data_address};

fn flag() -> String {
    format!("--check-command=python3 '{}'", trainer("pair_check.py").display())
}

#[test]
fn a_check_command_reaches_its_peer_and_passes() {
    let Some(network) = Network::of(4) else { return };
    let job = Job::on(&network, &["--nnodes=4", &flag()]);
    let nodes = job.start();
    let report = job.report(0);
    report.blames(&[]);
    assert_eq!(report.rounds.len(), 1, "{report:#?}");
    let rates: Vec<Option<f64>> = report.rounds[0].tests.iter().map(|test| test.mb_per_s).collect();
    assert_eq!(rates, [Some(123.4), Some(123.4)], "as the program says: {report:#?}");
    let _world = job.first_world(4);
    let _end = job.ends_well(nodes);
}

#[test]
fn the_host_with_a_failing_program_is_found() {
    let Some(network) = Network::of(4) else { return };
    let job = Job::on(&network, &["--nnodes=3:4", &flag()]);
    let broken = |host: usize| if host == 1 { "its accelerator is on fire" } else { "" };
    let start = |host: usize| job.line_of(host).env("PAIR_CHECK_BROKEN", broken(host)).start();
    let mut nodes: Vec<_> = (0..4).map(start).collect();
    let report = job.report(0);
    report.blames(&[(1, "fault")]);
    for piece in &report.nodes[1].evidence {
        let words = "the check command exited with code 3: its accelerator is on fire";
        assert!(piece.words.ends_with(words), "{report:#?}");
    }
    let left = take(&mut nodes, 1);
    for outcome in job.leave([left], 201) {
        let output = outcome.stderr;
        assert!(output.contains("exited with code 3: its accelerator is on fire"), "{output}");
        for witness in report.witnesses_against(1) {
            assert!(output.contains(&data_address(witness)), "{output}");
        }
    }
    let _world = job.first_world(3);
    let _end = job.ends_well(nodes);
}

#[test]
fn the_check_command_sees_only_the_chosen_accelerators() {
    let Some(network) = Network::of(2) else { return };
    let script = format!(
        "echo \"$RANK $CUDA_VISIBLE_DEVICES\" >>\"$SEEN\"; exec python3 '{}'",
        trainer("pair_check.py").display()
    );
    let flag = format!("--check-command={script}");
    let job = Job::on(&network, &["--nnodes=2", "--nproc-per-node=1", "--gpu-select=5,4", &flag]);
    let folder = tempfile::tempdir().expect("a directory");
    let start = |host: usize| {
        let locks = folder.path().join(format!("locks{host}"));
        job.line_of(host)
            .env("LD_LIBRARY_PATH", fake_library::folder(Path::new(env!("CARGO_TARGET_TMPDIR"))))
            .env("FAKE_NVML", "gpus=8;links=dgx1")
            .env("DLROVER_GPU_LOCK_DIR", locks)
            .env("SEEN", folder.path().join(format!("seen{host}")))
            .start()
    };
    let nodes: Vec<_> = (0..2).map(start).collect();
    job.report(0).blames(&[]);
    for host in 0..2 {
        let seen = std::fs::read_to_string(folder.path().join(format!("seen{host}"))).expect("it ran");
        assert_eq!(seen, format!("{host} GPU-00000005-fake,GPU-00000004-fake\n"));
    }
    let _world = job.first_world(2);
    let _end = job.ends_well(nodes);
}
