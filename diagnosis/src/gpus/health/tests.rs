//! Nodes with unfit accelerators.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::gpus::{GpuProcess, RemappedRows};

const GB: u64 = 1_000_000_000;

fn node(count: u32) -> Inventory {
    let gpu = |index| Gpu {
        index,
        uuid: Some(format!("GPU-{index}0")),
        memory_total: Some(80 * GB),
        memory_used: Some(GB / 2),
        ..Gpu::default()
    };
    Inventory { gpus: (0..count).map(gpu).collect(), ..Inventory::default() }
}

fn by_cuda(list: &str) -> VisibleList {
    VisibleList { variable: "CUDA_VISIBLE_DEVICES".into(), list: list.into() }
}

fn terms(needed: u32, visible: Option<&str>) -> GpuTerms {
    GpuTerms { busy_permille: Some(300), needed, visible: visible.map(by_cuda) }
}

fn unfit(inventory: &Inventory, terms: &GpuTerms) -> LocalFault {
    match judge(inventory, terms, BUSY_TIMEOUT) {
        Health::Unfit(fault) => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_without_trouble_is_fit_and_one_without_accelerators_too() {
    let fit = Health::Fit { notes: Vec::new() };
    assert_eq!(judge(&node(8), &terms(8, None), Duration::ZERO), fit);
    assert_eq!(judge(&node(0), &terms(8, None), Duration::ZERO), fit);
}

#[test]
fn each_kind_of_broken_has_its_reason_and_all_are_named() {
    type Break = fn(&mut Gpu);
    let break_it: [(Break, &str); 5] = [
        (|gpu| gpu.trouble = Some(GpuTrouble::Lost), "fallen off the bus"),
        (|gpu| gpu.trouble = Some(GpuTrouble::CannotOpen("no".into())), "cannot open it: no"),
        (|gpu| gpu.ecc_uncorrected = Some(2), "2 uncorrectable ECC errors"),
        (|gpu| gpu.remapped = Some(RemappedRows { pending: true, ..Default::default() }), "reset"),
        (
            |gpu| gpu.remapped = Some(RemappedRows { failed: true, ..Default::default() }),
            "no spare memory row",
        ),
    ];
    for (how, message) in break_it {
        let mut inventory = node(4);
        how(&mut inventory.gpus[2]);
        let fault = unfit(&inventory, &terms(2, None));
        assert_eq!(fault.component.as_str(), "GPU 2");
        assert!(fault.reason.contains(message), "{fault:?}");
        // It is not in use.
        assert!(matches!(judge(&inventory, &terms(2, Some("0,1")), Duration::ZERO), Health::Fit { .. }));
        how(&mut inventory.gpus[3]);
        assert!(unfit(&inventory, &terms(2, None)).reason.contains("; GPU 3: "));
    }
    let mut healed = node(1);
    healed.gpus[0].remapped = Some(RemappedRows { correctable: 3, uncorrectable: 1, ..Default::default() });
    healed.gpus[0].ecc_uncorrected = Some(0);
    assert!(matches!(judge(&healed, &terms(1, None), Duration::ZERO), Health::Fit { .. }));
}

/// A container sees the count of all devices, and may open its own.
#[test]
fn forbidden_accelerators_matter_only_when_too_few_are_left() {
    let mut inventory = node(4);
    for gpu in &mut inventory.gpus[2..] {
        gpu.trouble = Some(GpuTrouble::NotPermitted);
    }
    let Health::Fit { notes } = judge(&inventory, &terms(2, None), Duration::ZERO) else { panic!() };
    assert_eq!(notes, ["GPU 2: permission denied", "GPU 3: permission denied"]);
    let fault = unfit(&inventory, &terms(4, None));
    assert!(fault.component.is_nothing_broken() && fault.component == Component::GpuPermission, "{fault:?}");
    assert!(fault.reason.starts_with("4 accelerators needed, 2 accessible: GPU 2: "), "{fault:?}");
}

#[test]
fn a_driver_that_hangs_is_a_fault_of_what_it_was_asked_about() {
    let inventory = Inventory { hangs_at: Some("GPU 3 (NVIDIA H100)".into()), ..node(3) };
    let fault = unfit(&inventory, &terms(1, None));
    assert_eq!(fault.component.as_str(), "GPU 3");
    assert!(fault.reason.contains("H100"), "{fault:?}");
}

#[test]
fn busy_accelerators_are_waited_for_and_matter_only_when_too_few_are_free() {
    let mut inventory = node(4);
    for gpu in &mut inventory.gpus[..2] {
        gpu.memory_used = Some(61 * GB);
        gpu.processes = (1..=4).map(|pid| GpuProcess { pid, memory: None }).collect();
    }
    let Health::Fit { notes } = judge(&inventory, &terms(2, None), Duration::ZERO) else { panic!() };
    assert_eq!(notes[0], "GPU 0: 61.0 of 80.0 GB are in use by processes 1, 2, 3 and 1 more");
    assert_eq!(judge(&inventory, &terms(3, None), Duration::ZERO), Health::Recheck { after: LOOK_EVERY });
    let almost = BUSY_TIMEOUT - Duration::from_millis(20);
    assert_eq!(
        judge(&inventory, &terms(3, None), almost),
        Health::Recheck { after: Duration::from_millis(20) }
    );
    let fault = unfit(&inventory, &terms(3, None));
    assert!(
        fault.component == Component::GpuBusy
            && fault.reason.starts_with("3 accelerators needed, 2 of 4 free")
    );
    assert!(unfit(&inventory, &terms(2, Some("GPU-00,GPU-20"))).reason.contains("1 of 2"));
    // More workers than accelerators share them.
    assert!(matches!(judge(&node(1), &terms(8, None), Duration::ZERO), Health::Fit { .. }));
}

#[test]
fn exactly_the_threshold_is_not_busy_and_slices_never_are() {
    let mut inventory = node(1);
    inventory.gpus[0].memory_used = Some(24 * GB);
    assert!(matches!(judge(&inventory, &terms(1, None), Duration::ZERO), Health::Fit { .. }));
    inventory.gpus[0].memory_used = Some(25 * GB);
    assert!(matches!(judge(&inventory, &terms(1, None), Duration::ZERO), Health::Recheck { .. }));
    inventory.gpus[0].is_mig = true;
    assert!(matches!(judge(&inventory, &terms(1, None), Duration::ZERO), Health::Fit { .. }));
}

/// A node with a share of a device has other users of it on purpose.
#[test]
fn a_shared_one_is_never_busy() {
    let mut inventory = node(1);
    inventory.gpus[0].memory_used = Some(79 * GB);
    let terms = GpuTerms { busy_permille: None, ..terms(1, None) };
    assert_eq!(judge(&inventory, &terms, Duration::ZERO), Health::Fit { notes: Vec::new() });
}

#[test]
fn the_list_is_read_as_cuda_reads_it() {
    let inventory = node(4);
    let seen = |list: &str| visible(&inventory, Some(list)).iter().map(|gpu| gpu.index).collect::<Vec<u32>>();
    assert_eq!(seen("2, 0"), [2, 0]);
    assert_eq!(seen("1,9,0"), [1]);
    assert_eq!(seen("1,GPU-1"), [0_u32; 0]);
    assert_eq!(seen("GPU-3,x,0"), [3]);
    assert_eq!(seen(""), [0_u32; 0]);
    assert_eq!(seen("MIG-1,2"), [0_u32; 0]);
    assert_eq!(visible(&inventory, None).len(), 4);
}

#[test]
fn links_that_are_down_while_others_are_up_are_reported() {
    let mut inventory = node(2);
    let link = |number, is_active| NvLink { number, is_active };
    inventory.gpus[0].nvlinks = vec![link(0, true), link(1, false), link(2, true)];
    inventory.gpus[1].nvlinks = vec![link(0, false), link(1, false)];
    let Health::Fit { notes } = judge(&inventory, &terms(2, None), Duration::ZERO) else { panic!() };
    assert_eq!(notes, ["GPU 0: NVLink 1 is down (1 of 3)"]);
}

#[test]
fn a_hanging_device_that_the_job_does_not_use_excludes_no_node() {
    let mut inventory = node(7);
    inventory.hangs_at = Some("GPU 7 (NVIDIA H100)".into());
    for list in ["0,1", "GPU-00,GPU-10", ""] {
        let Health::Fit { notes } = judge(&inventory, &terms(2, Some(list)), Duration::ZERO) else {
            panic!()
        };
        assert_eq!(notes, ["the query of the accelerators stopped at GPU 7 (NVIDIA H100)"], "{list}");
    }
    // Of these it is not known whether it is one of them.
    for list in [None, Some("0,7"), Some("GPU-00,GPU-70"), Some("MIG-a")] {
        assert_eq!(unfit(&inventory, &terms(2, list)).component.as_str(), "GPU 7", "{list:?}");
    }
}

#[test]
fn a_query_without_an_answer_is_a_fault_of_the_probe() {
    let inventory = Inventory { hangs_at: Some(Component::Probe.into()), ..Inventory::default() };
    let fault = unfit(&inventory, &terms(1, None));
    assert_eq!(fault.component.as_str(), "probe");
    assert_eq!(fault.reason, "the query of the accelerators got no answer");
}

#[test]
fn a_lost_device_is_not_overlooked_however_it_is_listed() {
    let mut inventory = node(4);
    // As NVML reports a device that it cannot open: a number and a trouble, no id.
    inventory.gpus[2] = Gpu { index: 2, trouble: Some(GpuTrouble::Lost), ..Gpu::default() };
    for list in ["0,1,2,3", "GPU-00,GPU-10,GPU-20,GPU-30", "GPU-20", "GPU-20,GPU-00"] {
        assert_eq!(unfit(&inventory, &terms(4, Some(list))).component.as_str(), "GPU 2", "{list}");
    }
    assert!(matches!(
        judge(&inventory, &terms(2, Some("GPU-00,GPU-30")), Duration::ZERO),
        Health::Fit { .. }
    ));
}

#[test]
fn entries_that_no_device_has_leave_too_few() {
    let fault = unfit(&node(4), &terms(3, Some("GPU-00,GPU-90,GPU-10")));
    assert_eq!(fault.component, Component::GpuPermission, "nothing is known to be broken");
    let message = "3 accelerators needed, 1 accessible: CUDA_VISIBLE_DEVICES=GPU-00,GPU-90,GPU-10: no device GPU-90 here; this and all later entries are ignored (2 in all)";
    assert_eq!(fault.reason, message);
    let enough = judge(&node(4), &terms(1, Some("0,9")), Duration::ZERO);
    let notes = vec![
        "CUDA_VISIBLE_DEVICES=0,9: no device 9 here; this and all later entries are ignored (1 in all)"
            .to_owned(),
    ];
    assert_eq!(enough, Health::Fit { notes });
    // An entry that names no device ends the list.
    let ended = judge(&node(4), &terms(1, Some("0,9,-1,3")), Duration::ZERO);
    let notes = vec![
        "CUDA_VISIBLE_DEVICES=0,9,-1,3: no device 9 here; this and all later entries are ignored (3 in all)"
            .to_owned(),
    ];
    assert_eq!(ended, Health::Fit { notes });
    // A host without any computes on its processors.
    assert_eq!(judge(&node(0), &terms(2, Some("0,1")), Duration::ZERO), Health::Fit { notes: Vec::new() });
}
