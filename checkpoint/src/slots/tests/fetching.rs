//! Steps that come from other nodes, and go to them.

use super::*;
use crate::message::{Endpoint, Fetch, FetchSource, FetchedStep, Source};

fn source() -> FetchSource {
    FetchSource { address: "host".to_owned(), port: 7000, ticket: "ticket".to_owned() }
}

fn endpoint() -> Endpoint {
    Endpoint { port: 9000, ticket: "own".to_owned() }
}

/// Of shard 0.
fn fetch(n_shards: u32, is_replica: bool) -> Fetch {
    Fetch {
        shard: 0,
        n_shards,
        replicated: n_shards == 1,
        layout_id: LAYOUT,
        bytes: BYTES,
        is_replica,
        given_up: 0,
        from: source(),
    }
}

fn order(round: u32, step: u64, fetch: Fetch) -> ToSaver {
    ToSaver::Fetch { round, dir: dir(), step, fetch: Box::new(fetch) }
}

/// This node has rank 1 of 2.
fn second_of_two(number: u32, restore: Vec<RestorePoint>) -> ToSaver {
    ToSaver::Round {
        round: number,
        world: 2,
        first_rank: 1,
        local_world_size: 1,
        restore,
        memory_is_void: false,
    }
}

fn started(id: u64, slot: SlotId, step: u64) -> Effect {
    Effect::Fetch(Box::new(FetchOrder {
        id: FetchId(id),
        slot,
        shard: ShardId { dir: dir(), shard: 0 },
        step,
        layout_id: LAYOUT,
        bytes: BYTES,
        from: source(),
    }))
}

/// It arrives, saved by rank 0 in round 0.
fn arrived(bench: &mut Bench, id: u64, step: u64, n_shards: u32) -> Vec<Effect> {
    let header = *header(step, 0, n_shards);
    let (rank, world) = (header.rank, header.world);
    let sent = Sent { step, saved_in: 0, rank, world, format: Format::Pt, path: String::new() };
    bench.handle(Event::FetchEnded { fetch: FetchId(id), result: Ok(Box::new(Fetched { sent, header })) })
}

/// A slot was made for a fetch; returns it.
fn allocated(bench: &mut Bench, effects: &[Effect]) -> (SlotId, Vec<Effect>) {
    let allocation = effects.iter().find_map(|effect| match effect {
        Effect::AllocateSlots { slots, filled, bytes: BYTES } => Some((slots, filled)),
        _ => None,
    });
    let Some((slots, filled)) = allocation else { panic!("{effects:?}") };
    assert_eq!(slots, filled);
    (slots[0], bench.handle(Event::SlotsAllocated { slots: slots.clone(), result: Ok(()) }))
}

/// What it has, as the job hears it.
fn held(steps: &[u64], n_shards: u32, is_replica: bool) -> ShardState {
    ShardState { is_replica, ..shard_state(0, n_shards, steps, &[], None) }
}

fn restored(step: u64, fallback: RestorePoint) -> RestorePoint {
    RestorePoint {
        fetched: Some(FetchedStep { step, fetches: vec![(1, fetch(1, false))], void: Vec::new() }),
        ..fallback
    }
}

/// A node without anything in a round that restores step 5, which it fetches.
fn fetching() -> (Bench, SlotId) {
    let mut bench = Bench::new(1 << 30);
    let effects = bench.agent(second_of_two(1, vec![restored(5, on_disk(3, None))]));
    assert_eq!(effects[0], Effect::Listen);
    let (slot, effects) = allocated(&mut bench, &effects);
    assert_eq!(effects, [started(1, slot, 5)]);
    (bench, slot)
}

/// A worker that loads.
fn loader(bench: &mut Bench) -> Connection {
    let hello = Hello { rank: 1, world: 2, ..hello(0, 1, Role::Reader) };
    bench.admitted(Process(1), hello)
}

#[test]
fn a_load_waits_until_all_nodes_have_the_step_and_takes_it_from_memory() {
    let (mut bench, slot) = fetching();
    let worker = loader(&mut bench);
    assert_eq!(bench.send(worker, load(None)), []);
    // It does not know yet what the round restores.
    let shards = vec![ShardState { round: Some(1), awaits_fetches: true, ..held(&[5], 1, false) }];
    assert_eq!(arrived(&mut bench, 1, 5, 1), [tell(FromSaver::State { round: Some(1), shards })]);
    let fetched = ToSaver::Fetched { round: 1, dir: dir(), step: 5 };
    // It knows now, so that nothing it has told before is taken for a leftover of what came before.
    let shards = vec![ShardState { round: Some(1), ..held(&[5], 1, false) }];
    let told = tell(FromSaver::State { round: Some(1), shards });
    assert_eq!(bench.agent(fetched), [Effect::ReadHeader { slot }, told]);
    let loaded = bench.handle(Event::HeaderRead { slot, result: Ok(header(5, 0, 1)) });
    let reply = Reply::Loaded {
        source: Source::Replica,
        step: Some(5),
        slot: Some(slot.0),
        bytes: Some(BYTES),
        path: None,
        reason: "step 5 is complete in memory; it was fetched from the memory of another node".to_owned(),
        named: None,
    };
    assert_eq!(loaded, [Effect::Reply { connection: worker, reply, fds: Fds::ReadOnly(slot) }]);
}

#[test]
fn when_a_node_cannot_have_it_all_ranks_take_the_step_before_and_it_is_given_up() {
    let (mut bench, slot) = fetching();
    let worker = loader(&mut bench);
    bench.send(worker, load(None));
    arrived(&mut bench, 1, 5, 1);
    let reason = "shard 0 cannot be fetched: EIO".to_owned();
    let effects = bench.agent(ToSaver::NotFetched { round: 1, dir: dir(), step: 5, reason });
    assert!(
        matches!(
            &effects[..],
            [
                Effect::Tell(FromSaver::Log { .. }),
                Effect::ReadFolder { .. },
                Effect::Tell(FromSaver::State { .. })
            ]
        ),
        "{effects:?}"
    );
    let checked = bench.folder_read(&dir(), folder(3, &[3], 1));
    assert!(matches!(&checked[..], [Effect::CheckFiles { .. }]), "{checked:?}");
    assert_eq!(bench.states(), [(slot.0, "empty".to_owned(), None)]);
}

#[test]
fn what_is_said_of_a_round_before_it_begins_here_counts_then() {
    let mut bench = Bench::in_round(2);
    let fetched = ToSaver::Fetched { round: 1, dir: dir(), step: 5 };
    assert_eq!(bench.agent(order(1, 5, fetch(1, false))), []);
    assert_eq!(bench.agent(fetched), []);
    // Of a round that is over it does not.
    assert_eq!(bench.agent(order(0, 4, fetch(2, true))).len(), 1);
    let effects = bench.agent(second_of_two(1, vec![restored(5, on_disk(3, None))]));
    let (_, effects) = allocated(&mut bench, &effects[..effects.len()]);
    assert_eq!(effects.len(), 1, "{effects:?}");
    assert_eq!(bench.agent(order(0, 4, fetch(2, true))), []);
}

#[test]
fn a_replica_has_two_slots_and_the_newest_step_stays_until_the_next_is_there() {
    let mut bench = Bench::new(1 << 30);
    bench.agent(second_of_two(0, Vec::new()));
    let effects = bench.agent(order(0, 5, fetch(2, true)));
    let (first, _) = allocated(&mut bench, &effects);
    let said = held(&[5], 2, true);
    assert_eq!(arrived(&mut bench, 1, 5, 2), [state(0, vec![said.clone()])]);
    // It is there.
    assert_eq!(bench.agent(order(0, 5, fetch(2, true))), [state(0, vec![said])]);
    let effects = bench.agent(order(0, 6, fetch(2, true)));
    let (second, effects) = allocated(&mut bench, &effects);
    let Effect::Fetch(next) = &effects[0] else { panic!("{effects:?}") };
    assert_eq!(arrived(&mut bench, next.id.0, 6, 2), [state(0, vec![held(&[5, 6], 2, true)])]);
    let effects = bench.agent(order(0, 7, fetch(2, true)));
    let Effect::Fetch(next) = &effects[0] else { panic!("{effects:?}") };
    assert_eq!((effects.len(), next.slot, next.step), (1, first, 7));
    let broken = Event::FetchEnded { fetch: next.id, result: Err("EIO".to_owned()) };
    let failed = FromSaver::FetchFailed { dir: dir(), step: 7, shard: 0, reason: "EIO".to_owned() };
    let text = "/ckpt: this node has no replica of shard 0 of step 7: EIO; failed so far: 1".to_owned();
    let warning = FromSaver::Log { level: crate::message::Level::Warn, text };
    assert_eq!(bench.handle(broken), [tell(warning), tell(failed)]);
    let states = [(first.0, "empty".to_owned(), None), (second.0, "whole".to_owned(), Some(6))];
    assert_eq!(bench.states(), states);
}

#[test]
fn what_arrives_with_other_numbers_is_not_used() {
    for (step, shard) in [(6, 0), (5, 1)] {
        let (mut bench, slot) = fetching();
        let sent = Sent { step: 5, saved_in: 0, rank: 0, world: 1, format: Format::Pt, path: String::new() };
        let header = Header { step, shard, ..*header(5, 0, 1) };
        let fetched = Fetched { sent, header };
        let effects = bench.handle(Event::FetchEnded { fetch: FetchId(1), result: Ok(Box::new(fetched)) });
        let failed = |effect: &Effect| matches!(effect, Effect::Tell(FromSaver::FetchFailed { .. }));
        assert!(failed(&effects[0]), "{effects:?}");
        assert_eq!(effects[1..], [Effect::FreeSlots { slots: vec![slot] }]);
    }
}

#[test]
fn a_state_of_another_kind_is_not_fetched_over_that_of_a_writer() {
    for (given, said) in [
        (fetch(2, true), "the number of shards is 1 on this node and 2 on the other one"),
        (
            Fetch { replicated: false, ..fetch(1, true) },
            "the state is replicated on this node and sharded on the other one",
        ),
    ] {
        let (mut bench, ..) = Bench::with_writer();
        let effects = bench.agent(order(0, 5, given));
        let failed = |effect: &Effect| match effect {
            Effect::Tell(FromSaver::FetchFailed { reason, .. }) => Some(reason.clone()),
            _ => None,
        };
        assert_eq!(effects.iter().find_map(failed).as_deref(), Some(said), "{effects:?}");
    }
}

#[test]
fn a_new_round_ends_what_was_fetched_for_the_one_before() {
    let (mut bench, slot) = fetching();
    let effects = bench.agent(second_of_two(2, Vec::new()));
    assert_eq!(effects, [Effect::CancelFetch { fetch: FetchId(1) }]);
    assert_eq!(arrived(&mut bench, 1, 5, 1), [Effect::FreeSlots { slots: vec![slot] }]);
}

#[test]
fn a_save_ends_what_is_sent_of_its_slot_before_the_client_hears_of_it() {
    let (mut bench, writer, _) = Bench::with_writer();
    let id = ShardId { dir: dir(), shard: 0 };
    let asked = |send, step| Event::Asked {
        send: SendId(send),
        shard: id.clone(),
        step,
        layout_id: LAYOUT,
        bytes: BYTES,
    };
    for step in [1, 2, 3] {
        bench.save(writer, step, Storage::Memory);
    }
    for step in [2, 3] {
        let effects = bench.handle(asked(step, step));
        assert!(matches!(&effects[..], [Effect::Send { .. }]), "{effects:?}");
    }
    let missing = "step 9 of shard 0 is not in memory".to_owned();
    assert_eq!(bench.handle(asked(9, 9)), [Effect::RefuseSend { send: SendId(9), reason: missing }]);
    // There is a slot that nothing reads; the next save has none.
    assert_eq!(bench.save(writer, 4, Storage::Memory).1, []);
    let begun = bench.send(writer, begin(5));
    assert_eq!(begun[0], Effect::CancelSend { send: SendId(2) });
    assert!(matches!(&begun[1..], [Effect::Reply { reply: Reply::Begun { .. }, .. }]), "{begun:?}");
    assert_eq!(bench.handle(Event::SendEnded { send: SendId(2) }), []);
}

#[test]
fn the_job_hears_where_other_nodes_reach_this_one() {
    let mut bench = Bench::new(1 << 30);
    assert_eq!(bench.agent(second_of_two(0, Vec::new())), [Effect::Listen]);
    bench.handle(Event::Listening { result: Ok(endpoint()) });
    let facts = Hello { rank: 1, world: 2, replicas: 1, ..hello(1, 2, Role::Writer) };
    let writer = bench.admitted(Process(1), facts);
    bench.allocated(writer);
    // With replicas, after every save.
    let (_, effects) = bench.save(writer, 1, Storage::Memory);
    let said = ShardState { replicas: 1, endpoint: Some(endpoint()), ..shard_state(1, 2, &[1], &[], None) };
    assert_eq!(effects, [state(0, vec![said])]);
}
