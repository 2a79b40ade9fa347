//! Workers that are killed at any instant: what is restored is one whole step, and none that was lost before.
//!
//! `DLROVER_SAVER_KILLS` is how often each test kills (100, two ranks 60 times).

use std::{env, fs, thread, time::Duration};

use checkpoint::message::FromSaver;

use crate::support::{ALLOWANCE, Node, Worker, assert_holds, files};

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
