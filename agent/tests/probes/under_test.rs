//! A program that is a probe when it is called so, as the launcher is.
//!
//! By another name it stands for an agent that dies: `start-ring HOST PORT` starts a ring with a neighbour that never
//! answers, says the probe's process id, and waits.

use std::{
    io::{Read as _, Write as _},
    process::ExitCode,
    time::Duration,
};

use agent::probes::{Helper, Listener, RingMode, RingPlan, run_if_probe, start_ring};

fn main() -> ExitCode {
    if let Some(code) = run_if_probe() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [host, port] = &arguments[..] else { return ExitCode::FAILURE };
    let (Ok(port), Ok(listener)) = (port.parse(), Listener::bind(None, 0)) else { return ExitCode::FAILURE };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    runtime.block_on(async {
        let plan = RingPlan {
            token: 1,
            seed: 1,
            me: 0,
            members: vec![host.clone(), host.clone()],
            ports: vec![listener.port(), port],
            connect_patience: Duration::from_secs(600),
            mode: RingMode::Check,
        };
        let _handle = start_ring(plan, &listener, &Helper::default(), None);
        let mut stdout = std::io::stdout();
        let _told = writeln!(stdout, "started").and_then(|()| stdout.flush());
        // Until the test closes it, or kills us.
        let _end = std::io::stdin().read(&mut [0]);
    });
    ExitCode::SUCCESS
}
