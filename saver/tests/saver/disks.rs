//! Disks that fail: what was there before stays, what was half written goes, and the next save is tried again.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use checkpoint::{
    manifest::Manifest,
    message::{Dir, Format, FromSaver, Reply, Request, ShardFile, Storage, ToSaver, WaitState},
};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    unistd::getuid,
};

use crate::{
    client::{Client, Facts, Slot},
    support::{Node, assert_holds, files, skip},
};

const BYTES: u64 = 4 << 20;

/// A small file system in memory, where this is root's test.
struct Disk {
    folder: tempfile::TempDir,
}

impl Disk {
    fn new(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        if !getuid().is_root() {
            skip("only root can mount a small file system");
            return None;
        }
        let options = format!("size={bytes}");
        match mount(Some("tmpfs"), folder.path(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str())) {
            Ok(()) => Some(Self { folder }),
            Err(error) => {
                skip(&format!("cannot mount a small file system: {error}"));
                None
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().to_path_buf()
    }

    fn set_read_only(&self, is_read_only: bool) {
        let flags = if is_read_only { MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY } else { MsFlags::MS_REMOUNT };
        let none: Option<&str> = None;
        mount(none, self.folder.path(), none, flags, none).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        umount2(self.folder.path(), MntFlags::MNT_DETACH).unwrap();
    }
}

/// A file system on a file, which can be made to hang.
struct Hanging {
    folder: tempfile::TempDir,
    mounted: PathBuf,
}

impl Hanging {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let (image, mounted) = (folder.path().join("image"), folder.path().join("mounted"));
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        fs::create_dir(&mounted).unwrap();
        let hanging = Self { folder, mounted };
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let mount = ["mount", "-o", "loop", &path(&image), &path(&hanging.mounted)];
        if run(&["mkfs.ext4", "-q", &path(&image)]) && run(&mount) && run(&["which", "fsfreeze"]) {
            return Some(hanging);
        }
        skip("cannot make a file system that hangs: it needs root, a loop device, mkfs.ext4 and fsfreeze");
        None
    }

    fn hang(&self, hangs: bool) -> bool {
        run(&["fsfreeze", if hangs { "-f" } else { "-u" }, self.mounted.to_str().unwrap()])
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.hang(false);
        let _not_mounted = umount2(&self.mounted, MntFlags::MNT_DETACH);
        assert!(self.folder.path().exists());
    }
}

fn run(command: &[&str]) -> bool {
    let output = Command::new(command[0]).args(&command[1..]).output();
    output.is_ok_and(|output| output.status.success())
}

fn client_of(node: &Node, dir: &Path) -> (Facts, Client, Vec<Slot>) {
    let facts = Facts::alone(dir.to_str().unwrap());
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let slots = client.alloc(BYTES);
    (facts, client, slots)
}

fn failure(client: &mut Client, step: u64) -> String {
    let Reply::Waited { state: WaitState::Failed, error: Some(error), .. } = client.wait(Some(step)) else {
        panic!("step {step} did not fail");
    };
    error
}

fn is_committed(node: &mut Node, step: u64) {
    node.until("the commit", |message| {
        matches!(message, FromSaver::Committed { step: at, .. } if *at == step).then_some(())
    });
}

#[test]
fn a_full_disk_leaves_the_older_step_and_the_next_save_is_tried_again() {
    // One state fits, and the temporary file of a second one does not.
    let Some(disk) = Disk::new(BYTES * 3 / 2) else { return };
    let mut node = Node::new();
    let (facts, mut client, slots) = client_of(&node, &disk.path());
    client.save(&facts, &slots, 1, BYTES, Storage::Disk);
    is_committed(&mut node, 1);
    client.save(&facts, &slots, 2, BYTES, Storage::Disk);
    let error = failure(&mut client, 2);
    assert!(error.contains("No space left on device"), "{error}");
    assert!(error.contains("2/rank_0.pt"), "{error}");
    assert_eq!(files(&disk.path()), [".dlrover/1.json", "1/rank_0.pt", "dlrover_latest.txt"]);
    assert_holds(&disk.path().join("1/rank_0.pt"), 1, 0, BYTES);
    assert_eq!(fs::read(disk.path().join("dlrover_latest.txt")).unwrap(), b"1");
    // The user makes room.
    fs::remove_file(disk.path().join("1/rank_0.pt")).unwrap();
    client.save(&facts, &slots, 3, BYTES, Storage::Disk);
    is_committed(&mut node, 3);
    assert_holds(&disk.path().join("3/rank_0.pt"), 3, 0, BYTES);
    drop(client);
    node.end();
}

#[test]
fn a_read_only_disk_is_said_and_works_again_when_it_is_writable() {
    let Some(disk) = Disk::new(BYTES * 8) else { return };
    let mut node = Node::new();
    let (facts, mut client, slots) = client_of(&node, &disk.path());
    disk.set_read_only(true);
    client.save(&facts, &slots, 1, BYTES, Storage::Disk);
    let error = failure(&mut client, 1);
    assert!(error.contains("Read-only file system"), "{error}");
    disk.set_read_only(false);
    client.save(&facts, &slots, 2, BYTES, Storage::Disk);
    is_committed(&mut node, 2);
    drop(client);
    node.end();
}

#[test]
fn a_file_in_the_place_of_the_folder_is_said_and_a_folder_that_was_removed_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("checkpoints");
    let mut node = Node::new();
    let (facts, mut client, slots) = client_of(&node, &dir);
    fs::write(&dir, "a file").unwrap();
    client.save(&facts, &slots, 1, BYTES, Storage::Disk);
    let error = failure(&mut client, 1);
    assert!(error.contains("Not a directory"), "{error}");
    fs::remove_file(&dir).unwrap();
    for step in [2, 3] {
        client.save(&facts, &slots, step, BYTES, Storage::Disk);
        is_committed(&mut node, step);
        assert_holds(&dir.join(format!("{step}/rank_0.pt")), step, 0, BYTES);
        fs::remove_dir_all(&dir).unwrap();
    }
    drop(client);
    node.end();
}

#[test]
fn a_tracker_that_cannot_be_written_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new();
    let (facts, mut client, slots) = client_of(&node, folder.path());
    fs::create_dir_all(folder.path().join("dlrover_latest.txt/in the way")).unwrap();
    client.save(&facts, &slots, 1, BYTES, Storage::Disk);
    let reason = node.until("a failure", |message| match message {
        FromSaver::Failed { step: 1, reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert!(reason.contains("dlrover_latest.txt"), "{reason}");
    drop(client);
    node.end();
}

/// The order to commit what two nodes have written.
fn shards_of(dir: &Path, step: u64, bytes: u64) -> ToSaver {
    let shard = |shard: u32| ShardFile {
        shard,
        rank: shard,
        n_shards: 2,
        world: 2,
        replicated: false,
        format: Format::Dcp,
        file: format!("{step}/__{shard}_0.distcp"),
        bytes,
        chunk_bytes: 64 << 20,
        crc32: vec![0],
        also: Vec::new(),
    };
    let manifest = Manifest {
        version: checkpoint::manifest::VERSION,
        step,
        world: 2,
        n_shards: 2,
        replicated: false,
        format: Format::Dcp,
        time: None,
        saved_in: None,
        shards: vec![shard(0), shard(1)],
    };
    let dir = Dir::try_from(dir.to_str().unwrap()).unwrap();
    ToSaver::Commit { dir, step, manifest: Box::new(manifest) }
}

#[test]
fn a_node_that_has_written_no_shard_commits_what_others_have_written_if_it_sees_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let tracker = folder.path().join("dlrover_latest.txt");
    let mut node = Node::new();
    let reason = |message: &FromSaver| match message {
        FromSaver::Failed { step: 4, shard: None, reason, .. } => Some(reason.clone()),
        _ => None,
    };
    fs::create_dir(folder.path().join("4")).unwrap();
    fs::write(folder.path().join("4/__0_0.distcp"), "0123456789").unwrap();
    for (found, expected) in [(None, "cannot read"), (Some("cut"), "has the size 3 B")] {
        if let Some(found) = found {
            fs::write(folder.path().join("4/__1_0.distcp"), found).unwrap();
        }
        node.tell(shards_of(folder.path(), 4, 10));
        let reason = node.until("a refusal", reason);
        assert!(reason.contains(expected) && reason.contains("4/__1_0.distcp"), "{reason}");
        assert!(!tracker.exists());
    }
    fs::write(folder.path().join("4/__1_0.distcp"), "0123456789").unwrap();
    node.tell(shards_of(folder.path(), 4, 10));
    is_committed(&mut node, 4);
    assert_eq!(fs::read(tracker).unwrap(), b"4");
    node.end();
}

#[test]
fn a_disk_that_hangs_holds_its_own_writes_and_nothing_else() {
    let Some(disk) = Hanging::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new();
    let (hung_facts, mut hung, hung_slots) = client_of(&node, &disk.mounted);
    let (facts, mut client, slots) = client_of(&node, folder.path());
    assert!(disk.hang(true));
    hung.save(&hung_facts, &hung_slots, 1, BYTES, Storage::Disk);
    let (reply, _) = hung.get(&Request::Wait { step: Some(1), timeout_ms: 200 });
    assert!(matches!(reply, Reply::Waited { state: WaitState::Timeout, .. }), "{reply:?}");
    client.save(&facts, &slots, 1, BYTES, Storage::Disk);
    is_committed(&mut node, 1);
    for step in 2..6 {
        hung.save(&hung_facts, &hung_slots, step, BYTES, Storage::Disk);
    }
    assert!(disk.hang(false));
    is_committed(&mut node, 5);
    assert_holds(&disk.mounted.join("5/rank_0.pt"), 5, 0, BYTES);
    drop((hung, client));
    node.end();
}
