//! The four metrics of Kubeflow's MPI operator, for dashboards that know it. One process serves one job, so the
//! operator's counts over all its jobs are 0 or 1 here; a sum over the scraped jobs is the operator's number.

use std::fmt;

use prometheus_client::encoding::EncodeLabelSet;
use rules::job_status::JobStatus;

use super::{label::Label, metrics::Families};

/// What `mpi_operator_job_info` says of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpiOperatorLabels {
    /// The host that serves the job master.
    pub launcher: String,
    /// The namespace of its pod.
    pub namespace: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InfoLabel {
    launcher: Label,
    namespace: Label,
}

pub(super) fn encode(
    families: &mut Families<'_, '_>,
    status: &JobStatus,
    labels: &MpiOperatorLabels,
) -> fmt::Result {
    let is_created = status.job.is_some();
    let ended = |succeeded| status.end.as_ref().is_some_and(|end| end.succeeded == succeeded);
    let counters = [
        ("mpi_operator_jobs_created", "1 when a node has joined", is_created),
        ("mpi_operator_jobs_successful", "1 when the job has succeeded", ended(true)),
        ("mpi_operator_jobs_failed", "1 when the job has failed", ended(false)),
    ];
    for (name, help, is_true) in counters {
        families.one_counter(name, help, f64::from(u8::from(is_true)))?;
    }
    families.gauge(
        "mpi_operator_job_info",
        "The host that serves the job master, and its namespace",
        [(
            InfoLabel {
                launcher: labels.launcher.as_str().into(),
                namespace: labels.namespace.as_str().into(),
            },
            1.0,
        )],
    )
}
