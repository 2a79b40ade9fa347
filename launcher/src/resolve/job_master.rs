//! The settings of a job master that this launcher serves, and what every node needs to connect to one.

use std::path::PathBuf;

use master::{MpiOperatorLabels, StacksConfig, TaintConfig};
use master_proto::trust::{TlsFiles, Token, Trust};
use rules::{
    NodeId,
    job::{HOST_TIMEOUT, OnGiveUp, Policy},
    liveness::Timeout,
    taint_key::TaintKey,
};

use crate::{
    cli::{Cli, Given},
    environment::Environment,
    host::Host,
    invalid::Invalid,
    metrics_compat,
    options::{Flag, MASTER, OPTIONS},
    resolve::{
        at_least_zero,
        checks::{one_of, permille},
        rdzv_conf,
        rendezvous::{Rendezvous, ServeMaster},
    },
};

/// The job master of this run.
#[derive(Debug, Clone)]
pub struct MasterPlan {
    /// Whether this launcher serves it.
    pub serve_master: ServeMaster,
    /// For a master that is served here.
    pub policy: Policy,
    /// For a master that is served here.
    pub timeout: Timeout,
    /// Where a master that is served here keeps its state.
    pub state_dir: Option<PathBuf>,
    /// Read for each round by a master that is served here.
    pub topology_file: Option<PathBuf>,
    /// Where a master that is served here writes reports of network checks.
    pub taints: TaintConfig,
    /// Where a master that is served here writes the stacks of a hang.
    pub stacks: StacksConfig,
    /// Where a master that is served here serves its page and metrics, as it was given.
    pub http: Option<String>,
    /// What its page and metrics require; not the token that a job of this node alone makes up.
    pub http_token: Option<Token>,
    /// Whether its metrics have the MPI operator's names too.
    pub mpi_operator: Option<MpiOperatorLabels>,
    /// Credentials of both sides.
    pub trust: Trust,
    /// For a master that is served here for this node alone.
    pub own_token: Option<Token>,
    /// The given options that concern only the master.
    pub given: Vec<String>,
}

pub(super) fn resolve(
    cli: &Cli,
    env: Environment<'_>,
    host: &dyn Host,
    (rendezvous, serve_master): (&Rendezvous, ServeMaster),
    max_nodes: u32,
    node: &NodeId,
) -> Result<MasterPlan, Invalid> {
    let seconds = |flag: Flag, range: &'static str| {
        let number = cli.float(flag).unwrap_or_default();
        rdzv_conf::seconds(number).ok_or_else(|| Invalid::OutOfRange { given: cli.given(flag), range })
    };
    let range = "a non-negative number of replacements";
    let restart_count = at_least_zero(cli, Flag::RestartCount, range)?.unwrap_or_default();
    let reconnect_grace = seconds(Flag::ReconnectGrace, "a non-negative number of seconds")?;
    let heartbeat_timeout = seconds(Flag::HeartbeatTimeout, "a number of seconds above 0")?;
    if heartbeat_timeout.is_zero() {
        let given = cli.given(Flag::HeartbeatTimeout);
        return Err(Invalid::OutOfRange { given, range: "a number of seconds above 0" });
    }
    let is_alone = match rendezvous {
        Rendezvous::Loopback => true,
        Rendezvous::Static(_) => max_nodes == 1,
        Rendezvous::C10d(_) | Rendezvous::Master(_) => false,
    };
    let own_token = Token::new(&host.fresh_id()).ok();
    let http = Some(cli.text(Flag::Http)?).filter(|it| !it.is_empty()).map(str::to_owned);
    let http_token = match http {
        Some(_) => Files { cli, env, host }.token()?,
        None => None,
    };
    let (state_dir, topology_file, trust) = if is_alone {
        // No other node takes part, and no other user of the host may.
        (None, None, Trust { token: own_token.clone(), tls: TlsFiles::default() })
    } else {
        let files = Files { cli, env, host };
        let state_dir = files.named(Flag::StateDir, None).map(|(path, given)| match host.is_file(&path) {
            true => Err(Invalid::StateDirIsFile { given }),
            false => Ok(path),
        });
        let topology = files.named(Flag::TopologyConfig, Some("DLROVER_TOPOLOGY_CONFIG"));
        (state_dir.transpose()?, topology.map(|(path, _)| path), files.trust()?)
    };
    let given = OPTIONS.iter().filter(|spec| spec.section == MASTER && cli.is_given(spec.flag));
    Ok(MasterPlan {
        serve_master,
        policy: Policy {
            restart_count,
            on_give_up: OnGiveUp::FailJob,
            host: state_dir.is_none().then(|| node.clone()),
            has_topology: topology_file.is_some(),
            host_timeout: HOST_TIMEOUT,
            reconnect_grace,
            terms: None,
            is_open: trust.token.is_none(),
            taint_guard_permille: taint_guard(cli)?,
            lease: (!is_alone).then_some(heartbeat_timeout),
        },
        // Inside one process there are no heartbeats: an idle run costs nothing.
        timeout: Timeout { reconnect_grace, heartbeat_timeout: (!is_alone).then_some(heartbeat_timeout) },
        state_dir,
        topology_file,
        taints: TaintConfig {
            file: Some(cli.bytes(Flag::TaintReport)).filter(|it| !it.is_empty()).map(PathBuf::from),
            // The launcher reaps all children of this process itself.
            on_fault_node: None,
            key: TaintKey::parse(cli.text(Flag::TaintKey)?)
                .ok_or_else(|| Invalid::TaintKey { given: cli.given(Flag::TaintKey) })?,
        },
        stacks: StacksConfig::default(),
        http,
        http_token,
        mpi_operator: metrics_compat::labels(one_of(cli, Flag::MetricsCompat)?, None, env, host),
        trust,
        own_token,
        given: given.map(|spec| cli.given(spec.flag).to_string()).collect(),
    })
}

/// The share of the nodes, in thousandths, above which no node is tainted.
fn taint_guard(cli: &Cli) -> Result<u32, Invalid> {
    let share = cli.float(Flag::TaintGuard).unwrap_or_default();
    if !(0.0..=1.0).contains(&share) {
        let range = "a share of the nodes from 0 to 1";
        return Err(Invalid::OutOfRange { given: cli.given(Flag::TaintGuard), range });
    }
    Ok(permille(share))
}

/// Files that are named by an option or by a variable.
struct Files<'a> {
    cli: &'a Cli,
    env: Environment<'a>,
    host: &'a dyn Host,
}

impl Files<'_> {
    fn named(&self, flag: Flag, variable: Option<&str>) -> Option<(PathBuf, Given)> {
        let given = self.cli.bytes(flag);
        if !given.is_empty() {
            return Some((given.into(), self.cli.given(flag)));
        }
        let name = variable?;
        let value = self.env.get_filled(name)?;
        Some((value.into(), Given::in_variable(name, value)))
    }

    /// A file that is read again later, where an error would be less clear.
    fn readable(&self, flag: Flag, variable: &str) -> Result<Option<PathBuf>, Invalid> {
        let Some((path, given)) = self.named(flag, Some(variable)) else { return Ok(None) };
        self.host.read(&path).map_err(|source| Invalid::Unreadable { given, source })?;
        Ok(Some(path))
    }

    fn trust(&self) -> Result<Trust, Invalid> {
        let tls = TlsFiles {
            cert: self.readable(Flag::TlsCert, "DLROVER_TLS_CERT")?,
            key: self.readable(Flag::TlsKey, "DLROVER_TLS_KEY")?,
            ca: self.readable(Flag::TlsCa, "DLROVER_TLS_CA")?,
        };
        if tls.cert.is_some() != tls.key.is_some() {
            return Err(Invalid::HalfACertificate);
        }
        if tls.is_on() && tls.ca.is_none() {
            return Err(Invalid::NoCa);
        }
        Ok(Trust { token: self.token()?, tls })
    }

    /// The file that an option names, else the variable, else the file that a variable names.
    fn token(&self) -> Result<Option<Token>, Invalid> {
        let is_given = !self.cli.bytes(Flag::JobTokenFile).is_empty();
        if let (false, Some(value)) = (is_given, self.env.get_filled("DLROVER_JOB_TOKEN")) {
            // Its value is never printed.
            let given = Given::variable("DLROVER_JOB_TOKEN");
            return Token::new(&value.to_string_lossy())
                .map(Some)
                .map_err(|why| Invalid::Token { given, why });
        }
        let Some((path, given)) = self.named(Flag::JobTokenFile, Some("DLROVER_JOB_TOKEN_FILE")) else {
            return Ok(None);
        };
        let text = self.host.read(&path);
        let text = text.map_err(|source| Invalid::Unreadable { given: given.clone(), source })?;
        Token::new(&text).map(Some).map_err(|why| Invalid::Token { given, why })
    }
}
