//! What is said of checkpoints survives the wire, and nonsense is refused.

use rules::push::Push;

use super::*;
use crate::convert::{Payload, StreamMessage};

fn folder(path: &str) -> Dir {
    Dir::try_from(path).unwrap()
}

fn state(path: &str, shard: u32) -> ShardState {
    ShardState {
        dir: folder(path),
        shard,
        n_shards: 2000,
        replicated: false,
        world: 2000,
        rank: shard,
        steps: vec![20, 30, 40],
        wishes: vec![40],
        disk_step: Some(10),
        replicas: 1,
        is_replica: false,
        layout_id: u64::MAX,
        bytes: 1 << 30,
        endpoint: Some(Endpoint { port: 40_000, ticket: "ab".into() }),
        round: Some(3),
        awaits_fetches: true,
    }
}

fn one_fetch() -> Fetch {
    let from = FetchSource { address: "10.0.0.1".into(), port: 40_000, ticket: "ab".into() };
    let (n_shards, layout_id, bytes) = (2, 7, 1 << 20);
    Fetch { shard: 1, n_shards, replicated: false, layout_id, bytes, is_replica: true, given_up: 3, from }
}

fn file(name: &str, also: usize) -> ShardFile {
    let sum = FileSum { file: name.to_owned(), bytes: 7, chunk_bytes: 64 << 20, crc32: vec![1, u32::MAX] };
    let FileSum { file, bytes, chunk_bytes, crc32 } = sum.clone();
    ShardFile {
        shard: 1,
        rank: 1,
        n_shards: 2,
        world: 2,
        replicated: false,
        format: Format::Dcp,
        file,
        bytes,
        chunk_bytes,
        crc32,
        also: vec![sum; also],
    }
}

fn received(report: CheckpointReport) -> Result<CheckpointReport, ConvertError> {
    match CheckpointMessage::try_from(checkpoint_report("a".into(), report))? {
        CheckpointMessage::Report { report, .. } => Ok(*report),
        CheckpointMessage::Progress { progress, .. } => panic!("{progress:?}"),
    }
}

#[test]
fn what_a_node_reports_survives_the_wire() {
    let (dir, step) = (folder("/ckpt"), 40);
    for report in [
        CheckpointReport::Kept,
        CheckpointReport::InMemory {
            shards: vec![state("/a", 0), state("/a", 1), state("/b", 0)],
            last: true,
        },
        CheckpointReport::Persisted {
            dir: dir.clone(),
            step,
            saved_in: 3,
            given_up: 2,
            shard: Box::new(file("40/x", 2)),
        },
        CheckpointReport::Committed { dir: dir.clone(), step },
        CheckpointReport::WrittenAlone { dir: dir.clone(), step, round: 3 },
        CheckpointReport::Failed {
            dir: dir.clone(),
            step,
            shard: Some(1),
            saved_in: Some(3),
            reason: "no space".into(),
        },
        CheckpointReport::Failed {
            dir: dir.clone(),
            step,
            shard: None,
            saved_in: None,
            reason: "no space".into(),
        },
        CheckpointReport::FetchFailed { dir: dir.clone(), step, shard: 1, reason: "no route".into() },
        CheckpointReport::Closed,
    ] {
        assert_eq!(received(report.clone()), Ok(report));
    }
    let write = RunningWrite { dir, shard: 1, step, bytes: 5, of: 9 };
    let steps = vec![(folder("/a"), 5), (folder("/b"), 6)];
    for progress in [CheckpointProgress::Writing(write), CheckpointProgress::InMemory { steps }] {
        let message = CheckpointMessage::try_from(checkpoint_progress("a".into(), progress.clone()));
        assert_eq!(message, Ok(CheckpointMessage::Progress { node: NodeId("a".into()), progress }));
    }
}

#[test]
fn every_order_survives_the_wire() {
    let (dir, step) = (folder("/ckpt"), 40);
    let manifest = Manifest {
        version: 1,
        step,
        world: 2,
        n_shards: 2,
        replicated: false,
        format: Format::Dcp,
        time: None,
        saved_in: Some(3),
        shards: vec![file("40/x", 0), file("40/y", 1)],
    };
    for order in [
        Order::Commit { dir: dir.clone(), step, manifest: Box::new(manifest) },
        Order::Committed { dir: dir.clone(), step },
        Order::Persist { dir: dir.clone(), step, replicas: vec![3, 4] },
        Order::Fetch { round: 3, dir: dir.clone(), step, fetch: Box::new(one_fetch()) },
        Order::Fetched { round: 3, dir: dir.clone(), step },
        Order::NotFetched { round: 3, dir: dir.clone(), step, reason: "no route".into() },
        Order::Fail { dir, step, saved_in: 3, given_up: 1, reason: "a node is lost".into() },
    ] {
        let push = StreamMessage { epoch: 1, seq: 2, payload: Some(Payload::Push(Push::Checkpoint(order))) };
        let wire = pb::StreamMessage::from(push.clone());
        assert_eq!(StreamMessage::try_from(wire), Ok(push));
    }
}

#[test]
fn restore_points_survive_the_wire() {
    let point = |source, pending, given_up| {
        let dir = folder("/ckpt");
        RestorePoint { dir, step: 40, source, pending, given_up, fetched: None }
    };
    let fetched = FetchedStep { step: 50, fetches: vec![(8, one_fetch())], void: vec![8] };
    let points = vec![
        point(RestoreSource::Memory, None, 0),
        point(RestoreSource::Disk, Some(50), 2),
        RestorePoint { fetched: Some(fetched), ..point(RestoreSource::Disk, None, 0) },
    ];
    assert_eq!(restore_points(restored(points.clone()), 8), Ok(points));
}

#[test]
fn more_than_fits_into_a_request_is_left_out() {
    let states: Vec<_> = (0..2000).map(|shard| state("/ckpt", shard)).collect();
    let wire = folders(states.clone());
    let bytes: usize = wire.iter().map(prost::Message::encoded_len).sum();
    assert!(bytes < MAX_FOLDERS_BYTES, "{bytes}");
    let kept = shards(wire).unwrap();
    assert!(kept.len() > 400 && states.starts_with(&kept), "{}", kept.len());
    let long = format!("/{}", "x".repeat(4000));
    let report = CheckpointReport::Persisted {
        dir: folder("/ckpt"),
        step: 4,
        saved_in: 0,
        given_up: 0,
        shard: Box::new(file(&long, 16)),
    };
    assert!(matches!(received(report), Ok(CheckpointReport::Failed { shard: Some(1), .. })));
}

#[test]
fn nonsense_is_refused_with_the_field_and_the_value() {
    let refused = |report| {
        let wire = pb::CheckpointReport { node_id: "a".into(), report: Some(report) };
        CheckpointMessage::try_from(wire).unwrap_err().to_string()
    };
    use pb::checkpoint_report::Report as Wire;
    let committed = |dir: &str, step| Wire::Committed(pb::CheckpointCommitted { dir: dir.into(), step });
    assert_eq!(
        refused(committed("ckpt", 1)),
        "dir cannot be read: the path `ckpt` is relative; give an absolute path"
    );
    assert_eq!(
        refused(committed("/ckpt", u64::MAX)),
        "step is 18446744073709551615; expected at most 9007199254740991"
    );
    let wire = |change: fn(&mut pb::ShardState)| {
        let mut folder = folders(vec![state("/a", 0)]).remove(0);
        change(&mut folder.shards[0]);
        Wire::InMemory(pb::CheckpointsInMemory { folders: vec![folder], last: false })
    };
    assert_eq!(refused(wire(|it| it.shard = 2000)), "shard is 2000; expected below n_shards");
    assert_eq!(refused(wire(|it| it.n_shards = 0)), "n_shards is 0; expected 1 to 1048576");
    assert_eq!(refused(wire(|it| it.rank = 2000)), "rank is 2000; expected below world");
    assert_eq!(
        refused(wire(|it| it.steps = vec![4, 4])),
        "steps is 4; expected more than the step before it"
    );
    assert_eq!(refused(wire(|it| it.steps = (0..17).collect())), "steps has 17 entries (maximum: 16)");
    let persisted = |change: fn(&mut pb::ShardFile)| {
        let mut shard = pb::ShardFile::from(file("x", 1));
        change(&mut shard);
        let dir = "/ckpt".to_owned();
        Wire::Persisted(pb::ShardPersisted { dir, step: 1, saved_in: 0, shard: Some(shard), given_up: 0 })
    };
    assert_eq!(refused(persisted(|it| it.file = None)), "file is missing");
    assert_eq!(refused(persisted(|it| it.format = 0)), "format is missing");
    assert_eq!(
        refused(persisted(|it| it.also[0].crc32 = vec![0; 65])),
        "file.crc32 has 65 entries (maximum: 64)"
    );
    let empty = pb::CheckpointReport { node_id: "a".into(), report: None };
    assert_eq!(CheckpointMessage::try_from(empty), Err(ConvertError::Missing { field: "report" }));
}
