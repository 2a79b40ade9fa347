//! The messages of the agent to the master, and how each is sent.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use diagnosis::gpus::Inventory;
use master_proto::{
    convert::{
        StacksPart, check_report, checkpoint_progress, checkpoint_report, cut, detail_report, end_report,
        inventory_report, join_request, progress_report,
    },
    pb::{self, master_client::MasterClient},
};
use rules::{
    Round,
    check_order::CheckReport,
    checkpoints::{CheckpointProgress, CheckpointReport},
    job::{Claim, NodeEnd},
    node::JoinRequest,
    progress::ProgressReport,
    root_cause::FailureDetail,
    worker_group::Event,
};
use tonic::{Code, Status, transport::Channel};

use super::{AgentGone, CALL, Connector, LinkError, MasterConnection, Welcome};

/// A message of the agent to the master.
#[derive(Debug)]
pub enum ToMaster {
    /// Requests a node rank.
    Join(JoinRequest),
    /// Reports the state of this node.
    Resume(JoinRequest, Claim),
    /// The store of a round is open.
    Hosting { round: Round, master_addr: Option<String>, master_port: u16 },
    /// The accelerators of this node.
    Inventory(Box<Inventory>),
    /// The result of a test, or its progress.
    Checked { report: CheckReport, is_progress: bool },
    /// Workers failed; the first of them ended at this time since 1970, if that is known. With `has_detail`, more is to
    /// be said of it.
    Failure { round: Round, reason: String, gives_up: bool, has_detail: bool, noticed: Option<Duration> },
    /// What is known of the worker that failed first.
    Detail { round: Round, detail: Box<FailureDetail> },
    /// The progress of the workers.
    Progress(ProgressReport),
    /// A part of their stacks.
    Stacks(StacksPart),
    /// What becomes of the checkpoints in memory.
    Checkpoint(Box<CheckpointReport>),
    /// How far the checkpoints are.
    CheckpointProgress(CheckpointProgress),
    /// This node has ended.
    End(NodeEnd),
    /// Acknowledges the end of the job.
    AcknowledgeEnd,
}

impl<E: From<Event>> MasterConnection<E> {
    pub(super) async fn send(
        &mut self,
        client: &mut MasterClient<Channel>,
        message: ToMaster,
        Welcome { session, .. }: Welcome,
    ) -> Result<Option<AgentGone>, LinkError> {
        let node_id = self.node.0.clone();
        match message {
            ToMaster::Join(request) => {
                let request = pb::JoinRequest { session: Some(session), ..join_request(request) };
                self.connector.answered(client.join(self.connector.signed(request))).await?;
            }
            ToMaster::Resume(request, claim) => {
                let mut request = pb::ResumeRequest::from((request, claim));
                if let Some(node) = &mut request.node {
                    node.session = Some(session);
                }
                self.connector.answered(client.resume(self.connector.signed(request))).await?;
            }
            ToMaster::Hosting { round, master_addr, master_port } => {
                let report = pb::HostingReport {
                    node_id,
                    round: round.0,
                    master_addr,
                    master_port: u32::from(master_port),
                };
                self.connector.answered(client.report_hosting(self.connector.signed(report))).await?;
            }
            ToMaster::Inventory(inventory) => {
                let report = inventory_report(node_id, &inventory);
                self.connector.answered(client.report_inventory(self.connector.signed(report))).await?;
            }
            ToMaster::Checked { report, is_progress } => {
                let report = check_report(node_id, report, is_progress);
                self.connector.answered(client.report_check(self.connector.signed(report))).await?;
            }
            ToMaster::Failure { round, reason, gives_up, has_detail, noticed } => {
                let (round, reason) = (round.0, cut(reason));
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let age = noticed.map_or(Duration::ZERO, |noticed| now.saturating_sub(noticed));
                let age_micros = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
                let report = pb::FailureReport { node_id, round, reason, gives_up, has_detail, age_micros };
                self.connector.answered(client.report_failure(self.connector.signed(report))).await?;
            }
            ToMaster::Detail { round, detail } => {
                let report = detail_report(node_id, round, *detail);
                self.connector.answered(client.report_detail(self.connector.signed(report))).await?;
            }
            ToMaster::Progress(report) => {
                let report = progress_report(node_id, report);
                self.connector.answered(client.report_training(self.connector.signed(report))).await?;
            }
            ToMaster::Stacks(part) => {
                let part = pb::StacksPart::from(part);
                self.connector.answered(client.report_stacks(self.connector.signed(part))).await?;
            }
            ToMaster::Checkpoint(report) => {
                let report = checkpoint_report(node_id, *report);
                self.connector.answered(client.report_checkpoint(self.connector.signed(report))).await?;
            }
            ToMaster::CheckpointProgress(progress) => {
                let report = checkpoint_progress(node_id, progress);
                self.connector.answered(client.report_checkpoint(self.connector.signed(report))).await?;
            }
            ToMaster::End(end) => {
                let is_farewell = !matches!(end, NodeEnd::Succeeded { .. });
                let report = end_report(&self.node, end);
                self.connector.answered(client.report_end(self.connector.signed(report))).await?;
                if is_farewell {
                    return Ok(self.emit(Event::EndNoted).await);
                }
            }
            ToMaster::AcknowledgeEnd => {
                let message = pb::EndAcknowledgement { node_id };
                self.connector.answered(client.acknowledge_end(self.connector.signed(message))).await?;
            }
        }
        Ok(None)
    }
}

impl Connector {
    pub(super) async fn answered<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, LinkError> {
        self.answered_within(CALL, call).await
    }

    pub(super) async fn answered_within<T>(
        &self,
        timeout: Duration,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, LinkError> {
        match tokio::time::timeout(timeout, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.refused(status)),
            Err(_) => Err(LinkError::Silent { at: self.to_string(), timeout }),
        }
    }

    /// Texts of the transport are not useful in a message; those of the master are.
    pub(super) fn refused(&self, status: Status) -> LinkError {
        let at = self.to_string();
        match status.code() {
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal | Code::Ok => {
                LinkError::BrokeOff { at }
            }
            _ => LinkError::Refused { at, status },
        }
    }
}
