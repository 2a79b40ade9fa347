//! States of torch: scripts of DLRover's guide and sharded models, killed, restored, and read by torch alone.
//! `TORCH_PYTHON` names an interpreter that has torch; without, every case says that it was skipped.

use std::{
    ffi::{OsStr, OsString},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use support::{
    cluster::{Cluster, kill_node},
    launch::{Launch, Outcome},
    programs, tests_dir,
};

use crate::Folder;

/// The interpreter, or nothing where there is no torch.
pub fn python() -> Option<OsString> {
    let python = std::env::var_os("TORCH_PYTHON").filter(|python| !python.is_empty());
    if python.is_none() {
        // Past cargo's capture. A closed stderr must not fail the case.
        let _ = writeln!(std::io::stderr(), "skipped: TORCH_PYTHON is not set");
    }
    python
}

fn program(name: &str) -> PathBuf {
    tests_dir().join("flash/python/programs").join(name)
}

/// What all lines need to train with torch and the client.
fn trains(line: Launch, python: &OsStr) -> Launch {
    let client = tests_dir().parent().expect("the repository").join("packaging/wheel/python");
    line.env("PYTHON_EXEC", python).env("PYTHONPATH", client).env("OMP_NUM_THREADS", "1")
}

/// A run of one node that ends well.
#[track_caller]
fn finished(python: &OsStr, change: impl FnOnce(Launch) -> Launch) -> Outcome {
    let line = trains(Launch::new(programs!().launcher), python);
    change(line.flags(["--standalone", "--max-restarts=3"])).finish().expect_code(0)
}

/// The lines that begin with this word, without it, in the order of rank 0's; ranks say the same.
fn said<'a>(run: &'a Outcome, word: &str) -> Vec<&'a str> {
    let mut said: Vec<&str> = Vec::new();
    for line in run.stdout.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' ')) {
        if !said.contains(&line) {
            said.push(line);
        }
    }
    said
}

/// The same, for a line that is said once, or by each rank.
#[track_caller]
fn only<'a>(run: &'a Outcome, word: &str) -> &'a str {
    let said = said(run, word);
    assert_eq!(said.len(), 1, "lines with {word:?} are {said:#?}: {run:#?}");
    said[0]
}

/// What torch reads in these files or directories, in a process that cannot import the client.
#[track_caller]
fn read_by_torch_alone(python: &OsStr, paths: &[PathBuf]) -> Vec<String> {
    let mut command = Command::new(python);
    // Isolated: PYTHONPATH is not read, and the directory of the script is not searched.
    let output = command.arg("-I").arg(program("stock.py")).args(paths).output().expect("an interpreter");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{paths:?}: {stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let read: Vec<_> =
        stdout.lines().filter_map(|line| line.strip_prefix("read ")).map(str::to_owned).collect();
    assert_eq!(read.len(), paths.len(), "{stdout}\n{stderr}");
    read
}

/// The guide's script for DDP trains this many steps more.
#[track_caller]
fn guide_ddp(python: &OsStr, folder: &Path, steps: &[&str]) -> Outcome {
    finished(python, |line| {
        let line = line.flags(["-m"]).script("dlrover_run.shim").args([program("guide_ddp.py")]);
        line.args([folder]).args(steps)
    })
}

#[test]
fn the_guides_script_for_ddp_is_killed_and_run_again_and_trains_the_same() {
    let Some(python) = python() else { return };
    let (killed, whole) = (Folder::new(), Folder::new());
    let first = guide_ddp(&python, killed.path(), &["7", "die"]);
    let (loaded, saved) = (said(&first, "loaded"), said(&first, "saved"));
    let [seven, fourteen] = *saved else { panic!("not two rounds: {first:#?}") };
    assert!(loaded[0].starts_with("none 0 "), "{first:#?}");
    assert_eq!(loaded[1], format!("memory {seven}"), "{first:#?}");
    assert!(fourteen.starts_with("14 "), "{first:#?}");
    assert_eq!(killed.step(), Some(10));

    let second = guide_ddp(&python, killed.path(), &["5"]);
    assert!(only(&second, "loaded").starts_with("disk 10 "), "{second:#?}");
    assert_eq!(killed.step(), Some(15));
    let uninterrupted = guide_ddp(&python, whole.path(), &["15"]);
    assert_eq!(only(&second, "saved"), only(&uninterrupted, "saved"), "{second:#?}");

    // A run that is not interrupted may supersede its save of step 10: it asks for the next one within milliseconds.
    let file = |folder: &Folder, step| folder.path().join(format!("checkpoint-{step}.pt"));
    let paths = [file(&killed, 10), file(&killed, 15), file(&whole, 15)];
    let read = read_by_torch_alone(&python, &paths);
    // Steps 8 to 10 followed a state of memory; 11 to 15 one of the disk.
    assert_eq!(read[1], read[2]);
    assert_eq!(format!("disk {}", read[0]), only(&second, "loaded"));
    assert_eq!(read[1], only(&second, "saved"));
    killed.assert_swept();
}

/// The copy in memory is what it was when training goes on from it: the second kill finds the same.
#[test]
fn the_guides_script_for_ddp_is_killed_twice_and_loads_the_same_from_memory() {
    let Some(python) = python() else { return };
    let folder = Folder::new();
    let run = guide_ddp(&python, folder.path(), &["3", "die", "again"]);
    let seen: Vec<&str> = run.stdout.lines().collect();
    let [first, saved, loaded, trained, again, last] = *seen else { panic!("not three rounds: {run:#?}") };
    assert!(first.starts_with("loaded none 0 ") && saved.starts_with("saved 3 "), "{run:#?}");
    assert_eq!(loaded.strip_prefix("loaded memory "), saved.strip_prefix("saved "), "{run:#?}");
    assert_eq!(again, loaded, "{run:#?}");
    assert_eq!(last.strip_prefix("saved "), trained.strip_prefix("trained "), "{run:#?}");
}

/// The guide's script for FSDP does this, on two ranks of one node.
#[track_caller]
fn guide_fsdp(python: &OsStr, folder: &Folder, words: &[&str]) -> Outcome {
    finished(python, |line| {
        let line = line.flags(["--nproc-per-node=2"]).script(program("guide_fsdp.py"));
        line.args([folder.path()]).args(words)
    })
}

#[test]
fn the_guides_script_for_fsdp_is_killed_and_run_again_and_trains_the_same() {
    let Some(python) = python() else { return };
    let (killed, whole) = (Folder::new(), Folder::new());
    let uninterrupted = guide_fsdp(&python, &whole, &["15"]);
    let expected = said(&uninterrupted, "saved");
    let first = guide_fsdp(&python, &killed, &["7", "die"]);
    assert_eq!(said(&first, "saved"), expected[..14], "{first:#?}");
    assert_eq!(only(&first, "loaded"), format!("{} memory", expected[6]), "{first:#?}");
    let on_disk = newest_on_disk(&killed);
    let second = guide_fsdp(&python, &killed, &["1"]);
    assert_eq!(only(&second, "loaded"), format!("{} disk", expected[on_disk - 1]), "{second:#?}");
    assert_eq!(only(&second, "saved"), expected[on_disk], "{second:#?}");
    let read = read_by_torch_alone(&python, &[killed.path().join(on_disk.to_string())]);
    let sum = |text: &str| text.rsplit_once(' ').and_then(|(_, sum)| sum.parse::<f64>().ok());
    let (read, saved) = (sum(&read[0]).expect("a sum"), sum(expected[on_disk - 1]).expect("a sum"));
    assert!((read - saved).abs() < 1e-5, "torch alone read {read}, and {saved} was saved");
    killed.assert_swept();
}

/// Of 14 steps. Step 10 was asked for; on a slow host ranks may have newer ones by then, and the newest of all ranks is
/// as good.
#[track_caller]
fn newest_on_disk(folder: &Folder) -> usize {
    let step = folder.step().filter(|step| (10..=14).contains(step));
    step.and_then(|step| step.try_into().ok()).expect("step 10, or a newer one, is on disk")
}

/// Two ranks, each of which has a part of the model (FSDP2), do this.
#[track_caller]
fn sharded(python: &OsStr, folder: &Path, actions: &[&str]) -> Outcome {
    finished(python, |line| {
        let line = line.flags(["--nproc-per-node=2"]).script(program("fsdp.py"));
        line.args([folder]).args(["2"]).args(actions)
    })
}

#[test]
fn a_sharded_model_is_killed_and_run_again_and_trains_the_same() {
    let Some(python) = python() else { return };
    let (killed, whole) = (Folder::new(), Folder::new());
    let first = sharded(&python, killed.path(), &["save", "4", "die"]);
    assert_eq!(only(&first, "began"), "memory 4", "{first:#?}");
    assert_eq!(killed.step(), Some(8));
    let second = sharded(&python, killed.path(), &["save", "2"]);
    assert_eq!(only(&second, "began"), "disk 8", "{second:#?}");
    let uninterrupted = sharded(&python, whole.path(), &["save", "10"]);
    assert_eq!(said(&uninterrupted, "began"), [""; 0]);
    assert_eq!(only(&second, "saved"), only(&uninterrupted, "saved"), "{second:#?}");
    let paths = [&killed, &whole].map(|folder| folder.path().join("10"));
    let read = read_by_torch_alone(&python, &paths);
    assert_eq!(read[0], read[1]);
    killed.assert_swept();
}

/// Two nodes of one rank each do this, and end well. Node 1 is killed when both have made their file, if they do so.
#[track_caller]
fn on_two_nodes(python: &OsStr, is_killed: bool, change: impl Fn(Launch) -> Launch) -> Vec<Outcome> {
    let mut job = Cluster::with_master(programs!(), &["--reconnect-grace=0.5"]);
    let start = |rank| {
        let line = trains(job.ranked(rank), python).flags(["--nnodes=2", "--max-restarts=3"]);
        change(line).start()
    };
    let [first, mut second] = [0, 1].map(start);
    if is_killed {
        for rank in [0, 1] {
            let _waited = job.await_file(&format!("{rank}.waited"));
        }
        kill_node(second);
        second = start(1);
    }
    let outcomes = job.finish([first, second], 0);
    let _master = job.finish_master().expect_code(0);
    outcomes
}

#[test]
fn when_a_node_is_replaced_a_sharded_model_is_restored_from_disk_and_trains_the_same() {
    let Some(python) = python() else { return };
    let (lost, whole) = (Folder::new(), Folder::new());
    let outcomes = on_two_nodes(&python, true, |line| {
        line.script(program("fsdp.py")).args([lost.path()]).args(["2", "save", "3", "hang"])
    });
    assert_eq!(lost.step(), Some(6));
    let uninterrupted = sharded(&python, whole.path(), &["save", "6"]);
    for node in &outcomes {
        assert_eq!(only(node, "began"), "disk 3", "{node:#?}");
        let saved = said(node, "saved");
        assert_eq!(saved.last().copied(), Some(only(&uninterrupted, "saved")), "{node:#?}");
    }
}

/// Every node has the whole state: the new one fetches it. The job after it has it from disk.
#[test]
fn the_guides_script_for_ddp_goes_on_after_a_node_is_replaced_and_trains_the_same() {
    let Some(python) = python() else { return };
    let (lost, whole) = (Folder::new(), Folder::new());
    let guide = |is_killed, words: &[&str]| {
        on_two_nodes(&python, is_killed, |line| {
            let line = line.flags(["-m"]).script("dlrover_run.shim").args([program("guide_ddp.py")]);
            line.args([lost.path()]).args(words)
        })
    };
    let first = guide(true, &["7", "hang"]);
    let [seven, fourteen] = *said(&first[0], "saved") else { panic!("not two rounds: {first:#?}") };
    for node in &first {
        assert_eq!(said(node, "loaded").last(), Some(&&*format!("memory {seven}")), "{first:#?}");
        assert_eq!(said(node, "saved").last(), Some(&fourteen), "{first:#?}");
    }
    let second = guide(false, &["5"]);
    let uninterrupted = guide_ddp(&python, whole.path(), &["15"]);
    for node in &second {
        assert!(only(node, "loaded").starts_with("disk 10 "), "{second:#?}");
        assert_eq!(only(node, "saved"), only(&uninterrupted, "saved"), "{second:#?}");
    }
}

/// Each node has a part: the new one has its own from the other's replica. Without replicas all have theirs from disk.
#[test]
fn the_guides_script_for_fsdp_goes_on_after_a_node_is_replaced_and_trains_the_same() {
    let Some(python) = python() else { return };
    let whole = Folder::new();
    let uninterrupted = guide_fsdp(&python, &whole, &["15"]);
    let expected = said(&uninterrupted, "saved");
    for (words, from, trained) in [
        (&["7", "hang", "replica"][..], format!("{} memory", expected[6]), 14),
        (&["5", "hang"], format!("{} disk", expected[4]), 10),
    ] {
        let lost = Folder::new();
        let guide = |is_killed, words: &[&str]| {
            on_two_nodes(&python, is_killed, |line| {
                line.script(program("guide_fsdp.py")).args([lost.path()]).args(words)
            })
        };
        let first = guide(true, words);
        for node in &first {
            assert_eq!(only(node, "loaded"), from, "{first:#?}");
            assert_eq!(said(node, "saved").last(), Some(&expected[trained - 1]), "{first:#?}");
        }
        let on_disk = usize::try_from(lost.step().expect("a step is on disk")).expect("a small number");
        for node in guide(false, &["1"]) {
            assert_eq!(only(&node, "loaded"), format!("{} disk", expected[on_disk - 1]), "{node:#?}");
            assert_eq!(only(&node, "saved"), expected[on_disk], "{node:#?}");
        }
    }
}
