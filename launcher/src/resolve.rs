//! Resolves a request to the configuration of the agent. Pure: the environment and the machine are passed in.
//!
//! Order of refusals: options that contradict each other (exit 2), and values that cannot be used.

pub(crate) mod checks;
mod command;
mod flash;
mod gang;
mod gpu_share;
mod gpus;
pub(crate) mod hang;
mod identity;
mod job_master;
pub(crate) mod log;
mod nodes;
mod nproc;
mod output;
pub(crate) mod ports;
mod rdzv_conf;
pub(crate) mod redirects;
mod rendezvous;
mod shutdown;
pub mod switchbox;
pub(crate) mod warm;

use std::{ffi::OsString, path::PathBuf};

use agent::{AgentConfig, EnvConfig, MasterPort};
use diagnosis::gpus::health::{GpuTerms, VisibleList};
use master_proto::trust::NodeSecret;

pub use self::{
    checks::Checks,
    job_master::MasterPlan,
    log::LogPlan,
    output::EventLog,
    rendezvous::{Rendezvous, ServeMaster},
};
pub use self::{checks::permille, hang::stack_folder};
use crate::{
    accelerators::Devices,
    cli::Cli,
    environment::Environment,
    gpu_choice::locks::Locks,
    host::Host,
    invalid::Invalid,
    numa,
    options::{Flag, Kind, OPTIONS},
    resolve::{identity::Identity, rendezvous::ResolvedRendezvous},
    token_in_environment,
};

/// A run, ready to start.
#[derive(Debug)]
pub struct LaunchPlan {
    /// The configuration of the agent.
    pub agent: AgentConfig,
    /// Where the job's master is.
    pub rendezvous: Rendezvous,
    /// The job's master.
    pub master: MasterPlan,
    /// `--local-addr`, MASTER_ADDR of a job of this node alone.
    pub local_addr: Option<String>,
    /// Lines for standard error before the workers start, in order, without a prefix.
    pub notices: Vec<String>,
    /// Exit with the root cause's own code instead of 1.
    pub propagate_exit_code: bool,
    /// Where the outcome of the run is written, as JSON.
    pub report_json: Option<PathBuf>,
    /// The launcher's own log.
    pub log: LogPlan,
    /// Where the launcher's events go.
    pub event_log: EventLog,
    /// The checks before workers start.
    pub checks: Checks,
    /// Accelerators that no other launcher may choose, as long as this is there.
    pub gpu_locks: Locks,
}

/// Resolves what the command line and the environment ask for.
///
/// # Errors
///
/// The first value that cannot be used.
pub(crate) fn resolve(
    cli: Cli,
    mut env: Vec<(OsString, OsString)>,
    host: &dyn Host,
) -> Result<LaunchPlan, Invalid> {
    let mut notices = Vec::new();
    let devices = Devices::new(host.root());
    let environment = Environment(&env);
    if cli.is_given(Flag::LogsSpecs) {
        return Err(Invalid::LogsSpecs { given: cli.given(Flag::LogsSpecs) });
    }
    let nodes = nodes::resolve(&cli, environment, host, &devices, &mut notices)?;
    let checks = checks::resolve(&cli, &nodes, environment, host, &mut notices)?;
    let ResolvedRendezvous { rendezvous, serve_master, mut terms } =
        rendezvous::resolve(&cli, &nodes, environment, host, &mut notices)?;
    terms.check.clone_from(&checks.terms);
    terms.hang = hang::terms(&cli, environment)?;
    let Identity { node_rank, address, node_ip, attributes } =
        identity::resolve(&cli, environment, &devices, &rendezvous)?;
    let secret = NodeSecret::new(&host.fresh_id());
    let node_id = secret.node_id();
    let mut master =
        job_master::resolve(&cli, environment, host, (&rendezvous, serve_master), nodes.max, &node_id)?;
    if rendezvous.endpoint().is_some() {
        let has_file = !cli.bytes(Flag::JobTokenFile).is_empty();
        notices.extend(crate::job_token::empty_variable(has_file, environment));
    }
    let max_restarts =
        at_least_zero(&cli, Flag::MaxRestarts, "a whole number, at least 0 (max_restarts must be >= 0)")?
            .unwrap_or(0);
    let logs = output::resolve(&cli, environment, host, nodes.local_world_size, &mut notices)?;
    master.stacks.folders = hang::folders(environment, hang::log_folder(&logs));
    let job_folder = master::job_folder(Some(&terms.run_id));
    let stack_folders = master.stacks.folders.iter().map(|folder| folder.of_job(&job_folder)).collect();
    let counts_steps = hang::is_progress_automatic(&cli)?;
    let reports_missing_progress = hang::is_asked_for(&cli, environment);
    let event_log = output::event_log(&cli)?;
    let log = log::resolve(&cli, environment)?;
    let report_json = output::report_json(&cli, environment, host)?;
    let (signals, signals_to_handle) = shutdown::signals(&cli, &mut notices)?;
    let shutdown_timeout = shutdown::timeout(&cli, environment)?;
    let command = command::resolve(&cli, environment, host, &mut notices)?;
    let warm = warm::resolve(&cli, environment, host, &mut notices)?;
    let checkpoint_memory = flash::memory(&cli)?;
    let virtual_local_rank = virtual_local_rank(&cli, environment, nodes.local_world_size)?;
    let port_choices = ports::choices(environment)?;
    let is_store_for_members = ports::is_store_for_members(environment)?;
    let gpu_share =
        gpu_share::resolve(&cli, environment, host, &devices, nodes.local_world_size, &mut notices)?;
    env.extend(gpu_share.variables);
    let environment = Environment(&env);
    // The last refusal, since it may run a tool.
    let gpus = gpus::resolve(
        &cli,
        environment,
        host,
        &devices,
        (nodes.local_world_size, checks.busy_permille),
        &mut notices,
    )?;
    gpus::set_variables(&gpus, &mut env);
    let environment = Environment(&env);
    let cpus = binding(&cli, environment, host, &devices, nodes.local_world_size, &mut notices)?;
    let local_addr = Some(cli.text(Flag::LocalAddr)?).filter(|addr| !addr.is_empty()).map(str::to_owned);
    let role = cli.text(Flag::Role)?.to_owned();
    without_effect(&cli, &mut notices)?;
    if !probes::LOADS_LIBRARIES && devices.kind() == Some("nvidia") {
        notices.push(
            format!("this dlrover-run is a statically linked binary and cannot load NVIDIA's libraries: its checks do not \
             test accelerators; {}", probes::OTHER_BUILD),
        );
    }
    if environment.get("TORCHELASTIC_ENABLE_FILE_TIMER").is_some_and(|value| value == "1") {
        notices.push(
            "`TORCHELASTIC_ENABLE_FILE_TIMER=1` is ignored: this launcher has no timer server, and workers get no \
             TORCHELASTIC_TIMER_FILE"
                .to_owned(),
        );
    }

    let shares_store = environment.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE").is_none_or(|value| value != "1");
    let master_port = match rendezvous {
        // torchrun shares the store of a static rendezvous whatever the variable is.
        Rendezvous::Static(_) => MasterPort::Served,
        _ if shares_store => MasterPort::Served,
        Rendezvous::Loopback | Rendezvous::C10d(_) | Rendezvous::Master(_) => MasterPort::LeftToRankZero,
    };
    // An empty HIP_VISIBLE_DEVICES is ignored, as above.
    let visible = [
        ("MACA_VISIBLE_DEVICES", environment.get("MACA_VISIBLE_DEVICES")),
        ("HIP_VISIBLE_DEVICES", environment.get_filled("HIP_VISIBLE_DEVICES")),
        ("CUDA_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES")),
    ]
    .into_iter()
    .find_map(|(variable, list)| {
        Some(VisibleList { variable: variable.to_owned(), list: list?.to_string_lossy().into_owned() })
    });
    let gpu_terms = GpuTerms {
        // Others use a shared device by design: the plugin has seen to it that there is room.
        busy_permille: gpu_share.terms.is_none().then_some(checks.busy_permille),
        needed: nodes.local_world_size,
        visible,
    };
    let tool_path = environment.tool_path().to_owned();
    let sets_threads = environment.get("OMP_NUM_THREADS").is_none() && nodes.local_world_size > 1;
    let mut inherited = token_in_environment::without(env);
    if sets_threads {
        notices.push(format!(
            "OMP_NUM_THREADS is not set: each of the {} workers gets 1, so that together they do not overload this \
             node",
            nodes.local_world_size
        ));
        inherited.push(("OMP_NUM_THREADS".into(), "1".into()));
    }
    Ok(LaunchPlan {
        agent: AgentConfig {
            run_id: terms.run_id.clone(),
            node_id,
            secret,
            node_rank,
            terms,
            attributes,
            local_world_size: nodes.local_world_size,
            role,
            address,
            node_ip,
            command,
            max_restarts,
            shutdown_timeout,
            master_port,
            is_store_for_members,
            port_choices,
            signals,
            check_command: checks.command.clone(),
            gpus: gpu_terms,
            tool_path,
            gpu_share: gpu_share.terms,
            switchbox: checks.switchbox.clone(),
            logs,
            counts_steps,
            reports_missing_progress,
            stack_folders,
            warm,
            checkpoint_memory,
            env: EnvConfig { inherited, virtual_local_rank, signals_to_handle },
            cpus,
        },
        rendezvous,
        master,
        local_addr,
        notices,
        propagate_exit_code: cli.is_on(Flag::PropagateExitCode),
        report_json,
        log,
        event_log,
        checks,
        gpu_locks: gpus.locks,
    })
}

/// A whole number that may not be negative. Beyond 32 bits it is the largest: no run lasts that long.
fn at_least_zero(cli: &Cli, flag: Flag, range: &'static str) -> Result<Option<u32>, Invalid> {
    match cli.int(flag) {
        None => Ok(None),
        Some(..0) => Err(Invalid::OutOfRange { given: cli.given(flag), range }),
        Some(number) => Ok(Some(u32::try_from(number).unwrap_or(u32::MAX))),
    }
}

/// `--virtual-local-rank` needs an entry of the visible devices for each worker, where there is a list.
fn virtual_local_rank(cli: &Cli, env: Environment<'_>, workers: u32) -> Result<bool, Invalid> {
    if !cli.is_on(Flag::VirtualLocalRank) {
        return Ok(false);
    }
    // An empty HIP_VISIBLE_DEVICES is ignored, an empty CUDA_VISIBLE_DEVICES lists one nameless device: torchrun's.
    let list = match env.get_filled("HIP_VISIBLE_DEVICES") {
        Some(value) => Some(("HIP_VISIBLE_DEVICES", value)),
        None => env.get("CUDA_VISIBLE_DEVICES").map(|value| ("CUDA_VISIBLE_DEVICES", value)),
    };
    if let Some((name, value)) = list {
        let listed = value.to_string_lossy().split(',').count();
        if listed < workers as usize {
            let given = crate::cli::Given::in_variable(name, value);
            return Err(Invalid::TooFewDevices { given, workers, listed });
        }
    }
    Ok(true)
}

/// The CPUs of each worker; none where no worker is bound.
fn binding(
    cli: &Cli,
    env: Environment<'_>,
    host: &dyn Host,
    devices: &Devices<'_>,
    workers: u32,
    notices: &mut Vec<String>,
) -> Result<Vec<Vec<usize>>, Invalid> {
    let (flag, mode) = match numa::Mode::from_name(cli.text(Flag::NumaBinding)?) {
        Some(mode) => (Flag::NumaBinding, mode),
        None if cli.is_on(Flag::NumaAffinity) => (Flag::NumaAffinity, numa::Mode::Node),
        None => return Ok(Vec::new()),
    };
    let accelerators = devices.visible(env);
    if flag == Flag::NumaAffinity && accelerators.is_empty() {
        notices.push(
            "--numa-affinity: no accelerator found on this node, so no worker is bound to CPUs".to_owned(),
        );
        return Ok(Vec::new());
    }
    numa::bind(mode, workers, &accelerators, &host.allowed_cpus(), host.root())
        .map_err(|why| Invalid::Binding { given: cli.given(flag), why })
}

/// An option that is read and changes nothing.
fn does_nothing(cli: &Cli, flag: Flag, why: &str) -> String {
    format!("`{}` is ignored: {why}", cli.given(flag))
}

/// Checks the options that have no effect here: each that is given is reported once; an invalid --monitor-interval
/// is refused.
fn without_effect(cli: &Cli, notices: &mut Vec<String>) -> Result<(), Invalid> {
    // Its default exists for torchrun's polling; a nonsensical value is still a mistake.
    if !cli.float(Flag::MonitorInterval).is_some_and(|seconds| seconds > 0.0) {
        return Err(Invalid::OutOfRange {
            given: cli.given(Flag::MonitorInterval),
            range: "a number of seconds above 0",
        });
    }
    for spec in OPTIONS {
        let is_used = if spec.kind == Kind::Switch { cli.is_on(spec.flag) } else { cli.is_given(spec.flag) };
        if let (true, Some(why)) = (is_used, spec.ignored) {
            notices.push(does_nothing(cli, spec.flag, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
