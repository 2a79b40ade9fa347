//! The activity of a run, logged with `-v` or `LOGLEVEL=INFO`: configuration, rendezvous, assignments, starts and exits of
//! workers, ends of rounds, and the connection to the job master. Failures are always reported, with messages of their own.

use diagnosis::counted::counted;
use rules::{
    failure::{ExitCause, Outcome},
    push::Push,
    signal_name::signal_text,
    worker_group::{Effect, Event},
    world::Assignment,
};
use tracing::info;

use crate::resolve::{LaunchPlan, Rendezvous};

/// Logs what will be run.
pub(crate) fn log_plan(plan: &LaunchPlan) {
    info!("configuration: {}", configuration(plan));
    info!("rendezvous: {}", rendezvous(plan));
}

/// The configuration of the run, at its start.
fn configuration(plan: &LaunchPlan) -> String {
    let agent = &plan.agent;
    let (min, max) = (agent.terms.min_nodes, agent.terms.max_nodes);
    let nodes = if min == max { counted(max as usize, "node") } else { format!("{min} to {max} nodes") };
    let command: Vec<_> = agent.command.argv.iter().map(|word| word.to_string_lossy()).collect();
    format!(
        "run id {}, {nodes}, {} on this node, max restarts {}, command: {}",
        agent.run_id,
        counted(agent.local_world_size as usize, "worker"),
        agent.max_restarts,
        command.join(" ")
    )
}

/// Where the nodes meet, in a few words, at the start of the run.
pub(crate) fn rendezvous(plan: &LaunchPlan) -> String {
    let asked = |rank: Option<rules::NodeRank>| match rank {
        Some(rank) => format!(", as node rank {rank}"),
        None => String::new(),
    };
    match &plan.rendezvous {
        Rendezvous::Loopback => "this node alone".to_owned(),
        Rendezvous::Master(endpoint) => {
            format!("job master at {endpoint} (DLROVER_MASTER_ADDR){}", asked(plan.agent.node_rank))
        }
        Rendezvous::Static(endpoint) => format!("static, at {endpoint}{}", asked(plan.agent.node_rank)),
        Rendezvous::C10d(endpoint) => format!("c10d, at {endpoint}{}", asked(plan.agent.node_rank)),
    }
}

/// Logs an event of the agent and the effects that were decided. `is_over`: this node knows that the job has ended.
pub(crate) fn log_event(event: &Event, effects: &[Effect], is_over: bool) {
    match event {
        Event::Pushed(Push::Assigned(assignment)) => info!("{}", assignment_line(assignment)),
        Event::WorkerStarted { round, local_rank, pid } => {
            info!("round {round}: started local rank {local_rank}, pid {pid}");
        }
        Event::WorkerExited { round, exit, .. } => {
            let (local_rank, pid) = (exit.local_rank, exit.pid);
            info!("round {round}: local rank {local_rank}, pid {pid}, {}", end(exit.cause));
        }
        Event::Pushed(Push::Regroup { round, why, .. }) => info!("round {round} is over: {why}"),
        Event::MasterBack => info!("connected to the job master"),
        // The master of a job that is over exits.
        Event::MasterAway { .. } if is_over => {}
        Event::MasterAway { reason } => info!("no connection to the job master: {reason}"),
        Event::Signalled { signal } => info!("stopped by {}", signal_text(*signal)),
        Event::TemplateReady { kib, .. } => {
            info!("the template of warm workers is ready: {} MiB", kib / 1024)
        }
        Event::TreeGone { round } => info!("round {round}: all processes of its workers have exited"),
        _ => {}
    }
    for effect in effects {
        match effect {
            Effect::Join { attempt, .. } => {
                info!("requesting an assignment, after {}", counted(attempt.0 as usize, "restart"));
            }
            Effect::HostStore { round, .. } => {
                info!("round {round}: opening the workers' store on this node")
            }
            Effect::StartTemplate { .. } => info!("starting the template of warm workers"),
            Effect::Finish { outcome: Outcome::Succeeded } => info!("the run succeeded"),
            Effect::Finish { .. } => info!("the run failed"),
            _ => {}
        }
    }
}

/// This node's place in a round.
fn assignment_line(assignment: &Assignment) -> String {
    let Assignment { round, node_rank, nodes, local_world_size, first_rank, world_size, .. } = assignment;
    let last = first_rank.saturating_add(local_world_size.saturating_sub(1));
    let ranks =
        if last == *first_rank { format!("rank {last}") } else { format!("ranks {first_rank}-{last}") };
    format!(
        "round {round}: node rank {node_rank} of {nodes}, {ranks} of {world_size}, MASTER_ADDR={} MASTER_PORT={}",
        assignment.master_addr, assignment.master_port
    )
}

fn end(cause: ExitCause) -> String {
    match cause {
        ExitCause::Code(0) => "succeeded".to_owned(),
        ExitCause::Code(code) => format!("exited with code {code}"),
        ExitCause::Signal(signal) => format!("killed by {}", signal_text(signal)),
    }
}
