//! Shows what the entry point makes of a command line, and how long it takes (`TIMES=1000` repeats it).
//! `FACTS=1` prints a JSON line instead, for `tests/torchrun_argparse.py`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool for developers")]

use std::{env, process::ExitCode, time::Instant};

use launcher::{
    entry::{Action, entry},
    host::ThisHost,
    resolve::LaunchPlan,
};

fn main() -> ExitCode {
    let args: Vec<_> = env::args_os().collect();
    let times: u32 = env::var("TIMES").ok().and_then(|times| times.parse().ok()).unwrap_or(0);
    let start = Instant::now();
    let mut answer = entry(&args, env::vars_os().collect(), &ThisHost);
    let first = start.elapsed();
    let again = Instant::now();
    for _ in 0..times {
        answer = entry(&args, env::vars_os().collect(), &ThisHost);
    }
    if times > 0 {
        eprintln!("first {first:?}, then {:?} each", again.elapsed() / times);
    }
    match answer {
        Action::Run(plan) if env::var_os("FACTS").is_some() => {
            println!("{}", facts(&plan));
            ExitCode::SUCCESS
        }
        Action::Run(mut plan) => {
            plan.agent.env.inherited.clear();
            println!("{plan:#?}");
            ExitCode::SUCCESS
        }
        Action::Print { text } => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Action::Refused { message, exit_code, usage } => {
            if let Some(usage) = usage {
                eprintln!("{usage}");
            }
            eprintln!("dlrover-run: error: {message}");
            ExitCode::from(exit_code)
        }
    }
}

/// What torchrun's configuration has too.
fn facts(plan: &LaunchPlan) -> serde_json::Value {
    let agent = &plan.agent;
    let bits = |streams: &[agent::Streams]| -> Vec<u8> {
        streams.iter().map(|streams| u8::from(streams.out) + 2 * u8::from(streams.err)).collect()
    };
    serde_json::json!({
        "nodes": [agent.terms.min_nodes, agent.terms.max_nodes],
        "local_world_size": agent.local_world_size,
        "role": agent.role,
        "run_id": agent.run_id.0,
        "max_restarts": agent.max_restarts,
        "shutdown_timeout": agent.shutdown_timeout.as_secs(),
        "signals_to_handle": agent.env.signals_to_handle,
        "virtual_local_rank": agent.env.virtual_local_rank,
        "redirects": bits(&agent.logs.redirects),
        "tee": bits(&agent.logs.tee),
        "prefix": agent.logs.prefix_template,
        "console_ranks": agent.logs.console_ranks,
        "stdout_filters": agent.logs.stdout_filters,
        "stderr_filters": agent.logs.stderr_filters,
        "local_addr": plan.local_addr,
        "meeting": match plan.rendezvous.endpoint() {
            Some(endpoint) => format!("{} {endpoint}", plan.rendezvous.backend()),
            None => "c10d alone".to_owned(),
        },
        "argv": agent.command.argv.iter().skip(1).map(|word| word.to_string_lossy()).collect::<Vec<_>>(),
    })
}
