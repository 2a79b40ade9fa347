//! What a run does, in lines for whoever asks (`LOGLEVEL=INFO`): seats, workers that start and end, rounds that are over, and
//! the job master that is lost and found. Failures are told anyway, in words of their own.

use diagnosis::counted::counted;
use rules::{
    failure::{ExitCause, Outcome},
    push::Push,
    worker_group::{Effect, Event},
    world::Assignment,
};
use tracing::info;

/// Tells what the agent's machine heard and decided.
pub(crate) fn tell(event: &Event, effects: &[Effect]) {
    match event {
        Event::Pushed(Push::Seat(assignment)) => info!("{}", seat(assignment)),
        Event::WorkerStarted { round, local_rank, pid } => {
            info!("round {round}: the worker with local rank {local_rank} runs, pid {pid}");
        }
        Event::WorkerExited { round, exit, .. } => {
            let (local_rank, pid) = (exit.local_rank, exit.pid);
            info!("round {round}: the worker with local rank {local_rank}, pid {pid}, {}", end(exit.cause));
        }
        Event::Pushed(Push::Regroup { round, why, .. }) => info!("round {round} is over: {why}"),
        Event::MasterBack => info!("connected to the job master"),
        Event::MasterAway { reason } => info!("no connection to the job master: {reason}"),
        Event::Signalled { signal } => info!("told to end by signal {signal}"),
        Event::TreeGone { round } => info!("round {round}: no process of its workers is left"),
        _ => {}
    }
    for effect in effects {
        match effect {
            Effect::Join { attempt, .. } => {
                info!("asks for a seat, after {}", counted(attempt.0 as usize, "restart"));
            }
            Effect::HostStore { round, .. } => info!("round {round}: this node opens the workers' store"),
            Effect::Finish { outcome: Outcome::Succeeded } => info!("the run ends well"),
            Effect::Finish { .. } => info!("the run ends"),
            _ => {}
        }
    }
}

fn seat(assignment: &Assignment) -> String {
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
        ExitCause::Code(0) => "ended well".to_owned(),
        ExitCause::Code(code) => format!("ended with exit code {code}"),
        ExitCause::Signal(signal) => format!("was killed by signal {signal}"),
    }
}
