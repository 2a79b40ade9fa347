//! Workers and savers that are killed at any instant: what is restored is one whole step, and none that was lost before.
//!
//! `DLROVER_SAVER_KILLS` is how often each test kills (100, two ranks 60 times).

use std::{env, fs, thread, time::Duration};

use checkpoint::message::{FromSaver, Reply, Request, Source, Storage, WaitState, Wish};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    client::{Client, Facts, Slot, layout_of, write},
    support::{ALLOWANCE, Node, Worker, assert_holds, files},
};

/// Numbers that are the same in each run of a test.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The number in `saved 7` or in `loaded Memory 7 `.
fn number(line: &str) -> u64 {
    line.split(' ').find_map(|word| word.parse().ok()).unwrap_or_else(|| panic!("{line:?}"))
}

/// How often a test kills.
fn times(default: u32) -> u32 {
    let Ok(times) = env::var("DLROVER_SAVER_KILLS") else { return default };
    times.parse().unwrap_or_else(|_| panic!("DLROVER_SAVER_KILLS={times}: expected a whole number"))
}

/// Kills all workers of a node at a random instant, again and again.
fn kill_again_and_again(
    times: u32,
    world: u32,
    bytes: u64,
    storage: &str,
    seed: u64,
) -> (tempfile::TempDir, Node) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap().to_owned();
    let mut node = Node::of(world, ALLOWANCE);
    let mut random = Random(seed);
    let mut common = 0;
    for time in 0..times {
        let mut workers: Vec<Worker> = (0..world)
            .map(|rank| {
                let [rank, world, round, bytes] =
                    [u64::from(rank), u64::from(world), u64::from(node.round), bytes]
                        .map(|it| it.to_string());
                node.process(&["worker", &node.name, &dir, &rank, &world, &round, &bytes, storage])
            })
            .collect();
        let mut last: Vec<u64> = Vec::new();
        for worker in &mut workers {
            let loaded = worker.line();
            assert!(loaded.starts_with("loaded "), "kill {time}: {loaded:?}");
            assert_eq!(number(&loaded), common, "kill {time}: {loaded:?}");
            last.push(common);
        }
        for _ in 0..=random.below(3) {
            for worker in &mut workers {
                worker.go(world);
            }
            for (worker, last) in workers.iter_mut().zip(&mut last) {
                *last = number(&worker.line());
            }
        }
        for worker in &mut workers {
            worker.go(world);
        }
        // What matters is that the instant is any.
        thread::sleep(Duration::from_micros(random.below(15_000)));
        let first = usize::try_from(random.below(u64::from(world))).unwrap();
        workers.rotate_left(first);
        last.rotate_left(first);
        for (worker, last) in workers.into_iter().zip(&mut last) {
            for line in worker.kill() {
                *last = number(&line);
            }
        }
        let restored = node.next_round()[&dir];
        // The step that all have acknowledged, or a newer one that all had finished.
        let acknowledged = last.iter().copied().min().unwrap();
        assert!(restored.is_some_and(|step| step >= acknowledged), "kill {time}: {restored:?} of {last:?}");
        common = restored.unwrap_or(0);
    }
    (folder, node)
}

#[test]
fn a_worker_that_is_killed_again_and_again_loses_no_step_that_was_acknowledged() {
    let bytes = 4 << 20;
    let (folder, mut node) = kill_again_and_again(times(100), 1, bytes, "memory", 1);
    assert_eq!(files(folder.path()), Vec::<String>::new());
    node.catch_up();
    node.end();
}

#[test]
fn with_a_busy_disk_every_file_is_one_step() {
    let bytes = 8 << 20;
    let (folder, mut node) = kill_again_and_again(times(100), 1, bytes, "disk", 2);
    node.tell(checkpoint::message::ToSaver::Finish { grace_ms: 60_000, also_memory: false });
    node.until("the end of all writes", |message| matches!(message, FromSaver::Finished {}).then_some(()));
    node.ended();
    let mut steps = 0;
    for name in files(folder.path()) {
        if let Some(step) = name.strip_suffix("/rank_0.pt") {
            assert_holds(&folder.path().join(&name), step.parse().unwrap(), 0, bytes);
            steps += 1;
        } else {
            assert!(name.starts_with(".dlrover/") || name == "dlrover_latest.txt", "{name}");
        }
    }
    assert!(steps > 0);
    let tracker = fs::read_to_string(folder.path().join("dlrover_latest.txt")).unwrap();
    assert!(folder.path().join(format!("{tracker}/rank_0.pt")).exists(), "the tracker names step {tracker}");
}

#[test]
fn two_ranks_that_are_killed_again_and_again_always_have_a_common_step() {
    let bytes = 4 << 20;
    for (storage, seed) in [("memory", 3), ("disk", 4)] {
        let (_folder, node) = kill_again_and_again(times(60), 2, bytes, storage, seed);
        node.end();
    }
}

/// Saves to the same path, each once the one before is on disk, until the saver is gone. Returns the last step that was
/// acknowledged to be there.
fn save_until_the_saver_is_gone(
    client: &mut Client,
    slots: &[Slot],
    facts: &Facts,
    path: &str,
    bytes: u64,
    mut last: u64,
) -> u64 {
    loop {
        let step = last + 1;
        let begin = Request::Begin { step, layout_id: layout_of(bytes), wait: false };
        let Ok((Reply::Begun { slot, .. }, _)) = client.ask(&begin) else { return last };
        let file = &slots.iter().find(|offer| offer.id == slot).unwrap().file;
        write(file, facts, step, bytes, |_| ()).unwrap();
        let wish = Wish { storage: Storage::Disk, path: path.to_owned(), writes_disk: true };
        if client.ask(&Request::Commit { step, slot, wish }).is_err() {
            return last;
        }
        match client.ask(&Request::Wait { step: Some(step), timeout_ms: 60_000 }) {
            Ok((Reply::Waited { state: WaitState::OnDisk, .. }, _)) => last = step,
            Ok(other) => panic!("{other:?}"),
            Err(_) => return last,
        }
    }
}

/// The file of each step takes the place of the one before: at no instant is there none of a step that counts.
#[test]
fn a_saver_that_is_killed_again_and_again_leaves_a_step_at_a_path_that_is_given_with_each_save() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, bytes) = (folder.path().to_str().unwrap().to_owned(), 64 << 10);
    let path = format!("{dir}/last.pt");
    let mut random = Random(5);
    let (mut acknowledged, mut finished) = (0, 0);
    for time in 0..times(100) {
        let mut node = Node::new();
        let facts = Facts::alone(&dir);
        let mut client = Client::connect(&node.name).unwrap();
        client.hello(&facts);
        let (reply, _) = client.load(None);
        let loaded = match reply {
            Reply::Loaded { source: Source::None, .. } if acknowledged == 0 => 0,
            Reply::Loaded { source: Source::Disk, step: Some(step), path: Some(found), .. } => {
                assert_eq!(found, path);
                assert_holds(folder.path().join("last.pt").as_path(), step, 0, bytes);
                step
            }
            other => panic!("kill {time}: {other:?}, and step {acknowledged} was on disk"),
        };
        assert!(loaded >= acknowledged, "kill {time}: {loaded} of {acknowledged}");
        let slots = client.alloc(bytes);
        let pid = Pid::from_raw(node.pid);
        let after = Duration::from_micros(random.below(30_000));
        let killer = thread::spawn(move || {
            // What matters is that the instant is any.
            thread::sleep(after);
            kill(pid, Signal::SIGKILL).unwrap();
        });
        let job = thread::spawn({
            let facts = facts.clone();
            let path = path.clone();
            move || save_until_the_saver_is_gone(&mut client, &slots, &facts, &path, bytes, loaded)
        });
        node.ended();
        acknowledged = job.join().unwrap();
        killer.join().unwrap();
        finished += usize::from(node.said.iter().any(|said| {
            matches!(said, FromSaver::Log { text, .. } if text.contains("finished the interrupted write"))
        }));
        node.end();
    }
    assert!(acknowledged > 0);
    println!("interrupted writes that a load has finished: {finished}");
    let names: Vec<String> =
        files(folder.path()).into_iter().filter(|name| !name.starts_with(".dlrover/")).collect();
    assert!(names.contains(&"last.pt".to_owned()) && names.len() <= 4, "{names:?}");
}
