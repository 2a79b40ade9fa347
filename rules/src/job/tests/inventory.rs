//! Nodes report their accelerators.

use super::*;
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
