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
    /// An option of a job master, and none is asked.
    #[error("{option} requires the address of the job master: HOST:PORT, or DLROVER_MASTER_ADDR")]
    NoMaster { option: &'static str },
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
    #[error("{asked} did not answer within {} s (--timeout)", limit.as_secs())]
    Slow { asked: String, limit: Duration },
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
        let Some(given) = given else {
            // The launchers of this node ask their master with their own credentials.
            let options = [
                ("--job-token-file", &at.job_token_file),
                ("--tls-ca", &at.tls_ca),
                ("--tls-cert", &at.tls_cert),
                ("--tls-key", &at.tls_key),
            ];
            return match options.into_iter().find(|(_, file)| file.is_some()) {
                Some((option, _)) => Err(SourceError::NoMaster { option }),
                None => Ok(Self::Local { selector, followed: None }),
            };
        };
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
                Self::Local { selector, .. } => local::once(selector, limit).await?,
            };
            parse(&text)
        };
        timeout(limit, asking).await.unwrap_or_else(|_| Err(self.slow(limit)))
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
                    Statuses::Local(local::follow_again(followed, limit).await?)
                }
                Self::Local { selector, followed: None } => {
                    Statuses::Local(local::follow(selector, limit).await?)
                }
            })
        };
        timeout(limit, asking).await.unwrap_or_else(|_| Err(self.slow(limit)))
    }

    /// No answer came within `limit`.
    fn slow(&self, limit: Duration) -> SourceError {
        let asked = match self {
            Self::Master(at) => {
                let endpoint = Endpoint { host: at.host.clone(), port: at.port };
                format!("the job master at {endpoint}")
            }
            Self::Local { .. } => "the launchers of this node".to_owned(),
        };
        SourceError::Slow { asked, limit }
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::Subcommand;

    /// The source of `status` with these arguments and this `DLROVER_MASTER_ADDR`.
    fn source(master: &str, arguments: &str) -> Result<Source, SourceError> {
        let line = format!("status {arguments}");
        let Ok(Subcommand::Status(arguments)) = crate::parse(&line) else { panic!("{line}") };
        let env = [(OsString::from("DLROVER_MASTER_ADDR"), OsString::from(master))];
        Source::new(&arguments.at, Environment(&env))
    }

    #[test]
    fn files_for_the_job_master_are_used_wherever_its_address_comes_from() {
        for (master, arguments) in [("m:1", "--tls-ca ca"), ("", "m:1 --tls-ca ca")] {
            let Ok(Source::Master(at)) = source(master, arguments) else { panic!("{master} {arguments}") };
            assert_eq!((&*at.host, at.port), ("m", 1), "{master} {arguments}");
            assert_eq!(at.trust.tls.ca, Some(PathBuf::from("ca")), "{master} {arguments}");
        }
        for option in ["--job-token-file", "--tls-ca", "--tls-cert", "--tls-key"] {
            let Err(error) = source("", &format!("{option} file")) else { panic!("{option}") };
            assert_eq!(
                error.to_string(),
                format!("{option} requires the address of the job master: HOST:PORT, or DLROVER_MASTER_ADDR")
            );
            for local in ["--pid 7", "--run-id llm"] {
                assert!(crate::parse(&format!("status {local} {option} file")).is_err(), "{local} {option}");
            }
        }
        assert!(matches!(source("", ""), Ok(Source::Local { .. })));
    }

    #[test]
    fn a_timeout_is_reported_with_what_was_asked() {
        let limit = Duration::from_secs(3);
        for (master, asked) in [
            ("10.0.0.1:7", "the job master at 10.0.0.1:7"),
            ("[fd00::1]:7", "the job master at [fd00::1]:7"),
            ("", "the launchers of this node"),
        ] {
            let error = source(master, "").unwrap().slow(limit);
            assert_eq!(error.to_string(), format!("{asked} did not answer within 3 s (--timeout)"));
        }
    }
}
