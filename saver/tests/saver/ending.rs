//! Ends: of the saver, of its launcher, of workers while other processes hold their sockets.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use checkpoint::message::{FromSaver, Reply, Request, Storage, ToSaver};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use processes::launcher_id::{LauncherId, VARIABLE};

use crate::{
    client::{Client, Facts, read, state},
    support::{Node, Worker, assert_holds, files, is_alive, socket_name, until},
};

const BYTES: u64 = 2 << 20;

fn saved(node: &Node, dir: &str, bytes: u64, steps: &[u64], storage: Storage) -> Client {
    let facts = Facts::alone(dir);
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let slots = client.alloc(bytes);
    for step in steps {
        client.save(&facts, &slots, *step, bytes, storage);
    }
    client
}

#[test]
fn finish_writes_what_is_queued_and_the_newest_step_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let mut node = Node::new();
    let mut client = saved(&node, dir, 64 << 20, &[1, 2], Storage::Disk);
    let slots = client.alloc(64 << 20);
    client.save(&Facts::alone(dir), &slots, 3, 64 << 20, Storage::Memory);
    node.tell(ToSaver::Finish { grace_ms: 60_000, also_memory: true });
    let end = node.ended();
    assert!(end.status.unwrap().success() && end.killed.is_none(), "{end:?}");
    assert!(node.said.iter().any(|message| matches!(message, FromSaver::Finished {})));
    assert_eq!(fs::read(folder.path().join("dlrover_latest.txt")).unwrap(), b"3");
    assert_holds(&folder.path().join("3/rank_0.pt"), 3, 0, 64 << 20);
    assert!(files(folder.path()).iter().all(|name| !name.contains("tmp")));
}

#[test]
fn signals_for_the_job_do_not_end_a_saver_and_the_end_of_its_handle_does() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new();
    let mut client = saved(&node, folder.path().to_str().unwrap(), BYTES, &[1], Storage::Memory);
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1] {
        kill(Pid::from_raw(node.pid), signal).unwrap();
    }
    let Reply::Status(status) = client.get(&Request::Status {}).0 else { panic!() };
    assert_eq!(status.shards.len(), 1);
    node.end();
    // What cannot be sent is not the end: the reply may be there. There is none.
    let error = client.ask(&Request::Status {}).unwrap_err();
    let kinds = [std::io::ErrorKind::BrokenPipe, std::io::ErrorKind::UnexpectedEof];
    assert!(kinds.contains(&error.kind()), "{error}");
}

/// Kills a launcher while a worker saves to disk, and returns how long its saver lived on.
fn orphaned(holder: &str) -> Duration {
    let folder = tempfile::tempdir().unwrap();
    let (name, id) = (socket_name(), LauncherId::of_this_process().to_string());
    let mut launcher = Worker::start(&["launcher", &name, &id, holder]);
    let line = launcher.line();
    let saver: i32 = line.strip_prefix("saver ").unwrap().parse().unwrap();
    let launcher_pid = i32::try_from(launcher.child.id()).unwrap();
    // This process is the launcher's parent, and no worker of it.
    let answer = Client::connect(&name).unwrap().ask(&Request::Status {});
    assert!(!matches!(answer, Ok((Reply::Status(_), _))), "{answer:?}");
    // Not below the launcher, but with its id.
    let bytes = (64 << 20).to_string();
    let arguments = ["worker", &name, folder.path().to_str().unwrap(), "0", "1", "0", &bytes, "disk"];
    let mut worker = Worker::start_with(&arguments, &[(VARIABLE, &id)]);
    assert!(worker.line().starts_with("loaded"));
    assert_eq!(worker.line(), "saved 1");
    let below = processes::tree::below(launcher_pid).into_iter().map(|process| process.pid);
    let holders: Vec<i32> = below.filter(|pid| *pid != saver).collect();
    assert_eq!(holders.len(), usize::from(holder == "held"));
    launcher.kill();
    let began = Instant::now();
    until("the end of the saver", || !is_alive(saver));
    let lived = began.elapsed();
    for holder in holders {
        kill(Pid::from_raw(holder), Signal::SIGKILL).unwrap();
    }
    lived
}

#[test]
fn a_saver_does_not_outlive_its_launcher_by_more_than_5_seconds() {
    for holder in ["alone", "held"] {
        let lived = orphaned(holder);
        // 5 seconds, and much for a busy machine: without the watch it lives until it has written all it has.
        assert!(lived < Duration::from_secs(30), "{holder}: {lived:?}");
    }
}

#[test]
fn temporary_files_of_a_killed_saver_are_removed_by_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let mut node = Node::new();
    let is_temporary = |name: &String| name.contains(".dlrover-tmp-");
    // Until one is killed in the middle of a write.
    for attempt in 0.. {
        assert!(attempt < 100, "no saver was killed while it wrote");
        let client = saved(&node, dir, 256 << 20, &[attempt + 1], Storage::Disk);
        until("a file", || files(folder.path()).iter().any(is_temporary) || !files(folder.path()).is_empty());
        drop(client);
        node.replace_saver();
        if files(folder.path()).iter().any(is_temporary) {
            break;
        }
    }
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&Facts::alone(dir));
    assert!(!files(folder.path()).iter().any(is_temporary), "{:?}", files(folder.path()));
    node.until("a line of the log", |message| match message {
        FromSaver::Log { text, .. } if text.contains("unfinished write") => Some(()),
        _ => None,
    });
    node.end();
}

#[test]
fn a_worker_is_dead_also_when_its_child_holds_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let mut node = Node::new();
    let mut worker = node.process(&["loader", &node.name, dir]);
    let line = worker.line();
    let child: i32 = line.strip_prefix("copying ").unwrap().parse().unwrap();
    worker.kill();
    assert!(is_alive(child));
    // The step that it was copying is not whole; the one before is.
    assert_eq!(node.next_round()[dir], Some(1));
    let facts = Facts { round: 1, ..Facts::alone(dir) };
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let (_, slot) = client.load(None);
    assert!(read(&slot.unwrap()) == (1, state(1, 0, 1 << 20)));
    kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
    node.end();
}

#[test]
fn a_commit_counts_that_was_sent_before_death() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let mut node = Node::new();
    // Without waiting for replies: all lines are in the socket when the connection ends.
    let facts = Facts::alone(dir);
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let slots = client.alloc(BYTES);
    let (id, _) = client.begin(4, BYTES);
    let slot = slots.iter().find(|slot| slot.id == id).unwrap();
    crate::client::write(&slot.file, &facts, 4, BYTES, |_| ()).unwrap();
    let wish = checkpoint::message::Wish { storage: Storage::Memory, path: String::new(), writes_disk: true };
    let lines = [Request::Status {}, Request::Status {}, Request::Commit { step: 4, slot: id, wish }];
    let lines: String = lines.iter().map(Request::to_line).collect();
    client.send(lines.as_bytes()).unwrap();
    drop(client);
    let steps = node.next_round();
    assert_eq!(steps[dir], Some(4));
    node.end();
}

#[test]
fn a_client_that_reads_nothing_holds_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let node = Node::new();
    let mut silent = Client::connect(&node.name).unwrap();
    let writer = thread::spawn(move || {
        let line = Request::Status {}.to_line().repeat(10_000);
        // Ends when the saver closes the connection.
        let sent = silent.send(line.as_bytes());
        (silent, sent)
    });
    let mut client = saved(&node, dir, BYTES, &[1, 2, 3], Storage::Memory);
    let Reply::Status(status) = client.get(&Request::Status {}).0 else { panic!() };
    assert_eq!(status.shards.len(), 1);
    node.end();
    drop(writer.join().unwrap());
}
