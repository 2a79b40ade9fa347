//! Documents of directories, right and wrong.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::slots::FileCheck;
use crate::slots::FileFault;

fn dir() -> Dir {
    Dir::try_from("/ckpt").unwrap()
}

fn shard(step: u64, shard: u32, n_shards: u32, format: Format) -> ShardFile {
    let file = match format {
        Format::Pt => format!("{step}/rank_{shard}.pt"),
        Format::Dcp | Format::Safetensors => format!("{step}/__{shard}_0.distcp"),
    };
    ShardFile {
        shard,
        rank: shard,
        n_shards,
        world: n_shards,
        replicated: n_shards == 1,
        format,
        file,
        bytes: 10,
        chunk_bytes: MIN_CHUNK,
        crc32: vec![shard],
        also: Vec::new(),
    }
}

fn manifest(step: u64, n_shards: u32, format: Format) -> Manifest {
    Manifest {
        version: VERSION,
        step,
        world: n_shards,
        n_shards,
        replicated: n_shards == 1,
        format,
        time: Some(1),
        saved_in: None,
        shards: (0..n_shards).map(|index| shard(step, index, n_shards, format)).collect(),
    }
}

fn part(rank: u32, world: u32, format: Format) -> Part {
    let (shard, n_shards) = if format == Format::Pt { (0, 1) } else { (rank, world) };
    Part { rank, world, shard, n_shards, format }
}

fn folder(tracker: Tracker, manifests: Vec<Manifest>) -> Folder {
    let manifests = manifests.into_iter().map(|manifest| (manifest.step, manifest));
    Folder { tracker, manifests: manifests.collect(), unusable: BTreeMap::new() }
}

#[test]
fn a_manifest_comes_back() {
    let written = manifest(7, 3, Format::Dcp);
    assert_eq!(Manifest::parse(7, written.to_json().as_bytes()).unwrap(), written);
    assert_eq!(Manifest::name(7), ".dlrover/7.json");
}

#[test]
fn names_of_manifests_are_steps() {
    assert_eq!(Manifest::step_of("7.json"), Some(7));
    for name in
        ["7", "07.json", "+7.json", "-7.json", "x.json", ".json", "9007199254740992.json", "7.json.tmp"]
    {
        assert_eq!(Manifest::step_of(name), None, "{name}");
    }
}

#[test]
fn a_manifest_that_cannot_be_is_refused() {
    let error = |change: fn(&mut Manifest)| {
        let mut manifest = manifest(7, 2, Format::Dcp);
        change(&mut manifest);
        Manifest::parse(7, manifest.to_json().as_bytes()).unwrap_err().to_string()
    };
    assert_eq!(error(|it| it.version = 2), "its version is 2; this program reads version 1");
    assert_eq!(error(|it| it.step = 8), "it is for step 8, but its name says 7");
    assert_eq!(
        error(|it| it.n_shards = 3),
        "n_shards is 3; expected 1 to 1048576, and the number of entries of shards, which is 2"
    );
    assert_eq!(error(|it| it.shards.swap(0, 1)), "shard is 1; expected 0: shards are in order");
    assert_eq!(
        error(|it| it.shards[1].rank = 2),
        "rank is 2; expected less than the world size, which is 2 (maximum: 1048576)"
    );
    assert!(error(|it| it.shards[1].file = it.shards[0].file.clone()).contains("that no other shard has"));
    for file in ["", "../x", "a//b", "./a", "/a/../b", "a/", "/"] {
        let mut manifest = manifest(7, 1, Format::Pt);
        manifest.shards[0].file = file.to_owned();
        let error = Manifest::parse(7, manifest.to_json().as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("file is "), "{file}: {error}");
    }
    assert!(error(|it| it.shards[0].crc32.clear()).contains("expected 1: one for each chunk"));
    assert!(error(|it| it.shards[0].chunk_bytes = 0).contains("(chunk_bytes: 0)"));
    assert!(Manifest::parse(7, b"{}").unwrap_err().to_string().contains("version is 0"));
    assert!(Manifest::parse(7, b"{").unwrap_err().to_string().contains("cannot be read"));
}

#[test]
fn a_tracker_is_a_step_in_decimal() {
    assert_eq!(Tracker::parse(b"120"), Tracker::Step(120));
    assert_eq!(Tracker::parse(b"120\n"), Tracker::Step(120));
    for bytes in [&b""[..], b"+1", b"-1", b"1.0", b"x", b"9007199254740992", &[b'1'; 100], b"\xff"] {
        assert!(matches!(Tracker::parse(bytes), Tracker::Unusable(_)), "{bytes:?}");
    }
}

#[test]
fn the_step_of_the_tracker_comes_first_and_older_ones_after_it() {
    let steps = [3, 5, 7].map(|step| manifest(step, 1, Format::Pt)).to_vec();
    let folder = folder(Tracker::Step(5), steps);
    let found = |exactly, at_most| -> Vec<u64> {
        let (found, _) = candidates(&dir(), &folder, part(0, 1, Format::Pt), exactly, at_most);
        found.into_iter().map(|candidate| candidate.step).collect()
    };
    assert_eq!(found(None, None), [5, 3]);
    assert_eq!(found(None, Some(4)), [3]);
    assert_eq!(found(None, Some(9)), [5, 3]);
    assert_eq!(found(Some(7), None), [7]);
    assert_eq!(found(Some(4), None), [0; 0]);
    assert_eq!(folder.step(), Some(5));
}

#[test]
fn a_folder_without_a_tracker_has_its_manifests() {
    let folder = folder(Tracker::Missing, vec![manifest(3, 1, Format::Pt), manifest(5, 1, Format::Pt)]);
    let (found, passed) = candidates(&dir(), &folder, part(0, 1, Format::Pt), None, None);
    assert_eq!((found[0].step, passed.len()), (5, 0));
    let lost = Folder { tracker: Tracker::parse(b"x"), ..folder };
    let (found, passed) = candidates(&dir(), &lost, part(0, 1, Format::Pt), None, None);
    assert_eq!((found[0].step, passed.len()), (5, 1));
    assert!(Folder::default().is_empty());
}

#[test]
fn an_unusable_manifest_is_passed_over_loudly() {
    let mut folder = folder(Tracker::Step(5), vec![manifest(3, 1, Format::Pt)]);
    folder.unusable.insert(5, FileFault::Differs("it is of step 4".to_owned()));
    let (found, passed) = candidates(&dir(), &folder, part(0, 1, Format::Pt), None, None);
    assert_eq!(found[0].step, 3);
    assert_eq!(passed, ["the manifest of step 5: it is of step 4"]);
    folder.manifests.clear();
    folder.tracker = Tracker::Missing;
    let (found, passed) = candidates(&dir(), &folder, part(0, 1, Format::Pt), None, None);
    assert_eq!((found.len(), &passed[..]), (0, &["the manifest of step 5: it is of step 4".to_owned()][..]));
}

#[test]
fn all_sizes_are_checked_and_the_content_once_by_all_ranks_together() {
    let folder = folder(Tracker::Step(5), vec![manifest(5, 4, Format::Dcp)]);
    let read_by = |rank: u32, world: u32| -> Vec<u32> {
        let (found, _) = candidates(&dir(), &folder, part(rank, world, Format::Dcp), None, None);
        assert_eq!(found[0].path, "/ckpt/5");
        assert!(found[0].files.iter().all(|file| file.bytes == Some(10)));
        let read = found[0].files.iter().enumerate().filter(|(_, file)| file.crc32.is_some());
        read.map(|(index, _)| u32::try_from(index).unwrap()).collect()
    };
    assert_eq!((read_by(1, 4), read_by(3, 4)), (vec![1], vec![3]));
    assert_eq!((read_by(0, 2), read_by(1, 2)), (vec![0, 2], vec![1, 3]));
    assert_eq!(read_by(0, 1), [0, 1, 2, 3]);
    assert_eq!(read_by(7, 8), [0; 0]);
}

#[test]
fn a_file_of_another_world_is_no_part_of_this_one() {
    let folder = folder(Tracker::Step(5), vec![manifest(5, 2, Format::Pt), manifest(4, 1, Format::Pt)]);
    for rank in [0, 2] {
        let part = Part { rank, world: 3, shard: rank, n_shards: 3, format: Format::Pt };
        let (found, passed) = candidates(&dir(), &folder, part, None, None);
        assert_eq!(found.iter().map(|candidate| candidate.step).collect::<Vec<_>>(), [4]);
        assert_eq!(passed, ["step 5: it has 2 shards, and this run has 3"]);
    }
}

#[test]
fn the_step_that_the_job_names_comes_before_a_tracker_that_was_set_back() {
    let manifests = vec![manifest(5, 1, Format::Pt), manifest(4, 1, Format::Pt), manifest(6, 1, Format::Pt)];
    let folder = folder(Tracker::Step(4), manifests);
    let newest = |at_most| {
        let (found, _) = candidates(&dir(), &folder, part(0, 1, Format::Pt), None, at_most);
        found[0].step
    };
    assert_eq!((newest(None), newest(Some(5)), newest(Some(7))), (4, 5, 4));
}

#[test]
fn files_elsewhere_are_found_by_their_absolute_names() {
    let mut elsewhere = manifest(5, 1, Format::Pt);
    elsewhere.shards[0].file = "/other/last.pt".to_owned();
    let folder = folder(Tracker::Step(5), vec![elsewhere]);
    let (found, _) = candidates(&dir(), &folder, part(0, 1, Format::Pt), None, None);
    assert_eq!(found[0].path, "/other/last.pt");
    let expected =
        FileCheck { path: "/other/last.pt".to_owned(), bytes: Some(10), crc32: Some((MIN_CHUNK, vec![0])) };
    assert_eq!(found[0].files, [expected]);
    assert_eq!(relative(&dir(), "/ckpt/5/a"), "5/a");
    assert_eq!(relative(&dir(), "/other/a"), "/other/a");
}

proptest! {
    #[test]
    fn no_document_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), step: u64) {
        let _ = (Manifest::parse(step, &bytes), Tracker::parse(&bytes));
    }

    #[test]
    fn no_manifest_panics(step in 0_u64..3, numbers in proptest::collection::vec(any::<u32>(), 6), file in "\\PC{0,20}") {
        let mut manifest = manifest(step, 2, Format::Pt);
        let shard = &mut manifest.shards[1];
        (shard.shard, shard.rank, shard.world, shard.file) = (numbers[0] % 3, numbers[1] % 3, numbers[2] % 3, file);
        (shard.bytes, shard.chunk_bytes) = (u64::from(numbers[3]) << 32, u64::from(numbers[4]) << 20);
        if let Ok(read) = Manifest::parse(step, manifest.to_json().as_bytes()) {
            let folder = folder(Tracker::Step(step), vec![read]);
            let _ = candidates(&dir(), &folder, part(0, 1, Format::Pt), None, Some(u64::from(numbers[5])));
        }
    }
}
