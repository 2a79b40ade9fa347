//! Nodes report their accelerators.

use super::*;
use crate::job_status::MAX_GPU_TROUBLES;
use diagnosis::gpus::{Gpu, GpuTrouble, Inventory, Xid};

fn told(node: &str, gpus: Vec<Gpu>) -> Event {
    let inventory = Box::new(Inventory { gpus, ..Inventory::default() });
    Event::InventoryReported { node: NodeId(node.into()), inventory }
}

#[test]
fn troubles_of_accelerators_are_logged_once() {
    let mut job = Job::new(policy());
    let lost = Gpu { index: 3, trouble: Some(GpuTrouble::Lost), ..Gpu::default() };
    let mut log = |gpus: Vec<Gpu>| -> Vec<String> {
        let effects = job.handle(Moment::START, told("a", gpus));
        effects
            .into_iter()
            .map(|effect| match effect {
                Effect::Log(Log::Accelerators { message, .. }) => message,
                other => panic!("{other:?}"),
            })
            .collect()
    };
    assert_eq!(log(vec![Gpu::default()]), [""; 0]);
    assert_eq!(log(vec![lost.clone()]), ["GPU 3: it has fallen off the bus"]);
    assert_eq!(log(vec![lost.clone()]), [""; 0]);
    let with_error = Gpu { xids: vec![Xid { code: 79, count: 4 }], ..lost };
    assert_eq!(log(vec![with_error.clone()]), ["GPU 3: Xid 79 (the device has fallen off the bus)"]);
    assert_eq!(log(vec![with_error]), [""; 0]);
    assert_eq!(job.inventories.len(), 1);
    let _none = job.handle(Moment::START, Event::LinkBroken { node: NodeId("a".into()) });
    assert!(job.inventories.is_empty(), "one that never joined is forgotten with its stream");
}

#[test]
fn troubles_of_accelerators_are_in_the_status_once_each() {
    let mut test = Test::new(policy(), terms(1, 1));
    let _ = test.join("a");
    let xid = |code| Xid { code, count: 1 };
    let gpu =
        Gpu { index: 3, trouble: Some(GpuTrouble::Lost), xids: vec![xid(79), xid(79)], ..Gpu::default() };
    let _ = test.job.handle(Moment::START, told("a", vec![gpu]));
    let status = test.job.status(test.now);
    assert_eq!((status.nodes[0].gpus, status.nodes[0].broken_gpus), (1, 1));
    let expected = ["GPU 3: it has fallen off the bus", "GPU 3: Xid 79 (the device has fallen off the bus)"];
    assert_eq!(status.nodes[0].gpu_troubles, expected);

    let many =
        (0..40).map(|index| Gpu { index, trouble: Some(GpuTrouble::Lost), ..Gpu::default() }).collect();
    let _ = test.job.handle(Moment::START, told("a", many));
    assert_eq!(test.job.status(test.now).nodes[0].gpu_troubles.len(), MAX_GPU_TROUBLES);
}
