//! What the arguments and the environment ask for.

use std::{path::PathBuf, time::Duration};

use master::{HttpError, StackFolder, StacksConfig, TaintConfig, TaintFileError, TopologyFileError, Web};
use master_proto::trust::{TlsFiles, Trust};
use rules::{
    job::{HOST_TIMEOUT, OnGiveUp, Policy},
    liveness::Timeout,
    taint_key::TaintKey,
};

use super::{arguments::Arguments, listen::ListenOn};
use crate::{
    cli::Given,
    environment::Environment,
    host::ThisHost,
    invalid::Invalid,
    job_token::{self, JobTokenError},
    metrics_compat, open_job,
    resolve::{LogPlan, hang, log, permille, ports},
};

/// Longer than any job, and within the range of every clock.
const FOR_EVER: f64 = 1e9;

/// Those of dlrover's own master.
const PLATFORMS: [&str; 4] = ["pyk8s", "k8s", "ray", "local"];

/// The settings of the master.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) job_name: String,
    pub(super) reach: ListenOn,
    pub(super) policy: Policy,
    pub(super) timeout: Timeout,
    pub(super) state_dir: Option<PathBuf>,
    pub(super) topology_file: Option<PathBuf>,
    pub(super) taints: TaintConfig,
    /// Where the stacks of a hang are written.
    pub(super) stacks: StacksConfig,
    /// Of --http.
    pub(super) http: Option<Web>,
    pub(super) trust: Trust,
    /// The log.
    pub(super) log: LogPlan,
    /// Lines for the log.
    pub(super) notices: Vec<String>,
    /// The warning that any host may join, printed first.
    pub(super) open: Option<String>,
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SettingsError {
    /// The value is not a number of seconds in the range.
    #[error("--{option} {value}: expected a number of seconds, {range}")]
    Seconds {
        /// Which.
        option: &'static str,
        /// As given.
        value: String,
        /// What it may be.
        range: &'static str,
    },
    /// `--taint-guard` is not a share of the nodes.
    #[error("--taint-guard {value}: expected a share of the nodes, from 0 to 1")]
    Share {
        /// As given.
        value: String,
    },
    /// The topology file.
    #[error(transparent)]
    Topology(#[from] TopologyFileError),
    /// Where the report goes.
    #[error(transparent)]
    TaintReport(#[from] TaintFileError),
    /// `--on-fault-node` is empty.
    #[error(
        "--on-fault-node is empty: expected a command for /bin/sh; to run no command, leave the option out"
    )]
    NoCommand,
    /// The taints' key.
    #[error("--taint-key {value}: {}", TaintKey::FORM)]
    TaintKey {
        /// As given.
        value: String,
    },
    /// The token.
    #[error(transparent)]
    Token(#[from] JobTokenError),
    /// `--http`.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// `HOST_PORTS`, `DLROVER_LOG_FORMAT`.
    #[error(transparent)]
    Variable(#[from] Invalid),
}

impl Settings {
    /// Reads what must be readable now, so that no node joins a master that cannot serve.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub(super) fn read(given: &Arguments, env: Environment<'_>) -> Result<Self, SettingsError> {
        let reconnect_grace = seconds("reconnect-grace", &given.reconnect_grace)?;
        let heartbeat_timeout = seconds("heartbeat-timeout", &given.heartbeat_timeout)?;
        if heartbeat_timeout.is_zero() {
            return Err(bad_seconds("heartbeat-timeout", &given.heartbeat_timeout, "above 0"));
        }
        let port = given.port;
        let choices = if port == 0 { ports::choices(env)? } else { Vec::new() };
        let topology_file = file(&given.topology_config, env, Some("DLROVER_TOPOLOGY_CONFIG"));
        if let Some(file) = &topology_file {
            master::check_topology(file)?;
        }
        let taint_file = file(&given.taint_report, env, None);
        if let Some(file) = &taint_file {
            master::check_taint_report(file)?;
        }
        let trust = trust(given, env)?;
        let http = match filled(&given.http) {
            Some(text) => {
                let namespace = given.namespace.as_deref();
                let mpi_operator = metrics_compat::labels(&given.metrics_compat, namespace, env, &ThisHost);
                Some(Web { socket: master::open_http(&text)?, token: trust.token.clone(), mpi_operator })
            }
            None => None,
        };
        let mut notices = notices(given);
        notices.extend(job_token::empty_variable(given.job_token_file.is_some(), env));
        let reach = ListenOn { address: filled(&given.bind), port, choices };
        let is_open = trust.token.is_none() && trust.tls.ca.is_none();
        let open = is_open.then(|| {
            let hint = if trust.tls.is_on() {
                "DLROVER_JOB_TOKEN, or use --tls-client-ca"
            } else {
                "DLROVER_JOB_TOKEN"
            };
            if reach.is_everywhere() {
                open_job::warning_on_all_interfaces(hint)
            } else {
                open_job::warning("its port", hint)
            }
        });
        let name_of_job = || Some(env.get_filled("ELASTIC_JOB_NAME")?.to_string_lossy().into_owned());
        let job_name = filled(&given.job_name).or_else(name_of_job);
        Ok(Self {
            job_name: job_name.unwrap_or_else(|| "job".into()),
            reach,
            policy: Policy {
                restart_count: given.restart_count,
                on_give_up: OnGiveUp::Replace,
                host: None,
                has_topology: topology_file.is_some(),
                host_timeout: HOST_TIMEOUT,
                reconnect_grace,
                terms: None,
                is_open,
                taint_guard_permille: taint_guard(&given.taint_guard)?,
                lease: Some(heartbeat_timeout),
            },
            timeout: Timeout { reconnect_grace, heartbeat_timeout: Some(heartbeat_timeout) },
            stacks: StacksConfig {
                // Without a directory of its own, where it was started.
                folders: hang::folders(
                    env,
                    Some(match file(&given.state_dir, env, None) {
                        Some(of_job) => StackFolder::Named(of_job),
                        None => StackFolder::Shared(".".into()),
                    }),
                ),
            },
            state_dir: file(&given.state_dir, env, None),
            topology_file,
            taints: TaintConfig {
                file: taint_file,
                on_fault_node: on_fault_node(given)?,
                key: taint_key(&given.taint_key)?,
            },
            http,
            trust,
            log: log_of(given, env)?,
            notices,
            open,
        })
    }
}

/// An option's text, unless it is empty.
fn filled(text: &Option<String>) -> Option<String> {
    text.clone().filter(|text| !text.is_empty())
}

/// The file that an option names, else a variable.
fn file(option: &Option<PathBuf>, env: Environment<'_>, variable: Option<&str>) -> Option<PathBuf> {
    let given = option.clone().filter(|path| !path.as_os_str().is_empty());
    given.or_else(|| env.get_filled(variable?).map(PathBuf::from))
}

/// Which lines are logged, and how.
fn log_of(given: &Arguments, env: Environment<'_>) -> Result<LogPlan, Invalid> {
    let name = filled(&given.log_format);
    let format = match env.get_filled(log::FORMAT_VARIABLE) {
        Some(value) if name.is_none() => {
            let given = Given::in_variable(log::FORMAT_VARIABLE, value);
            log::format_of(&value.to_string_lossy())
                .ok_or(Invalid::Choice { given, choices: log::FORMATS })?
        }
        _ => name.as_deref().and_then(log::format_of).unwrap_or_default(),
    };
    Ok(LogPlan::new(format, given.quiet, given.verbose.into()))
}

fn seconds(option: &'static str, text: &str) -> Result<Duration, SettingsError> {
    let number = text.trim().parse::<f64>().ok().filter(|number| *number >= 0.0);
    let seconds = number.and_then(|number| Duration::try_from_secs_f64(number.min(FOR_EVER)).ok());
    seconds.ok_or_else(|| bad_seconds(option, text, "0 or more"))
}

fn bad_seconds(option: &'static str, value: &str, range: &'static str) -> SettingsError {
    SettingsError::Seconds { option, value: value.to_owned(), range }
}

/// The share of the nodes, in thousandths, above which no node is tainted.
fn taint_guard(value: &str) -> Result<u32, SettingsError> {
    let share = value.trim().parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.map(permille).ok_or_else(|| SettingsError::Share { value: value.to_owned() })
}

fn on_fault_node(given: &Arguments) -> Result<Option<String>, SettingsError> {
    match &given.on_fault_node {
        Some(command) if command.trim().is_empty() => Err(SettingsError::NoCommand),
        command => Ok(command.clone()),
    }
}

fn taint_key(value: &str) -> Result<TaintKey, SettingsError> {
    TaintKey::parse(value).ok_or_else(|| SettingsError::TaintKey { value: value.to_owned() })
}

fn trust(given: &Arguments, env: Environment<'_>) -> Result<Trust, SettingsError> {
    let tls = TlsFiles {
        cert: file(&given.tls_cert, env, Some("DLROVER_TLS_CERT")),
        key: file(&given.tls_key, env, Some("DLROVER_TLS_KEY")),
        ca: file(&given.tls_client_ca, env, Some("DLROVER_TLS_CLIENT_CA")),
    };
    Ok(Trust { token: job_token::read(file(&given.job_token_file, env, None).as_deref(), env)?, tls })
}

/// Lines about options of DLRover's master that have no effect here.
fn notices(given: &Arguments) -> Vec<String> {
    let platform = filled(&given.platform).map(|platform| {
        if !PLATFORMS.contains(&platform.as_str()) {
            let known = PLATFORMS.join(", ");
            return format!("warning: --platform {platform} is not a known platform ({known}); ignored");
        }
        match platform.ends_with("k8s") {
            true => format!(
                "--platform {platform}: this master creates no pods; nodes join by themselves, and the \
                 controller that created their pods must also replace them"
            ),
            false => String::new(),
        }
    });
    // It may come from dlrover's own templates.
    let nodes = filled(&given.node_num).filter(|nodes| nodes.trim().parse::<u32>().is_err());
    let nodes = nodes.map(|nodes| {
        format!(
            "warning: --node-num {nodes} is ignored: not a number of nodes; the nodes report how many there are"
        )
    });
    let http = given.service_type.as_deref() == Some("http");
    let http =
        http.then(|| "warning: --service-type http is ignored: this master supports gRPC only".to_owned());
    [platform, nodes, http].into_iter().flatten().filter(|notice| !notice.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::FromArgMatches as _;

    use super::{
        super::{arguments::command, dlrover_args},
        *,
    };

    fn read(line: &str, env: &[(&str, &str)]) -> Result<Settings, String> {
        let words = dlrover_args::without_dlrover_args(line.split_whitespace().map(OsString::from));
        let env: Vec<_> = env.iter().map(|(key, value)| (key.into(), value.into())).collect();
        let arguments = command().try_get_matches_from(words).map_err(|error| error.to_string())?;
        let arguments = Arguments::from_arg_matches(&arguments).map_err(|error| error.to_string())?;
        Settings::read(&arguments, Environment(&env)).map_err(|error| rules::chain(&error))
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let settings = read("m", &[]).unwrap();
        assert_eq!((&*settings.job_name, settings.reach.port), ("job", 0));
        assert_eq!(settings.policy.restart_count, 3);
        assert_eq!(settings.timeout.reconnect_grace, Duration::from_secs(2));
        assert_eq!(settings.timeout.heartbeat_timeout, Some(Duration::from_secs(15)));
        let open = settings.open.unwrap();
        assert!(open.contains("any host that can reach its port can list the nodes"), "{open}");
    }

    #[test]
    fn an_elastic_jobs_line_is_understood() {
        let line = "m --platform pyk8s --namespace ns --job_name j --port 50001 --restart_counts 5 --pre_check_ops x";
        let settings = read(line, &[("DLROVER_JOB_TOKEN", "t")]).unwrap();
        assert_eq!((&*settings.job_name, settings.reach.port), ("j", 50001));
        assert_eq!(settings.policy.restart_count, 5);
        assert_eq!(settings.notices.len(), 1);
        assert!(settings.notices[0].contains("creates no pods"));
    }

    #[test]
    fn unused_options_are_accepted_with_a_notice() {
        let env = [("DLROVER_JOB_TOKEN", "t")];
        let notices = read("m --platform foo --node-num abc", &env).unwrap().notices;
        assert_eq!(notices.len(), 2, "{notices:?}");
        assert!(
            notices[0].contains("--platform foo is not a known platform (pyk8s, k8s, ray, local); ignored"),
            "{notices:?}"
        );
        assert!(notices[1].contains("--node-num abc is ignored: not a number of nodes"), "{notices:?}");
        assert_eq!(read("m --platform ray --node_num 4", &env).unwrap().notices, [""; 0]);
    }

    #[test]
    fn a_master_that_any_host_may_join_says_where_it_listens() {
        let open = |line: &str, env: &[(&str, &str)]| read(line, env).unwrap().open.unwrap_or_default();
        let token =
            "to admit only nodes of the job, give every node and the job master the same DLROVER_JOB_TOKEN";
        for line in ["m", "m --bind 0.0.0.0", "m --bind ::"] {
            let warning = open(line, &[]);
            assert!(
                warning.starts_with("warning: this job master listens on all interfaces and "),
                "{warning}"
            );
            assert!(
                warning.ends_with(&format!("{token}; --bind ADDR listens on one address only")),
                "{warning}"
            );
        }
        let warning = open("m --bind 10.0.0.1", &[]);
        assert!(!warning.contains("all interfaces") && warning.ends_with(token), "{warning}");
        assert_eq!(open("m", &[("DLROVER_JOB_TOKEN", "t")]), "");
    }

    #[test]
    fn variables_stand_in_for_options() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (topology, token) = (file("topology", "a p 10.0.0.1\n"), file("token", "t\n"));
        let env = [
            ("DLROVER_TOPOLOGY_CONFIG", &*topology),
            ("DLROVER_JOB_TOKEN_FILE", &token),
            ("DLROVER_TLS_CERT", "c"),
            ("HOST_PORTS", "20000,20002-20003"),
            ("ELASTIC_JOB_NAME", "j"),
        ];
        let settings = read("m --tls_key k", &env).unwrap();
        assert!(settings.policy.has_topology && settings.trust.token.is_some());
        assert_eq!((settings.trust.tls.cert, settings.trust.tls.key), (Some("c".into()), Some("k".into())));
        assert_eq!(settings.reach.choices, [20000..=20000, 20002..=20003]);
        assert_eq!(read("m --port 7", &env).unwrap().reach.choices, []);
        assert_eq!(settings.job_name, "j");
    }

    #[test]
    fn unusable_settings_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let topology = dir.path().join("topology");
        std::fs::write(&topology, "a p 10.0.0.1\n\na p host\n").unwrap();
        let refused = |line: &str, env: &[(&str, &str)]| read(line, env).unwrap_err();
        let bad_line = refused(&format!("m --topology-config {}", topology.display()), &[]);
        assert!(bad_line.ends_with("line 3: `host` is not an IP address"), "{bad_line}");
        assert_eq!(
            refused("m --reconnect_grace soon", &[]),
            "--reconnect-grace soon: expected a number of seconds, 0 or more"
        );
        assert!(refused("m --heartbeat-timeout 0", &[]).contains("above 0"));
        assert!(refused("m --reconnect-grace nan", &[]).contains("nan"));
        let token = refused("m", &[("DLROVER_JOB_TOKEN", "a b")]);
        assert!(token.contains("DLROVER_JOB_TOKEN") && !token.contains("a b"), "{token}");
        assert!(refused("m --on-fault-node=", &[]).contains("expected a command"));
        let report = refused("m --taint-report /none/x.json", &[]);
        assert!(report.starts_with("cannot write the taint report /none/x.json: No such file"), "{report}");
        let folder = dir.path().display().to_string();
        let report = refused(&format!("m --taint-report {folder}"), &[]);
        assert_eq!(
            report,
            format!("cannot write the taint report {folder}: it exists and is not a regular file")
        );
        for key in ["--taint-key=", "--taint-key=bad!"] {
            let key = refused(&format!("m {key}"), &[]);
            assert!(key.starts_with("--taint-key ") && key.contains("1 to 63 letters"), "{key}");
        }
        assert!(refused("m --job-token-file /none", &[]).contains("/none"));
        assert!(refused("m", &[("HOST_PORTS", "x")]).contains("HOST_PORTS"));
        assert!(refused("m --service-type pigeon", &[]).contains("pigeon"));
    }
}
