//! Steps that workers write by themselves.

use super::*;
use crate::message::ErrorCode;

fn written(step: u64, round: u32) -> Request {
    let (run_id, dir, round) = ("run".to_owned(), dir(), Some(round));
    Request::WrittenAlone { v: 1, run_id, dir, step, round }
}

fn told(step: u64, round: u32) -> Effect {
    tell(FromSaver::WrittenAlone { dir: dir(), step, round })
}

fn read() -> Effect {
    Effect::ReadFolder { dir: dir(), sweep: false }
}

#[test]
fn the_job_is_told_at_once_and_without_a_hello() {
    let (mut bench, _, _) = Bench::with_writer();
    let other = bench.connect(Process(1));
    assert_eq!(bench.send(other, written(7, 0)), [told(7, 0), read(), done(other, false)]);
    let shards = vec![shard_state(0, 1, &[], &[], Some(7))];
    bench.handle(Event::ProcessDied { process: Process(1) });
    assert_eq!(bench.agent(ToSaver::WorkersGone { round: 0 }), [state(0, shards)]);
}

/// The disk hangs: what is said by the worker holds without it.
#[test]
fn no_reading_of_the_folder_is_waited_for() {
    let (mut bench, _, _) = Bench::with_writer();
    let other = bench.connect(Process(1));
    assert_eq!(bench.send(other, written(7, 0)), [told(7, 0), read(), done(other, false)]);
    assert_eq!(bench.send(other, written(8, 0)), [told(8, 0), done(other, false)]);
}

#[test]
fn a_saver_that_was_just_started_waits_for_its_round() {
    let mut bench = Bench::new(1 << 30);
    let client = bench.connect(Process(1));
    assert_eq!(bench.send(client, written(7, 3)), []);
    let effects = bench.agent(round(3, 1, Vec::new()));
    let sweep = Effect::ReadFolder { dir: dir(), sweep: true };
    assert_eq!(effects, [told(7, 3), sweep, done(client, false)]);
    let late = bench.connect(Process(2));
    assert_eq!(refused(&bench.send(late, written(9, 2))), ErrorCode::StaleRound);
    let (run_id, dir) = ("other".to_owned(), dir());
    let other = Request::WrittenAlone { v: 1, run_id, dir, step: 9, round: Some(3) };
    assert_eq!(refused(&bench.send(late, other)), ErrorCode::Invalid);
}

#[test]
fn what_a_client_has_sent_before_its_end_counts() {
    let (mut bench, _, _) = Bench::with_writer();
    let other = bench.connect(Process(1));
    bench.handle(Event::Disconnected { connection: other });
    assert_eq!(bench.send(other, written(7, 0)), []);
    let other = bench.connect(Process(1));
    let request = bench.send(other, written(8, 0));
    assert_eq!(request[0], told(8, 0));
}

/// A step that was on its way meanwhile gets its manifest, and the tracker stays.
#[test]
fn the_tracker_does_not_go_back_behind_it() {
    let (mut bench, writer, _) = Bench::with_writer();
    let (_, effects) = bench.save(writer, 1, Storage::Disk);
    let other = bench.connect(Process(1));
    bench.send(other, written(3, 0));
    bench.persisted(persist_id(&effects), vec![sum(&path(1, 0))]);
    let commit = |step: u64| ToSaver::Commit { dir: dir(), step, manifest: Box::new(manifest(step, 1)) };
    let write = |step: u64, sets_tracker: bool| {
        let manifest = Box::new(manifest(step, 1));
        Effect::WriteManifest { dir: dir(), manifest, sets_tracker }
    };
    assert_eq!(bench.agent(commit(1)), [write(1, false)]);
    bench.handle(Event::ManifestWritten { dir: dir(), step: 1, result: Ok(()) });
    bench.agent(ToSaver::Committed { dir: dir(), step: 1 });
    let shards = vec![shard_state(0, 1, &[1], &[], Some(3))];
    bench.handle(Event::ProcessDied { process: Process(1) });
    assert_eq!(bench.agent(ToSaver::WorkersGone { round: 0 }), [state(0, shards)]);
    // Step 3 was damaged, and the next round has gone on from step 1.
    bench.agent(round(1, 1, vec![memory(1)]));
    assert_eq!(bench.agent(commit(2)), [write(2, true)]);
}
