//! Accelerators are queried in the background.

use super::*;
use diagnosis::gpus::{
    Gpu, GpuUse, Inventory, Vendor,
    share::{Share, ShareTerms},
};

fn inventory() -> Box<Inventory> {
    let gpu = |index| Gpu { index, name: Some("A".into()), ..Gpu::default() };
    let gpus = vec![gpu(0), gpu(1)];
    Box::new(Inventory { vendor: Some(Vendor::Nvidia), gpus, ..Inventory::default() })
}

fn taken() -> Event {
    Event::InventoryTaken { inventory: inventory() }
}

fn reported() -> Effect {
    Effect::ReportInventory { inventory: inventory() }
}

fn worker_started(round: u32) -> Event {
    Event::WorkerStarted { round: Round(round), local_rank: LocalRank(0), pid: 7 }
}

fn with_accelerators() -> WorkerGroup {
    let mut group = WorkerGroup::new(Limits { has_accelerators: true, ..limits(3) });
    assert_eq!(group.handle(Moment::START, Event::MasterBack), [join(0, None)]);
    start(&mut group, 0, 1);
    group
}

#[test]
fn accelerators_are_queried_once_workers_run_and_only_once() {
    let mut group = with_accelerators();
    assert_eq!(group.handle(Moment::START, worker_started(0)), [Effect::TakeInventory]);
    assert_eq!(group.handle(Moment::START, worker_started(0)), []);
    assert_eq!(group.handle(Moment::START, taken()), [reported(), Effect::WatchGpus { and_memory: false }]);
    assert_eq!(group.handle(Moment::START, worker_started(0)), []);
    let mut bare = running(1, 3);
    assert_eq!(bare.handle(Moment::START, worker_started(0)), []);
}

#[test]
fn a_check_finds_it_out_before_and_then_only_the_driver_is_listened_to() {
    let mut group = WorkerGroup::new(Limits { check: Some(Duration::ZERO), ..limits(3) });
    assert_eq!(group.handle(Moment::START, Event::MasterBack), [Effect::CheckLocally]);
    assert_eq!(group.handle(Moment::START, taken()), [reported()]);
    start(&mut group, 0, 1);
    assert_eq!(group.handle(Moment::START, worker_started(0)), [Effect::WatchGpus { and_memory: false }]);
}

#[test]
fn a_master_that_is_back_receives_it_again() {
    let mut group = with_accelerators();
    assert_eq!(group.handle(Moment::START, worker_started(0)), [Effect::TakeInventory]);
    assert_eq!(group.handle(Moment::START, away()).len(), 1);
    assert_eq!(group.handle(Moment::START, taken()), [Effect::WatchGpus { and_memory: false }]);
    let effects = group.handle(Moment::START, Event::MasterBack);
    assert_eq!(effects[1], reported());
    assert!(matches!(effects[2], Effect::Resume { .. }), "{effects:?}");
}

#[test]
fn driver_errors_are_reported_and_repeated_ones_less_and_less_often() {
    let mut group = with_accelerators();
    let error = |gpu| Event::GpuError { gpu, code: 79 };
    assert_eq!(group.handle(Moment::START, error(1)), [], "of what?");
    assert_eq!(group.handle(Moment::START, worker_started(0)), [Effect::TakeInventory]);
    assert_eq!(group.handle(Moment::START, taken()).len(), 2);
    let mut told = Vec::new();
    for time in 1..=8_u32 {
        let effects = group.handle(Moment::START, error(1));
        if let [Effect::Notify(notice), Effect::ReportInventory { inventory }] = &effects[..] {
            assert_eq!(inventory.gpus[1].xids[0].count, time);
            told.push(notice.to_string());
        } else {
            assert_eq!(effects, []);
        }
    }
    assert_eq!(told.len(), 4);
    assert_eq!(told[0], "GPU 1 (A): the driver reported Xid 79 (the device has fallen off the bus)");
    assert!(told[3].ends_with(", 8 times so far"), "{told:?}");
    assert_eq!(group.handle(Moment::START, error(9)), []);
}

#[test]
fn errors_of_accelerators_of_other_jobs_are_not_shown() {
    for (list, is_shown) in [("1", true), ("0", false), ("", false), ("MIG-1", true)] {
        let visible_accelerators = Some(list.to_owned());
        let limits = Limits { has_accelerators: true, visible_accelerators, ..limits(3) };
        let mut group = WorkerGroup::new(limits);
        assert_eq!(group.handle(Moment::START, Event::MasterBack), [join(0, None)]);
        start(&mut group, 0, 1);
        assert_eq!(group.handle(Moment::START, worker_started(0)), [Effect::TakeInventory]);
        assert_eq!(group.handle(Moment::START, taken()).len(), 2);
        let effects = group.handle(Moment::START, Event::GpuError { gpu: 1, code: 31 });
        assert!(matches!(effects.last(), Some(Effect::ReportInventory { .. })), "{list}: {effects:?}");
        let shown = effects.iter().filter(|effect| matches!(effect, Effect::Notify(_))).count();
        assert_eq!(shown, usize::from(is_shown), "{list}: {effects:?}");
    }
}

/// Two workers have 10 of 80 GB between them, on device 1.
fn sharing(enforces: bool) -> WorkerGroup {
    let share = Share { device: 1, part: 10, whole: 80 };
    let gpu_share = Some(ShareTerms { share, workers: 2, enforces });
    let mut group = WorkerGroup::new(Limits { has_accelerators: true, gpu_share, ..limits(3) });
    assert_eq!(group.handle(Moment::START, Event::MasterBack), [join(0, None)]);
    start(&mut group, 0, 2);
    for rank in 0..2 {
        let pid = 100 + i32::try_from(rank).unwrap();
        let started = Event::WorkerStarted { round: Round(0), local_rank: LocalRank(rank), pid };
        let _asked = group.handle(Moment::START, started);
    }
    let mut inventory = inventory();
    inventory.gpus[1].memory_total = Some(80_000_000_000);
    let effects = group.handle(Moment::START, Event::InventoryTaken { inventory });
    assert_eq!(effects[1], Effect::WatchGpus { and_memory: true });
    group
}

fn holds(gpu: u32, lineage: &[i32], gigabytes: u64) -> GpuUse {
    GpuUse { gpu, lineage: lineage.into(), memory: gigabytes * 1_000_000_000 }
}

#[test]
fn a_worker_above_its_share_is_reported_and_killed_if_enforced() {
    // The second one's data loader counts for it; what others hold, and other devices, do not.
    let uses =
        vec![holds(1, &[100, 1], 5), holds(1, &[207, 101, 1], 6), holds(1, &[9], 60), holds(0, &[100], 70)];
    for enforces in [false, true] {
        let mut group = sharing(enforces);
        let mut all = Vec::new();
        for _ in 0..3 {
            all.extend(group.handle(Moment::START, Event::GpuMemory { uses: uses.clone() }));
        }
        let told = |is_killed| {
            let (used, limit) = (6_000_000_000, 5_000_000_000);
            Effect::Notify(Notice::GpuShareExceeded { local_rank: LocalRank(1), used, limit, is_killed })
        };
        let mut expected = vec![told(false)];
        if enforces {
            expected.extend([told(true), Effect::KillWorker { local_rank: LocalRank(1) }]);
        }
        assert_eq!(all, expected);
    }
}

#[test]
fn a_driver_with_other_process_ids_is_reported_once() {
    let mut group = sharing(true);
    let mut told = Vec::new();
    for _ in 0..30 {
        told.extend(group.handle(Moment::START, Event::GpuMemory { uses: vec![holds(1, &[4711], 60)] }));
    }
    assert_eq!(told, [Effect::Notify(Notice::GpuMemoryUnseen)]);
}

#[test]
fn reported_errors_are_kept_after_the_next_query() {
    let mut group = WorkerGroup::new(Limits { check: Some(Duration::ZERO), ..limits(3) });
    assert_eq!(group.handle(Moment::START, Event::MasterBack), [Effect::CheckLocally]);
    assert_eq!(group.handle(Moment::START, taken()), [reported()]);
    let checked = diagnosis::network_check::LocalCheck::default();
    assert_eq!(group.handle(Moment::START, Event::LocallyChecked { checked }).len(), 2);
    start(&mut group, 0, 1);
    let _watch = group.handle(Moment::START, worker_started(0));
    assert_eq!(group.handle(Moment::START, Event::GpuError { gpu: 1, code: 48 }).len(), 2);
    // Its worker is killed by it; the node repeats its self-test before it joins.
    assert_eq!(group.handle(Moment::START, regroup(0)).len(), 2);
    assert_eq!(group.handle(Moment::START, gone(0)), [Effect::CheckLocally]);
    let effects = group.handle(Moment::START, taken());
    let [Effect::ReportInventory { inventory }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(inventory.gpus[1].xids.len(), 1, "the master and the taint report lose the error");
}
