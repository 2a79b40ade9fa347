//! The status as Prometheus metrics. All of them are made from one status when they are asked for, so they agree with
//! each other and with the page.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use rules::job_status::{
    CheckStatus, CheckedNodeStatus, CheckpointStatus, Histogram, JobPhase, JobStatus, NodeState, RankStatus,
};

use super::{
    gpu_metrics,
    label::Label,
    mpi_operator::{self, MpiOperatorLabels},
};

/// Pairs of nodes whose bandwidth is a metric: a series each.
const MAX_PAIRS: usize = 512;

/// Nodes whose verdict is a metric where they are healthy: those that are not are always listed.
const MAX_HEALTHY: usize = 1024;

/// How it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Prometheus' text format, which all tools read.
    Text,
    OpenMetrics,
}

impl Format {
    /// What a client asks for.
    pub(super) fn of(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Text }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The greatest training time that was encoded. A loss takes back the silence before it, and a counter never falls: it
/// stands still until the time has caught up.
#[derive(Debug, Clone, Default)]
pub(super) struct GreatestTrainingTime(Arc<AtomicU64>);

impl GreatestTrainingTime {
    fn at_least(&self, seconds: f64) -> f64 {
        // The bits of floats above zero are in the order of their values.
        let bits = seconds.max(0.0).to_bits();
        f64::from_bits(self.0.fetch_max(bits, Ordering::Relaxed).max(bits))
    }
}

/// All metrics of a status.
pub(super) fn encode(
    status: &JobStatus,
    mpi_operator: Option<&MpiOperatorLabels>,
    format: Format,
    greatest: &GreatestTrainingTime,
) -> Result<String, fmt::Error> {
    let mut status = status.clone();
    status.totals.training_seconds = greatest.at_least(status.totals.training_seconds);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics(status, mpi_operator.cloned())));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(match format {
        Format::OpenMetrics => text,
        Format::Text => without_open_metrics(&text),
    })
}

/// In the older format the name of a counter's family is that of its series, and there is no end mark.
fn without_open_metrics(text: &str) -> String {
    let counters: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut older = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT ")) {
        let mut words = line.splitn(4, ' ');
        let (Some("#"), Some(kind @ ("TYPE" | "HELP")), Some(name), Some(rest)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            older.push_str(line);
            older.push('\n');
            continue;
        };
        let total = if counters.contains(&name) { "_total" } else { "" };
        older.push_str(&format!("# {kind} {name}{total} {rest}\n"));
    }
    older
}

#[derive(Debug)]
struct Metrics(JobStatus, Option<MpiOperatorLabels>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobLabel {
    job: Label,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabel {
    cause: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct NodeLabel {
    pub(super) node: Label,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FolderLabel {
    folder: Label,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RankLabel {
    rank: Label,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabel {
    node: Label,
    verdict: Label,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PairLabel {
    a: Label,
    b: Label,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabel {
    version: Label,
}

/// Families of one type.
pub(super) struct Families<'a, 'b> {
    encoder: &'a mut DescriptorEncoder<'b>,
}

impl Families<'_, '_> {
    pub(super) fn gauge<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let series = series.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value)));
        self.family(name, help, MetricType::Gauge, series)
    }

    fn counter<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let series = series.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value)));
        self.family(name, help, MetricType::Counter, series)
    }

    /// A family without series is left out.
    fn family<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        series: impl Iterator<Item = (L, impl EncodeMetric)>,
    ) -> fmt::Result {
        let mut series = series.peekable();
        if series.peek().is_none() {
            return Ok(());
        }
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, metric) in series {
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// A single value, if there is one.
    fn one_gauge(&mut self, name: &str, help: &str, value: Option<f64>) -> fmt::Result {
        let Some(value) = value else { return Ok(()) };
        ConstGauge::new(value).encode(self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    pub(super) fn one_counter(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        ConstCounter::new(value).encode(self.encoder.encode_descriptor(
            name,
            help,
            None,
            MetricType::Counter,
        )?)
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        // The encoder adds the counts up itself.
        let mut below = 0;
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        for (bound, count) in &histogram.buckets {
            buckets.push((*bound, count.saturating_sub(below)));
            below = *count;
        }
        buckets.push((f64::MAX, histogram.count.saturating_sub(below)));
        family.encode_histogram::<NoLabelSet>(histogram.sum, histogram.count, &buckets, None)
    }
}

/// A series for each node rank that the job has or that ever restarted: a counter neither falls nor goes away with its
/// node.
fn worker_restarts(status: &JobStatus) -> impl Iterator<Item = (NodeLabel, f64)> {
    let present = status.nodes.iter().filter_map(|node| Some((Some(node.node_rank?), 0)));
    let restarted = status.totals.restarts_by_node.iter().map(|it| (it.node_rank, it.restarts));
    let series: BTreeMap<Option<u32>, u64> = present.chain(restarted).collect();
    let label = |rank: Option<u32>| rank.map_or_else(|| "none".to_owned(), |rank| rank.to_string());
    series.into_iter().map(move |(rank, restarts)| (NodeLabel { node: label(rank).into() }, float(restarts)))
}

/// The progress of ranks, and hangs.
fn progress_metrics(families: &mut Families<'_, '_>, status: &JobStatus) -> fmt::Result {
    let ranks = || status.nodes.iter().flat_map(|node| &node.ranks);
    let label = |rank: &RankStatus| RankLabel { rank: rank.rank.to_string().into() };
    families.gauge(
        "dlrover_rank_step",
        "The last step of a rank",
        ranks().filter_map(|rank| Some((label(rank), float(rank.step?)))),
    )?;
    families.gauge(
        "dlrover_rank_steps_per_second",
        "Steps per second of a rank, over the last minute",
        ranks().filter_map(|rank| Some((label(rank), rank.steps_per_second?))),
    )?;
    families.gauge(
        "dlrover_rank_idle_seconds",
        "The time since a rank last advanced",
        ranks().filter(|rank| rank.step.is_some()).map(|rank| (label(rank), rank.idle_seconds)),
    )?;
    let hang = status.hang.as_ref();
    families.one_counter(
        "dlrover_hangs",
        "Hangs that were reported",
        hang.map_or(0.0, |hang| f64::from(hang.count)),
    )?;
    families.one_gauge(
        "dlrover_hanging",
        "1 from the report of a hang until a rank advances or the round ends",
        Some(f64::from(u8::from(hang.is_some_and(|hang| !hang.is_over)))),
    )
}

/// Checkpoints that nodes have in memory.
fn checkpoint_metrics(families: &mut Families<'_, '_>, status: &JobStatus) -> fmt::Result {
    let label = |it: &CheckpointStatus| FolderLabel { folder: it.folder.as_str().into() };
    let all = || status.checkpoints.iter();
    families.gauge(
        "dlrover_checkpoint_memory_step",
        "The newest step that every node has in memory",
        all().filter_map(|it| Some((label(it), float(it.memory_step?)))),
    )?;
    families.gauge(
        "dlrover_checkpoint_disk_step",
        "The newest step that is complete on disk",
        all().filter_map(|it| Some((label(it), float(it.disk_step?)))),
    )?;
    families.gauge(
        "dlrover_checkpoint_writing_bytes",
        "Bytes already written of the step that is being written to disk",
        all().filter_map(|it| Some((label(it), float(it.writing.as_ref()?.bytes)))),
    )
}

/// A count as a number of Prometheus, which are all floating.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = &self.0;
        let mut families = Families { encoder: &mut encoder };
        let version = status.master.version.clone();
        families.gauge(
            "dlrover_build_info",
            "The job master's version",
            [(BuildLabel { version: version.into() }, 1.0)],
        )?;
        families.gauge(
            "dlrover_job_info",
            "The run id of the job, once a node has joined",
            status.job.clone().map(|job| (JobLabel { job: job.into() }, 1.0)),
        )?;
        families.one_gauge(
            "dlrover_job_succeeded",
            "1 when the job has succeeded, 0 when it has failed; absent before its end",
            status.end.as_ref().map(|end| f64::from(u8::from(end.succeeded))),
        )?;
        families.one_gauge(
            "dlrover_world_size",
            "Workers of the current round",
            status.world_size.map(f64::from),
        )?;
        families.one_gauge(
            "dlrover_master_uptime_seconds",
            "How long this process has served the job",
            Some(float(status.master.seconds)),
        )?;
        families.one_gauge(
            "dlrover_round",
            "The current round, or the one that is being started, else the last one",
            status.round.map(f64::from),
        )?;
        families.gauge(
            "dlrover_phase",
            "1 for the phase that the job is in",
            JobPhase::ALL.map(|phase| {
                (PhaseLabel { phase: phase.as_str() }, f64::from(u8::from(phase == status.phase)))
            }),
        )?;
        families.gauge(
            "dlrover_nodes",
            "Nodes by state",
            NodeState::ALL.map(|state| {
                let count = status.nodes.iter().filter(|node| node.state == state).count();
                (StateLabel { state: state.as_str() }, float(count as u64))
            }),
        )?;
        families.counter(
            "dlrover_worker_restarts",
            "Restarts of the job's workers, by the node rank of the node whose workers failed",
            worker_restarts(status),
        )?;
        let totals = &status.totals;
        families.one_counter("dlrover_rounds", "Rounds whose workers were started", float(totals.rounds))?;
        families.one_counter(
            "dlrover_node_losses",
            "Nodes that were lost, left, failed with no restart left, or were excluded by a check",
            float(totals.node_losses),
        )?;
        families.one_counter(
            "dlrover_training_seconds",
            "The time during which workers ran",
            totals.training_seconds,
        )?;
        families.counter(
            "dlrover_lost_seconds",
            "The time during which no workers ran, by cause",
            totals.lost_seconds.by_cause().map(|(cause, seconds)| (CauseLabel { cause }, seconds)),
        )?;
        families.histogram(
            "dlrover_rendezvous_seconds",
            "From the beginning of a rendezvous to the start of its workers",
            &totals.rendezvous,
        )?;
        families.histogram(
            "dlrover_failure_to_running_seconds",
            "From a failure or a loss to the next start of workers",
            &totals.failure_to_running,
        )?;
        progress_metrics(&mut families, status)?;
        checkpoint_metrics(&mut families, status)?;
        if let Some(check) = &status.check {
            check_metrics(&mut families, check)?;
        }
        gpu_metrics::encode(&mut families, status)?;
        self.1.as_ref().map_or(Ok(()), |labels| mpi_operator::encode(&mut families, status, labels))
    }
}

/// The addresses of the nodes of a check; their numbers where several nodes share an address. A series may be there
/// once only.
fn labels(check: &CheckStatus) -> Vec<String> {
    let mut addresses: Vec<&str> = check.nodes.iter().map(|node| node.address.as_str()).collect();
    addresses.sort_unstable();
    let is_unique = addresses.windows(2).all(|pair| pair[0] != pair[1]);
    let label = |node: &CheckedNodeStatus| match is_unique {
        true => node.address.clone(),
        false => node.number.to_string(),
    };
    check.nodes.iter().map(label).collect()
}

fn check_metrics(families: &mut Families<'_, '_>, check: &CheckStatus) -> fmt::Result {
    let labels = labels(check);
    let mut healthy = 0;
    let listed = check.nodes.iter().zip(&labels).filter(|(node, _)| {
        healthy += usize::from(node.verdict == "healthy");
        node.verdict != "healthy" || healthy <= MAX_HEALTHY
    });
    families.gauge(
        "dlrover_check_verdicts",
        "1 for the verdict of the last network check on each node, by its address, or its number in the check where \
         nodes share an address",
        listed.map(|(node, label)| {
            (VerdictLabel { node: label.as_str().into(), verdict: node.verdict.as_str().into() }, 1.0)
        }),
    )?;
    let label = |number: u32| labels.get(number as usize).cloned();
    // The last measurement of each pair; the slowest pairs where they are too many.
    let mut pairs = BTreeMap::new();
    for test in &check.tests {
        if let ([a, b], Some(rate)) = (&test.nodes[..], test.bytes_per_second) {
            pairs.insert((*a.min(b), *a.max(b)), rate);
        }
    }
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    pairs.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    pairs.truncate(MAX_PAIRS);
    families.gauge(
        "dlrover_check_bandwidth_bytes_per_second",
        &format!(
            "The bandwidth between two nodes in the last network check; at most {MAX_PAIRS} pairs, the slowest"
        ),
        pairs.into_iter().filter_map(|((a, b), rate)| Some((PairLabel { a: label(a)?.into(), b: label(b)?.into() }, rate))),
    )
}

#[cfg(test)]
pub(super) mod tests {
    use rules::{job::Job, job_status::NodeRestarts};

    use super::*;

    pub(in crate::http) fn status() -> JobStatus {
        let policy = rules::job::Policy {
            restart_count: 1,
            on_give_up: rules::job::OnGiveUp::Replace,
            host: None,
            has_topology: false,
            host_timeout: rules::job::HOST_TIMEOUT,
            reconnect_grace: std::time::Duration::from_secs(2),
            terms: None,
            is_open: false,
            taint_guard_permille: 300,
            lease: None,
        };
        let mut status = Job::new(policy).status(diagnosis::moment::Moment::START);
        status.totals.rendezvous.buckets = vec![(0.5, 1), (1.0, 3)];
        (status.totals.rendezvous.count, status.totals.rendezvous.sum) = (4, 9.5);
        status
    }

    #[test]
    fn a_counter_stands_still_where_a_loss_takes_time_back() {
        let greatest = GreatestTrainingTime::default();
        for (trained, expected) in [(55.0, "55.0"), (40.0, "55.0"), (54.5, "55.0"), (56.5, "56.5")] {
            let mut status = status();
            status.totals.training_seconds = trained;
            let text = encode(&status, None, Format::Text, &greatest).unwrap();
            let line = format!("dlrover_training_seconds_total {expected}");
            assert!(text.lines().any(|it| it == line), "{line}:\n{text}");
        }
    }

    /// Prometheus takes a sum that falls for a restart of the process.
    #[test]
    fn the_restarts_of_a_node_rank_that_is_gone_are_still_counted() {
        let mut status = status();
        status.totals.worker_restarts = 3;
        status.totals.restarts_by_node = vec![
            NodeRestarts { node_rank: Some(7), restarts: 2 },
            NodeRestarts { node_rank: None, restarts: 1 },
        ];
        let text = encode(&status, None, Format::Text, &GreatestTrainingTime::default()).unwrap();
        for line in [
            "dlrover_worker_restarts_total{node=\"7\"} 2.0",
            "dlrover_worker_restarts_total{node=\"none\"} 1.0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}:\n{text}");
        }
    }

    #[test]
    fn counters_have_their_suffix_and_histograms_add_up() {
        let text = encode(&status(), None, Format::Text, &GreatestTrainingTime::default()).unwrap();
        for line in [
            "# TYPE dlrover_node_losses_total counter",
            "dlrover_node_losses_total 0.0",
            "# TYPE dlrover_rendezvous_seconds histogram",
            "dlrover_rendezvous_seconds_bucket{le=\"0.5\"} 1",
            "dlrover_rendezvous_seconds_bucket{le=\"1.0\"} 3",
            "dlrover_rendezvous_seconds_bucket{le=\"+Inf\"} 4",
            "dlrover_rendezvous_seconds_count 4",
            "dlrover_rendezvous_seconds_sum 9.5",
            "dlrover_lost_seconds_total{cause=\"check\"} 0.0",
            "dlrover_nodes{state=\"running\"} 0.0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}:\n{text}");
        }
        assert!(!text.contains("# EOF"), "{text}");
        assert!(
            encode(&status(), None, Format::OpenMetrics, &GreatestTrainingTime::default())
                .unwrap()
                .ends_with("# EOF\n")
        );
    }

    #[test]
    fn a_label_may_hold_any_text() {
        let hostile = "exp \"lr\\3\"\ndlrover_round 9\u{1b}[31m";
        let mut status = status();
        status.job = Some(hostile.into());
        status.checkpoints = vec![CheckpointStatus {
            folder: hostile.into(),
            memory_step: Some(1),
            disk_step: None,
            writing: None,
        }];
        let labels = MpiOperatorLabels { launcher: hostile.into(), namespace: hostile.into() };
        for format in [Format::Text, Format::OpenMetrics] {
            let text = encode(&status, Some(&labels), format, &GreatestTrainingTime::default()).unwrap();
            let escaped = r#""exp \"lr\\3\"\ndlrover_round 9�[31m""#;
            for series in [
                format!("dlrover_job_info{{job={escaped}}} 1.0"),
                format!("dlrover_checkpoint_memory_step{{folder={escaped}}} 1.0"),
                format!("mpi_operator_job_info{{launcher={escaped},namespace={escaped}}} 1.0"),
            ] {
                assert!(text.lines().any(|line| line == series), "{series}:\n{text}");
            }
            assert!(!text.contains("\ndlrover_round 9"), "{text}");
        }
    }

    #[test]
    fn the_mpi_operators_metrics_are_there_when_asked_for() {
        let labels = MpiOperatorLabels { launcher: "pi-launcher".into(), namespace: "default".into() };
        let mut status = status();
        status.job = Some("pi".into());
        let text = encode(&status, Some(&labels), Format::Text, &GreatestTrainingTime::default()).unwrap();
        for line in [
            "# TYPE mpi_operator_jobs_created_total counter",
            "mpi_operator_jobs_created_total 1.0",
            "mpi_operator_jobs_successful_total 0.0",
            "mpi_operator_jobs_failed_total 0.0",
            "# TYPE mpi_operator_job_info gauge",
            "mpi_operator_job_info{launcher=\"pi-launcher\",namespace=\"default\"} 1.0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}:\n{text}");
        }
        assert!(
            !encode(&status, None, Format::Text, &GreatestTrainingTime::default())
                .unwrap()
                .contains("mpi_operator")
        );
    }

    #[test]
    fn a_client_gets_the_format_that_it_asks_for() {
        assert_eq!(Format::of("*/*"), Format::Text);
        assert_eq!(Format::of("application/openmetrics-text;version=1.0.0,text/plain"), Format::OpenMetrics);
    }
}
