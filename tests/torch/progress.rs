//! The prelude of `--progress=auto` in scripts of real PyTorch: it counts the steps that they make.

use std::{
    ffi::{OsStr, OsString},
    process::{Child, Command, Stdio},
};

use agent::ProgressFiles;
use rules::LocalRank;
use support::{free_port, trainer};

use crate::python;

/// Starts `torch_steps.py` as local rank `rank`.
fn start(python: &OsStr, files: &ProgressFiles, rank: u32, what: &[&str], world: &[(&str, String)]) -> Child {
    let mut command = Command::new(python);
    command.arg(trainer("torch_steps.py")).args(what).env_remove("PYTHONPATH").env("OMP_NUM_THREADS", "1");
    command.envs(world.iter().map(|(name, value)| (name, value)));
    command.envs(files.environment(LocalRank(rank), true, None));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// The steps that each of `ranks` processes counted, which all end well and say the same number.
fn counted(python: &OsString, what: &[&str], world: &[&[(&str, String)]]) -> Vec<Option<u64>> {
    let mut files = ProgressFiles::new(world.len() as u32).expect("files in memory");
    let ranks: Vec<Child> =
        (0..).zip(world).map(|(rank, world)| start(python, &files, rank, what, world)).collect();
    for rank in ranks {
        let output = rank.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{what:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n");
    }
    files.sample().into_iter().map(|sample| sample.step).collect()
}

#[test]
fn steps_of_real_optimizers_are_counted() {
    let Some(python) = python() else { return };
    for (what, steps) in [
        (&["sgd"][..], 20),
        (&["adam"], 20),
        (&["sgd", "adam"], 40),
        // Its step calls the closure more than once.
        (&["lbfgs"], 20),
        (&["sgd", "--closure"], 20),
        (&["adam", "--workers"], 20),
    ] {
        assert_eq!(counted(&python, what, &[&[]]), [Some(steps)], "{what:?}");
    }
}

#[test]
fn a_script_that_only_imports_torch_counts_nothing() {
    let Some(python) = python() else { return };
    assert_eq!(counted(&python, &[], &[&[]]), [None]);
}

#[test]
fn steps_of_each_rank_are_counted_under_ddp() {
    let Some(python) = python() else { return };
    let port = free_port().to_string();
    let world = ["0", "1"].map(|rank| {
        [
            ("RANK", rank.to_owned()),
            ("WORLD_SIZE", "2".to_owned()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.clone()),
        ]
    });
    let counted = counted(&python, &["sgd", "--ddp"], &world.each_ref().map(|world| &world[..]));
    assert_eq!(counted, [Some(20), Some(20)]);
}
