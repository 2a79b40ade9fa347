//! Where a status comes from: a job master at an address, or a launcher of this node.

use std::{path::PathBuf, time::Duration};

use agent::{MasterAt, StatusClient, StatusError, StatusWatch};
use master_proto::trust::{TlsFiles, Trust};
use rules::job_status::JobStatus;
use tokio::time::timeout;

use super::{
    Where,
    local::{self, Followed, LocalError, LocalStatuses, Selector},
};
use launcher::{
    endpoint::Endpoint,
    environment::Environment,
    job_token::{self, JobTokenError},
};

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    /// What was given is not an address.
    #[error("`{given}` is not an address: {why}")]
    Address { given: String, why: &'static str },
    /// The token.
    #[error(transparent)]
    Token(#[from] JobTokenError),
    /// The master.
    #[error(transparent)]
    Master(#[from] StatusError),
    /// The launchers of this node.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// No answer came in time.
    #[error("the job master did not answer within {} s (--timeout)", limit.as_secs())]
    Slow { limit: Duration },
    /// The master was reached once, and has not come back in time.
    #[error(
        "no contact with the job master for {} s (--reconnect-timeout): the job has ended, or the job master \
         is down or unreachable",
        limit.as_secs()
    )]
    Away { limit: Duration },
    /// The answer cannot be read, as that of another release.
    #[error("the answer is not a dlrover.job-status/v1 document; install the same release on both sides")]
    Document(#[source] serde_json::Error),
}

/// What is asked.
pub(super) enum Source {
    Master(Box<MasterAt>),
    /// A launcher of this node.
    Local {
        selector: Selector,
        /// What was followed last.
        followed: Option<Followed>,
    },
}

/// Statuses as they change.
pub(super) enum Statuses {
    Master(Box<(StatusClient, StatusWatch)>),
    Local(LocalStatuses),
}

impl Source {
    pub(super) fn new(at: &Where, env: Environment<'_>) -> Result<Self, SourceError> {
        let variable = |name| env.get_filled(name).map(|value| value.to_string_lossy().into_owned());
        let selector = match (at.pid, &at.run_id) {
            (Some(pid), _) => Selector::Launcher(pid),
            (None, Some(run_id)) => Selector::RunId(run_id.clone()),
            (None, None) => Selector::OnlyJob,
        };
        let given = at.master.clone().or_else(|| match selector {
            Selector::OnlyJob => variable("DLROVER_MASTER_ADDR"),
            Selector::RunId(_) | Selector::Launcher(_) => None,
        });
        let Some(given) = given else { return Ok(Self::Local { selector, followed: None }) };
        let endpoint =
            Endpoint::of_master(&given).map_err(|why| SourceError::Address { given: given.clone(), why })?;
        let file =
            |given: &Option<PathBuf>, name| given.clone().or_else(|| variable(name).map(PathBuf::from));
        let tls = TlsFiles {
            cert: file(&at.tls_cert, "DLROVER_TLS_CERT"),
            key: file(&at.tls_key, "DLROVER_TLS_KEY"),
            ca: file(&at.tls_ca, "DLROVER_TLS_CA"),
        };
        let token = job_token::read(at.job_token_file.as_deref(), env)?;
        let Endpoint { host, port } = endpoint;
        Ok(Self::Master(Box::new(MasterAt { host, port, trust: Trust { token, tls } })))
    }

    /// From now on only this job is shown: another launcher of this node may run another one.
    pub(super) fn keep_to(&mut self, statuses: &Statuses, status: &JobStatus) {
        if let (Self::Local { followed, .. }, Statuses::Local(statuses)) = (self, statuses) {
            *followed = Some(Followed::new(statuses.pid(), status));
        }
    }

    /// Asks once.
    pub(super) async fn once(&self, limit: Duration) -> Result<JobStatus, SourceError> {
        let asking = async {
            let text = match self {
                Self::Master(at) => StatusClient::connect((**at).clone()).await?.status().await?,
                Self::Local { selector, .. } => local::once(selector).await?,
            };
            parse(&text)
        };
        timeout(limit, asking).await.unwrap_or(Err(SourceError::Slow { limit }))
    }

    /// Follows; the first status comes within `limit`, or not at all.
    pub(super) async fn follow(&self, limit: Duration) -> Result<Statuses, SourceError> {
        let asking = async {
            Ok(match self {
                Self::Master(at) => {
                    let mut client = StatusClient::connect((**at).clone()).await?;
                    let watch = client.watch().await?;
                    Statuses::Master(Box::new((client, watch)))
                }
                Self::Local { followed: Some(followed), .. } => {
                    Statuses::Local(local::follow_again(followed).await?)
                }
                Self::Local { selector, followed: None } => Statuses::Local(local::follow(selector).await?),
            })
        };
        timeout(limit, asking).await.unwrap_or(Err(SourceError::Slow { limit }))
    }
}

impl SourceError {
    /// Whether the command line has to say more.
    pub(super) fn is_of_usage(&self) -> bool {
        matches!(self, Self::Local(LocalError::Several { .. }))
    }

    /// Whether another try is in vain: the job and its launcher are gone.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Local(LocalError::Ended { .. }))
    }
}

impl Statuses {
    /// The next one; `None` when the job is over.
    pub(super) async fn next(&mut self) -> Result<Option<JobStatus>, SourceError> {
        let text = match self {
            Self::Master(watching) => watching.1.next().await?,
            Self::Local(statuses) => statuses.next().await?,
        };
        text.map(|text| parse(&text)).transpose()
    }
}

fn parse(text: &str) -> Result<JobStatus, SourceError> {
    serde_json::from_str(text).map_err(SourceError::Document)
}
