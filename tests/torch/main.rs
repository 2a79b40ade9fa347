//! Real PyTorch under the launcher. `TORCH_PYTHON` names an interpreter that has it; without, every case says
//! that it was skipped.

mod cluster;
mod progress;

use std::ffi::OsString;
use std::io::Write;

use support::launch::{Launch, Outcome};
use support::seen::Report;
use support::{free_port, launcher, trainer};

/// The interpreter, or nothing where there is no torch.
fn python() -> Option<OsString> {
    let python = std::env::var_os("TORCH_PYTHON").filter(|python| !python.is_empty());
    if python.is_none() {
        // Past cargo's capture. A closed stderr must not fail the case.
        let _ = writeln!(std::io::stderr(), "skipped: TORCH_PYTHON is not set");
    }
    python
}

/// `torch_ddp.py` on two workers, or nothing where there is no torch.
fn ddp() -> Option<Launch> {
    let python = python()?;
    let run = Launch::new(launcher!()).script(trainer("torch_ddp.py")).env("PYTHON_EXEC", python);
    Some(run.flags(["--nproc-per-node=2"]).args(["--steps=40"]))
}

#[track_caller]
fn trained(run: &Outcome) {
    let losses =
        run.stdout.lines().filter_map(|line| line.split_once("loss ")?.1.split(' ').next()?.parse().ok());
    let losses: Vec<f32> = losses.collect();
    assert!(losses.len() >= 3 && losses.last() < losses.first(), "the loss goes down: {run:#?}");
    assert!(run.stdout.contains("all 2 ranks hold the same weights"), "{run:#?}");
}

/// Where the ranks of an attempt met, as rank 0 says it.
fn met_at(run: &Outcome, attempt: u32) -> Option<String> {
    let output = format!("attempt {attempt}: 2 ranks met at ");
    run.stdout.lines().find_map(|line| Some(line.strip_prefix(&output)?.to_owned()))
}

#[test]
fn ddp_trains() {
    let Some(run) = ddp() else { return };
    trained(&run.flags(["--standalone"]).finish().expect_code(0));
}

#[test]
fn ddp_recovers_on_the_same_port() {
    let Some(run) = ddp() else { return };
    if launcher!().is_torchrun {
        // Past cargo's capture, as above.
        let _ =
            writeln!(std::io::stderr(), "differs: torchrun's next attempt reads the stale keys of the last");
        return;
    }
    let run = run.flags(["--standalone", "--max-restarts=1"]).args(["--die-at=25"]).finish().expect_code(0);
    trained(&run);
    assert!(run.stdout.contains("at step 20\n"), "{run:#?}");
    let first = met_at(&run, 0);
    assert!(first.is_some() && first == met_at(&run, 1), "{run:#?}");
}

#[test]
fn gloo_rendezvous_at_the_static_port() {
    let Some(run) = ddp() else { return };
    let port = free_port();
    let run =
        run.flags(["--master-addr=127.0.0.1", &format!("--master-port={port}")]).finish().expect_code(0);
    trained(&run);
    assert_eq!(met_at(&run, 0), Some(format!("127.0.0.1:{port}")));
}

#[test]
fn rank_0_serves_the_store_if_configured() {
    let Some(run) = ddp() else { return };
    let run = run.flags(["--standalone", "--max-restarts=1"]).args(["--die-at=25"]);
    let run = run.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", OsString::from("1")).finish().expect_code(0);
    trained(&run);
    assert!(run.stdout.contains("at step 20\n"), "{run:#?}");
}

#[test]
fn the_traceback_that_record_writes_is_reported() {
    let Some(run) = ddp() else { return };
    let run = run.flags(["--standalone"]).args(["--die-at=5", "--die-how=raise"]).finish().expect_code(1);
    let report = Report::read(&run.stderr).unwrap_or_else(|wrong| panic!("{wrong}: {run:#?}"));
    let rank_1 = report.by_rank().into_iter().find(|failure| failure.rank.starts_with("1 "));
    let rank_1 = rank_1.unwrap_or_else(|| panic!("rank 1 failed: {run:#?}"));
    assert!(rank_1.error_file.ends_with("/attempt_0/1/error.json"), "{run:#?}");
    assert!(rank_1.traceback.starts_with("Traceback (most recent call last):\n"), "{run:#?}");
    assert!(rank_1.traceback.ends_with("RuntimeError: rank 1 was asked to fail\n  "), "{run:#?}");
}
