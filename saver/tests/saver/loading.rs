//! What is loaded from disk: the newest step whose files are what they were.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt as _,
    path::Path,
};

use checkpoint::message::{ErrorCode, FromSaver, Level, Reply, Request, Source, Storage};

use crate::{
    client::{Client, Facts},
    support::Node,
};

const BYTES: u64 = 1 << 20;

/// A directory with these steps on disk, and a saver that knows nothing of them.
fn node_with(dir: &str, steps: &[u64]) -> Node {
    let mut node = Node::new();
    let facts = Facts::alone(dir);
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let slots = client.alloc(BYTES);
    for step in steps {
        client.save(&facts, &slots, *step, BYTES, Storage::Disk);
        node.until("the commit", |message| {
            matches!(message, FromSaver::Committed { step: at, .. } if at == step).then_some(())
        });
    }
    drop(client);
    node.replace_saver();
    node
}

fn loaded(node: &Node, dir: &str, step: Option<u64>) -> Reply {
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&Facts::alone(dir));
    client.ask(&Request::Load { step }).unwrap().0
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn a_flipped_byte_in_the_newest_file_gives_the_next_older_step_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let mut node = node_with(dir, &[10, 20]);
    flip(&folder.path().join("20/rank_0.pt"), BYTES / 2);
    let Reply::Loaded { source: Source::Disk, step: Some(10), path, reason, .. } = loaded(&node, dir, None)
    else {
        panic!();
    };
    assert!(path.unwrap().ends_with("10/rank_0.pt"));
    assert!(reason.contains("20/rank_0.pt"), "{reason}");
    node.until("a warning", |message| match message {
        FromSaver::Log { level: Level::Warn | Level::Error, text } if text.contains("20/rank_0.pt") => {
            Some(())
        }
        _ => None,
    });
    // A file that is cut off, and one that is gone.
    for damage in [
        (|path: &Path| OpenOptions::new().write(true).open(path).unwrap().set_len(100).unwrap()) as fn(&Path),
        |path| fs::remove_file(path).unwrap(),
    ] {
        damage(&folder.path().join("10/rank_0.pt"));
        let Reply::Error(refusal) = loaded(&node, dir, None) else { panic!() };
        assert_eq!(refusal.code, ErrorCode::NothingLoads, "{refusal:?}");
    }
    node.end();
}

#[test]
fn a_step_can_be_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let node = node_with(dir, &[10, 20]);
    let Reply::Loaded { source: Source::Disk, step: Some(10), .. } = loaded(&node, dir, Some(10)) else {
        panic!()
    };
    let Reply::Loaded { source: Source::Disk, step: Some(20), .. } = loaded(&node, dir, None) else {
        panic!()
    };
    node.end();
}

#[test]
fn a_folder_of_upstream_is_loaded_by_its_tracker() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    fs::create_dir(folder.path().join("30")).unwrap();
    fs::write(folder.path().join("30/rank_0.pt"), "of upstream").unwrap();
    fs::write(folder.path().join("dlrover_latest.txt"), "30").unwrap();
    let node = Node::new();
    let Reply::Loaded { source: Source::Disk, step: Some(30), path: Some(path), .. } =
        loaded(&node, dir, None)
    else {
        panic!();
    };
    assert_eq!(Path::new(&path), folder.path().join("30/rank_0.pt"));
    fs::remove_file(path).unwrap();
    let Reply::Error(refusal) = loaded(&node, dir, None) else { panic!() };
    assert_eq!(refusal.code, ErrorCode::NothingLoads);
    node.end();
}

#[test]
fn where_nothing_was_saved_nothing_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("not there").to_str().unwrap().to_owned();
    let node = Node::new();
    let Reply::Loaded { source: Source::None, step: None, .. } = loaded(&node, &dir, None) else { panic!() };
    assert!(!Path::new(&dir).exists());
    node.end();
}
