//! A program that is a probe under the probe's name, as the launcher is. Under another name it stands for an agent:
//!
//! * `ring HOST PORT` starts a ring with a peer that never answers, prints a line, and waits;
//! * `command SCRIPT` starts a shell script as a check command, prints a line, and waits;
//! * `switchbox TOOL` starts a switchbox check with this tool, prints a line, and waits;
//! * `reap` reaps every child that exits, as the agent's loop does, while it checks the node, and prints the outcome.

use std::{
    io::{Read as _, Write as _},
    process::ExitCode,
    time::Duration,
};

use diagnosis::switchbox::{Expected, Rate, Settings, SocketPair};
use probes::{
    CommandPlan, Listener, LocalPlan, ProbeProgram, RingMode, RingPlan, SwitchboxProbe, SwitchboxTask,
    check_locally, check_switchbox, run_if_probe, start_command, start_ring,
};
use processes::reap::reap_exited;
use tokio::signal::unix::{SignalKind, signal};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    if let Some(code) = run_if_probe() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let message: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = runtime.map_err(Into::into).and_then(|runtime| {
        runtime.block_on(async {
            match message[..] {
                ["ring", host, port] => ring(host, port),
                ["command", script] => command(script),
                ["switchbox", tool] => switchbox(tool).await,
                ["reap"] => reap().await,
                _ => Err("no such part".into()),
            }
        })
    });
    outcome.map_or_else(|_| ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

fn ring(host: &str, port: &str) -> Outcome {
    let listener = Listener::bind(None, 0)?;
    let plan = RingPlan {
        token: 1,
        seed: 1,
        me: 0,
        members: vec![host.to_owned(), host.to_owned()],
        ports: vec![listener.port(), port.parse()?],
        connect_timeout: Duration::from_secs(600),
        mode: RingMode::Check,
    };
    let _handle = start_ring(plan, &listener, &ProbeProgram::default(), None);
    wait()
}

fn command(script: &str) -> Outcome {
    let plan = CommandPlan {
        argv: ["sh", "-c", script].map(Into::into).into(),
        rank: 0,
        world_size: 2,
        master_addr: "127.0.0.1".into(),
        master_port: 1,
        seed: 1,
        env: Vec::new(),
        grace: Duration::from_millis(100),
        output: None,
        program: ProbeProgram::default(),
    };
    let _handle = start_command(plan, None);
    wait()
}

async fn switchbox(tool: &str) -> Outcome {
    let settings = Settings {
        pairs: vec![SocketPair(0, 1)],
        are_pairs_given: true,
        min: Rate(1),
        min_channels: 1,
        expected: Expected::Any,
        models: Vec::new(),
    };
    let task = SwitchboxTask::new(settings, SwitchboxProbe::Mxom, Some(tool.as_ref()));
    let program = ProbeProgram::default();
    let check = check_switchbox(task, &program, None, None);
    tell("started")?;
    let _killed = check.await;
    Ok(())
}

/// Until the test closes the input, or kills this process.
fn wait() -> Outcome {
    tell("started")?;
    std::io::stdin().read_exact(&mut [0])?;
    Ok(())
}

async fn reap() -> Outcome {
    let mut children = signal(SignalKind::child())?;
    tokio::spawn(async move {
        while children.recv().await.is_some() {
            reap_exited(|_, _| ());
        }
    });
    let plan = LocalPlan { deadline: Duration::from_secs(120), ..LocalPlan::default() };
    let check = check_locally(plan).await;
    tell(&serde_json::to_string(&check)?)
}

fn tell(message: &str) -> Outcome {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{message}")?;
    stdout.flush()?;
    Ok(())
}
