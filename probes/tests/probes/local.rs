//! The local check.

use std::time::Duration;

use diagnosis::network_check::ComputeKind;
use probes::{LocalPlan, check_locally, measure_compute};
use tokio::sync::watch;

use crate::support::{TIMEOUT, in_time, program};

fn plan() -> LocalPlan {
    LocalPlan { deadline: TIMEOUT, program: program(), ..LocalPlan::default() }
}

#[tokio::test]
async fn a_healthy_node_has_no_fault_and_a_time() {
    let check = in_time(check_locally(plan())).await;
    assert_eq!(check.fault, None);
    println!("{check:?}");
    let compute = check.compute.unwrap();
    assert!(compute.time > Duration::ZERO);
    assert_ne!(compute.kind, ComputeKind::Unspecified);
}

#[tokio::test]
async fn the_compute_probe_is_repeated_as_often_as_asked() {
    let first = in_time(check_locally(plan())).await.compute.unwrap();
    let (_kept, cancel) = watch::channel(false);
    let times = in_time(measure_compute(4, plan(), cancel)).await;
    assert_eq!(times.len(), 4);
    assert!(times.iter().all(|time| time.kind == first.kind), "{first:?}, {times:?}");
    println!("{times:?}");
}

#[tokio::test]
async fn without_accelerators_the_processor_is_timed() {
    let plan = || LocalPlan { accelerators: false, ..plan() };
    assert_eq!(in_time(check_locally(plan())).await.compute.unwrap().kind, ComputeKind::Processor);
    let (_kept, cancel) = watch::channel(false);
    assert_eq!(in_time(measure_compute(1, plan(), cancel)).await[0].kind, ComputeKind::Processor);
}
