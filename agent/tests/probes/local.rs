//! The local check.

use std::time::Duration;

use agent::probes::{LocalPlan, check_locally, measure_compute};

use crate::support::{PATIENCE, helper, in_time};

fn plan() -> LocalPlan {
    LocalPlan { deadline: PATIENCE, helper: helper(), ..LocalPlan::default() }
}

#[tokio::test]
async fn a_node_that_is_well_has_no_fault_and_a_time() {
    let check = in_time(check_locally(plan())).await;
    assert_eq!(check.fault, None);
    assert!(check.compute.unwrap() > Duration::ZERO);
    println!("{check:?}");
}

#[tokio::test]
async fn the_compute_probe_is_repeated_as_often_as_asked() {
    let times = in_time(measure_compute(4, plan())).await;
    assert_eq!(times.len(), 4);
    println!("{times:?}");
}
