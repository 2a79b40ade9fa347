//! Shows what the front door makes of a command line, and how long it takes: `TIMES=1000` repeats it.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool for developers")]

use std::{env, process::ExitCode, time::Instant};

use launcher::{
    front_door::{FrontDoor, front_door},
    host::ThisHost,
};

fn main() -> ExitCode {
    let args: Vec<_> = env::args_os().collect();
    let times: u32 = env::var("TIMES").ok().and_then(|times| times.parse().ok()).unwrap_or(0);
    let start = Instant::now();
    let mut answer = front_door(&args, env::vars_os().collect(), &ThisHost);
    let first = start.elapsed();
    let again = Instant::now();
    for _ in 0..times {
        answer = front_door(&args, env::vars_os().collect(), &ThisHost);
    }
    if times > 0 {
        eprintln!("first {first:?}, then {:?} each", again.elapsed() / times);
    }
    match answer {
        FrontDoor::Run(mut plan) => {
            plan.agent.env.inherited.clear();
            println!("{plan:#?}");
            ExitCode::SUCCESS
        }
        FrontDoor::Print { text } => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        FrontDoor::Refused { message, exit_code, usage } => {
            if let Some(usage) = usage {
                eprintln!("{usage}");
            }
            eprintln!("dlrover-run: error: {message}");
            ExitCode::from(exit_code)
        }
    }
}
