//! Messages of a network check, both ways.

use std::time::Duration;

use diagnosis::{
    exclusion::Exclusion,
    network_check::{
        ComputeKind, ComputeTime, Deadlines, LocalCheck, LocalFault, OnBadPath, Probed, Tainting,
    },
};
use rules::{
    check_order::{CheckOrder, CheckReport, CheckRound, Checked, Partner, Test},
    check_terms::{CheckTerms, OnInconclusive},
    job::Event,
    node::NodeName,
};

use super::{ConvertError, MAX_NAME, MAX_NODES, MAX_TEXT, cut, cut_to, limited, millis, name, node_id, port};
use crate::pb::{self, probed::Probed as Wire};

/// Accepted times of one round's compute probe.
const MAX_SAMPLES: usize = 16;

/// Notes of one self-test.
const MAX_NOTES: usize = 64;

/// What is said of one, in bytes: all of them must fit into [a request](crate::MAX_REQUEST_BYTES), with room for the
/// rest of it.
const MAX_NOTE: usize = 512;

/// Nodes that one order names: three at most in a group, one in a ring.
const MAX_PARTNERS: usize = 8;

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl TryFrom<pb::CheckTerms> for CheckTerms {
    type Error = ConvertError;

    fn try_from(wire: pb::CheckTerms) -> Result<Self, ConvertError> {
        let on_inconclusive = match wire.on_inconclusive() {
            pb::OnInconclusive::Fail => OnInconclusive::Fail,
            pb::OnInconclusive::Proceed => OnInconclusive::Proceed,
            pb::OnInconclusive::Relaunch => OnInconclusive::Relaunch,
            pb::OnInconclusive::Unspecified => {
                return Err(ConvertError::Missing { field: "terms.check.on_inconclusive" });
            }
        };
        let taint_flaky = match wire.taint_flaky() {
            pb::Tainting::Now => Tainting::Now,
            pb::Tainting::Confirmed => Tainting::Confirmed,
            pb::Tainting::Never => Tainting::Never,
            pb::Tainting::Unspecified => {
                return Err(ConvertError::Missing { field: "terms.check.taint_flaky" });
            }
        };
        let on_bad_path = match wire.on_bad_path() {
            pb::OnBadPath::Exclude => OnBadPath::Exclude,
            pb::OnBadPath::Fail => OnBadPath::Fail,
            pb::OnBadPath::Proceed => OnBadPath::Proceed,
            pb::OnBadPath::Unspecified => {
                return Err(ConvertError::Missing { field: "terms.check.on_bad_path" });
            }
        };
        let deadlines = wire.deadlines.ok_or(ConvertError::Missing { field: "terms.check.deadlines" })?;
        Ok(Self {
            exclude_straggler: wire.exclude_straggler,
            straggler_permille: in_range(
                wire.straggler_permille,
                1001,
                "terms.check.straggler_permille",
                "above 1000",
            )?,
            max_rounds: in_range(wire.max_rounds, 1, "terms.check.max_rounds", "at least 1")?,
            deadlines: Deadlines {
                floor: Duration::from_millis(deadlines.floor_millis),
                hard: Duration::from_millis(deadlines.hard_millis),
                median_permille: deadlines.median_permille,
                quorum_permille: deadlines.quorum_permille,
                kill_grace: Duration::from_millis(deadlines.kill_grace_millis),
            },
            has_command: wire.has_command,
            measures_bandwidth: wire.measures_bandwidth,
            reuse_for: Duration::from_millis(wire.reuse_millis),
            on_inconclusive,
            taint_flaky,
            on_bad_path,
        })
    }
}

fn in_range(
    value: u32,
    least: u32,
    field: &'static str,
    expected: &'static str,
) -> Result<u32, ConvertError> {
    let wrong = ConvertError::Range { field, value: u64::from(value), expected };
    if value < least { Err(wrong) } else { Ok(value) }
}

impl From<CheckTerms> for pb::CheckTerms {
    fn from(terms: CheckTerms) -> Self {
        let Deadlines { floor, hard, median_permille, quorum_permille, kill_grace } = terms.deadlines;
        let on_inconclusive = match terms.on_inconclusive {
            OnInconclusive::Fail => pb::OnInconclusive::Fail,
            OnInconclusive::Proceed => pb::OnInconclusive::Proceed,
            OnInconclusive::Relaunch => pb::OnInconclusive::Relaunch,
        };
        let taint_flaky = match terms.taint_flaky {
            Tainting::Now => pb::Tainting::Now,
            Tainting::Confirmed => pb::Tainting::Confirmed,
            Tainting::Never => pb::Tainting::Never,
        };
        let on_bad_path = match terms.on_bad_path {
            OnBadPath::Exclude => pb::OnBadPath::Exclude,
            OnBadPath::Fail => pb::OnBadPath::Fail,
            OnBadPath::Proceed => pb::OnBadPath::Proceed,
        };
        Self {
            exclude_straggler: terms.exclude_straggler,
            straggler_permille: terms.straggler_permille,
            max_rounds: terms.max_rounds,
            deadlines: Some(pb::CheckDeadlines {
                floor_millis: millis(floor),
                hard_millis: millis(hard),
                median_permille,
                quorum_permille,
                kill_grace_millis: millis(kill_grace),
            }),
            has_command: terms.has_command,
            measures_bandwidth: terms.measures_bandwidth,
            reuse_millis: millis(terms.reuse_for),
            on_inconclusive: on_inconclusive.into(),
            taint_flaky: taint_flaky.into(),
            on_bad_path: on_bad_path.into(),
        }
    }
}

/// A kind that is absent, or of a newer node, is [`ComputeKind::Unspecified`].
fn compute_kind(wire: Option<pb::ComputeKind>, field: &'static str) -> Result<ComputeKind, ConvertError> {
    let Some(wire) = wire else { return Ok(ComputeKind::Unspecified) };
    let work = wire.work();
    let model = name(wire.model, field)?;
    Ok(match work {
        pb::ComputeWork::Unspecified => ComputeKind::Unspecified,
        pb::ComputeWork::Processor => ComputeKind::Processor,
        pb::ComputeWork::OwnKernel => ComputeKind::OwnKernel { model },
        pb::ComputeWork::Cublas => ComputeKind::Cublas { model },
    })
}

fn compute_kind_to_wire(kind: ComputeKind) -> Option<pb::ComputeKind> {
    let (work, model) = match kind {
        ComputeKind::Unspecified => return None,
        ComputeKind::Processor => (pb::ComputeWork::Processor, String::new()),
        ComputeKind::OwnKernel { model } => (pb::ComputeWork::OwnKernel, model),
        ComputeKind::Cublas { model } => (pb::ComputeWork::Cublas, model),
    };
    Some(pb::ComputeKind { work: work.into(), model })
}

impl TryFrom<pb::Checked> for Checked {
    type Error = ConvertError;

    fn try_from(wire: pb::Checked) -> Result<Self, ConvertError> {
        let pb::LocalCheck { fault, compute_micros, notes, compute_kind: kind } =
            wire.local.ok_or(ConvertError::Missing { field: "checked.local" })?;
        let fault = fault.map(|pb::LocalFault { component, reason }| {
            Ok(LocalFault {
                component: name(component, "checked.local.fault.component")?.into(),
                reason: limited(reason, MAX_TEXT, "checked.local.fault.reason")?,
            })
        });
        let kind = compute_kind(kind, "checked.local.compute_kind.model")?;
        let compute = compute_micros.map(|time| ComputeTime { time: Duration::from_micros(time), kind });
        if notes.len() > MAX_NOTES {
            let (length, max) = (notes.len(), MAX_NOTES);
            return Err(ConvertError::TooMany { field: "checked.local.notes", length, max });
        }
        let notes = notes.into_iter().map(|note| limited(note, MAX_TEXT, "checked.local.notes"));
        let notes = notes.collect::<Result<_, _>>()?;
        let port = match wire.port {
            0 => 0,
            other => port(other, "checked.port")?,
        };
        Ok(Self { local: LocalCheck { fault: fault.transpose()?, compute, notes }, port })
    }
}

impl From<Checked> for pb::Checked {
    fn from(Checked { local: LocalCheck { fault, compute, notes }, port }: Checked) -> Self {
        let fault = fault.map(|LocalFault { component, reason }| pb::LocalFault {
            component: cut_to(component.into(), MAX_NAME),
            reason: cut(reason),
        });
        let local = pb::LocalCheck {
            fault,
            compute_micros: compute.as_ref().map(|compute| micros(compute.time)),
            compute_kind: compute.and_then(|compute| compute_kind_to_wire(compute.kind)),
            notes: notes.into_iter().take(MAX_NOTES).map(|note| cut_to(note, MAX_NOTE)).collect(),
        };
        Self { local: Some(local), port: u32::from(port) }
    }
}

impl From<CheckRound> for pb::CheckRound {
    fn from(CheckRound { check, round }: CheckRound) -> Self {
        Self { check, round }
    }
}

impl From<pb::CheckRound> for CheckRound {
    fn from(pb::CheckRound { check, round }: pb::CheckRound) -> Self {
        Self { check, round }
    }
}

impl From<CheckOrder> for pb::CheckOrder {
    fn from(order: CheckOrder) -> Self {
        let partner = |Partner { number, name, address, port }: Partner| pb::Partner {
            number,
            name: Some(name.into()),
            address,
            port: u32::from(port),
        };
        Self {
            at: Some(order.at.into()),
            address: order.address,
            me: order.me,
            size: order.size,
            partners: order.partners.into_iter().map(partner).collect(),
            seed: order.seed,
            compute_again: order.compute_again,
            timeout_millis: millis(order.timeout),
            all_reduce_bytes: match order.test {
                Test::Pair => None,
                Test::AllReduce { bytes } => Some(bytes),
            },
        }
    }
}

impl TryFrom<pb::CheckOrder> for CheckOrder {
    type Error = ConvertError;

    fn try_from(wire: pb::CheckOrder) -> Result<Self, ConvertError> {
        if wire.partners.len() > MAX_PARTNERS {
            let (length, max) = (wire.partners.len(), MAX_PARTNERS);
            return Err(ConvertError::TooMany { field: "check.partners", length, max });
        }
        if !(2..=MAX_NODES).contains(&wire.size) {
            let (value, expected) = (u64::from(wire.size), "2 to 65536");
            return Err(ConvertError::Range { field: "check.size", value, expected });
        }
        if wire.me >= wire.size {
            let (value, expected) = (u64::from(wire.me), "less than check.size");
            return Err(ConvertError::Range { field: "check.me", value, expected });
        }
        let partner = |wire: pb::Partner| {
            let name = wire.name.map(NodeName::from);
            Ok(Partner {
                number: wire.number,
                name: name.ok_or(ConvertError::Missing { field: "check.partners.name" })?,
                address: wire.address,
                port: u16::try_from(wire.port).unwrap_or(0),
            })
        };
        Ok(Self {
            at: wire.at.ok_or(ConvertError::Missing { field: "check.at" })?.into(),
            test: wire.all_reduce_bytes.map_or(Test::Pair, |bytes| Test::AllReduce { bytes }),
            address: wire.address,
            me: wire.me,
            size: wire.size,
            partners: wire.partners.into_iter().map(partner).collect::<Result<_, _>>()?,
            seed: wire.seed,
            compute_again: wire.compute_again.min(u32::try_from(MAX_SAMPLES).unwrap_or(u32::MAX)),
            timeout: Duration::from_millis(wire.timeout_millis),
        })
    }
}

/// The report of a node's test in a check round; `is_progress` while the test runs. Compute times of another kind than
/// the first are left out.
#[must_use]
pub fn check_report(node: String, report: CheckReport, is_progress: bool) -> pb::CheckReport {
    let CheckReport { at, probed, compute } = report;
    let (is_computing, compute) = (compute.is_none(), compute.unwrap_or_default());
    let probed = match probed {
        Probed::Passed { comm, latency, bytes_per_second } => Wire::Passed(pb::ProbePassed {
            comm_micros: micros(comm),
            latency_nanos: u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX),
            bytes_per_second,
        }),
        Probed::Failed { reason } => Wire::Failed(pb::ProbeFailed { reason: cut(reason) }),
        Probed::Unfinished { bytes, total, elapsed, idle } => Wire::Unfinished(pb::ProbeUnfinished {
            bytes,
            total,
            elapsed_micros: micros(elapsed),
            idle_micros: micros(idle),
        }),
    };
    let kind = compute.first().map(|compute| compute.kind.clone()).unwrap_or_default();
    let alike = compute.into_iter().filter(|compute| compute.kind == kind);
    let compute_micros = alike.take(MAX_SAMPLES).map(|compute| micros(compute.time)).collect();
    pb::CheckReport {
        node_id: node,
        at: Some(at.into()),
        probed: Some(pb::Probed { probed: Some(probed) }),
        compute_micros,
        is_progress,
        compute_kind: compute_kind_to_wire(kind),
        is_computing,
    }
}

impl TryFrom<pb::CheckReport> for Event {
    type Error = ConvertError;

    fn try_from(wire: pb::CheckReport) -> Result<Self, ConvertError> {
        let node = node_id(wire.node_id, "node_id")?;
        let at = wire.at.ok_or(ConvertError::Missing { field: "at" })?.into();
        let probed = wire.probed.and_then(|probed| probed.probed);
        let probed = match probed.ok_or(ConvertError::Missing { field: "probed" })? {
            Wire::Passed(pb::ProbePassed { comm_micros, latency_nanos, bytes_per_second }) => {
                Probed::Passed {
                    comm: Duration::from_micros(comm_micros),
                    latency: Duration::from_nanos(latency_nanos),
                    bytes_per_second,
                }
            }
            Wire::Failed(pb::ProbeFailed { reason }) => {
                Probed::Failed { reason: limited(reason, MAX_TEXT, "probed.failed.reason")? }
            }
            Wire::Unfinished(pb::ProbeUnfinished { bytes, total, elapsed_micros, idle_micros }) => {
                Probed::Unfinished {
                    bytes,
                    total,
                    elapsed: Duration::from_micros(elapsed_micros),
                    idle: Duration::from_micros(idle_micros),
                }
            }
        };
        if wire.is_progress {
            return Ok(Self::CheckProgressed { node, at, probed });
        }
        let length = wire.compute_micros.len();
        if length > MAX_SAMPLES {
            return Err(ConvertError::TooMany { field: "compute_micros", length, max: MAX_SAMPLES });
        }
        let kind = compute_kind(wire.compute_kind, "compute_kind.model")?;
        let times = wire.compute_micros.into_iter().map(Duration::from_micros);
        let compute = times.map(|time| ComputeTime { time, kind: kind.clone() }).collect();
        let compute = Some(compute).filter(|_| !wire.is_computing);
        Ok(Self::CheckReported { node, report: CheckReport { at, probed, compute } })
    }
}

impl From<Exclusion> for pb::Excluded {
    fn from(Exclusion { verdict, evidence, look_at, is_inconclusive }: Exclusion) -> Self {
        Self { verdict, evidence: cut(evidence), look_at, is_inconclusive }
    }
}

impl From<pb::Excluded> for Exclusion {
    fn from(pb::Excluded { verdict, evidence, look_at, is_inconclusive }: pb::Excluded) -> Self {
        Self { verdict, evidence, look_at, is_inconclusive }
    }
}
