//! What was timed, on the wire.

use std::time::Duration;

use diagnosis::network_check::{ComputeKind, ComputeTime, LocalCheck, Probed};
use rules::{
    NodeId,
    check_order::{CheckReport, CheckRound, Checked},
    job::Event,
};

use crate::{convert::check_report, pb};

#[test]
fn what_was_timed_survives_the_wire() {
    let at = CheckRound { check: 4, round: 1 };
    let model = || "m".to_owned();
    let kinds = [
        ComputeKind::Unspecified,
        ComputeKind::Processor,
        ComputeKind::OwnKernel { model: model() },
        ComputeKind::Cublas { model: model() },
    ];
    for kind in kinds {
        let compute = ComputeTime { time: Duration::from_micros(7), kind };
        let local = LocalCheck { compute: Some(compute.clone()), ..LocalCheck::default() };
        let checked = Checked { local, port: 1 };
        assert_eq!(Checked::try_from(pb::Checked::from(checked.clone())), Ok(checked));
        let probed = Probed::Failed { reason: "r".into() };
        let report = CheckReport { at, probed, compute: Some(vec![compute; 2]) };
        let event = Event::CheckReported { node: NodeId("a".into()), report: report.clone() };
        assert_eq!(Event::try_from(check_report("a".into(), report, false)), Ok(event));
    }
}

#[test]
fn nodes_that_do_not_say_what_they_timed_and_those_that_say_too_much() {
    let checked = |compute_kind| pb::Checked {
        local: Some(pb::LocalCheck { compute_micros: Some(7), compute_kind, ..Default::default() }),
        port: 0,
    };
    let without_kind = Some(Duration::from_micros(7).into());
    let newer = pb::ComputeKind { work: 99, model: "m".into() };
    for kind in [None, Some(newer)] {
        assert_eq!(Checked::try_from(checked(kind)).unwrap().local.compute, without_kind);
    }
    let long = pb::ComputeKind { work: pb::ComputeWork::Cublas.into(), model: "m".repeat(1 << 16) };
    let error = Checked::try_from(checked(Some(long))).unwrap_err();
    assert!(error.to_string().contains("checked.local.compute_kind.model"), "{error}");
}
