//! One of four nodes is silent: it joins, its port accepts connections, and it never answers. How long until it is
//! excluded.
//!
//! Three nodes are real launchers; the silent one is simulated here.

use std::{
    error::Error,
    net::TcpListener,
    process::Stdio,
    time::{Duration, Instant},
};

use master_proto::{
    PROTOCOL_VERSION,
    pb::{self, master_client::MasterClient, stream_message::Payload},
    trust::NodeSecret,
};
use tokio::time::timeout;
use tonic::{Request, transport::Endpoint};

use crate::{
    Outcome,
    figures::{Figures, goal, heading, line, progress},
    launcher::{Bench, Plan, Running, Side, TIMEOUT},
};

/// Goal of the issue, in seconds.
const GOAL: f64 = 10.0;

/// Measures silent nodes, one after another.
///
/// # Errors
/// The job does not end as it must.
pub fn measure(bench: &mut Bench, rounds: usize) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut verdicts = Figures::default();
    for round in 0..rounds {
        progress(format_args!("a silent node of four, round {} of {rounds}", round + 1))?;
        verdicts.add(one(bench, &runtime)?);
    }
    progress(format_args!(""))?;
    heading("a silent node of 4: start of the check -> its exclusion")?;
    line("ours", &verdicts, "s")?;
    goal("10 s", verdicts.median(), " s", GOAL)
}

fn one(bench: &mut Bench, runtime: &tokio::runtime::Runtime) -> Outcome<f64> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let (endpoint, id) = (format!("--rdzv-endpoint=127.0.0.1:{port}"), format!("--rdzv-id=bench-{port}"));
    // The others continue without it.
    let meeting = ["--nnodes=3:4", "--rdzv-conf=last_call_timeout=30", "--rdzv-backend=c10d", &endpoint, &id];
    bench.stamps.clear()?;
    let mut launchers: Vec<Running> = Vec::new();
    for number in 0..3 {
        let rank = format!("--node-rank={number}");
        let options = ["--network-check", &rank];
        let plan = Plan { workers: 1, options: &options, arguments: &["once", "0"], stdout: Stdio::null() };
        launchers.push(bench.launch(Side::Ours, &meeting, plan, &format!("stderr-{number}"))?);
    }
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let excluded = silent_node(port, silent.local_addr()?.port(), format!("bench-{port}"));
    let seconds =
        runtime.block_on(async { timeout(TIMEOUT, excluded).await }).map_err(|_| "no verdict came")?;
    let seconds = seconds.map_err(|error| {
        let outputs: Vec<String> = launchers.iter().map(Running::stderr).collect();
        format!("{error}\n{}", outputs.join("\n---\n"))
    })?;
    for launcher in &mut launchers {
        launcher.succeed()?;
    }
    Ok(seconds)
}

/// Returns the seconds from the start of the check to its exclusion.
async fn silent_node(master: u16, own: u16, job: String) -> Result<f64, Box<dyn Error>> {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{master}"))?;
    let channel = loop {
        match endpoint.connect().await {
            Ok(channel) => break channel,
            // The launcher that serves it has just been started.
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let mut client = MasterClient::new(channel);
    let secret = NodeSecret::new(&uuid::Uuid::new_v4().to_string());
    let node_id = secret.node_id().0;
    let subscribe = pb::SubscribeRequest { protocol_version: PROTOCOL_VERSION, node_id: node_id.clone() };
    let mut subscribe = Request::new(subscribe);
    secret.put_on(&mut subscribe);
    let mut pushes = client.subscribe(subscribe).await?.into_inner();
    let request = pb::JoinRequest {
        node_id,
        local_world_size: 1,
        role: "default".to_owned(),
        node_rank: Some(3),
        address: Some("127.0.0.1".to_owned()),
        terms: Some(terms(job)),
        attributes: Some(pb::NodeAttributes { host_name: "silent".to_owned(), ..Default::default() }),
        checked: Some(pb::Checked { local: Some(pb::LocalCheck::default()), port: u32::from(own) }),
        ..Default::default()
    };
    let mut request = Request::new(request);
    secret.put_on(&mut request);
    client.join(request).await?;
    let mut began = Instant::now();
    loop {
        let message = pushes.message().await?.ok_or("the stream ended")?;
        match message.payload {
            // The first test begins when the last node has joined.
            Some(Payload::Check(order)) if order.at.is_some_and(|at| at.round == 0) => began = Instant::now(),
            Some(Payload::Excluded(_)) => return Ok(began.elapsed().as_secs_f64()),
            Some(Payload::JobEnd(end)) => return Err(format!("the job ended: {end:?}").into()),
            _ => {}
        }
    }
}

/// The terms of the launchers' options.
fn terms(run_id: String) -> pb::Terms {
    pb::Terms {
        run_id,
        min_nodes: 3,
        max_nodes: 4,
        node_unit: 1,
        last_call_millis: 30_000,
        join_timeout_millis: 600_000,
        require_uniform: false,
        save_at_breakpoint: false,
        hang: Some(pb::HangTerms {
            timeout_millis: 300_000,
            grace_millis: 1_800_000,
            on_hang: pb::OnHang::Dump.into(),
            ..pb::HangTerms::default()
        }),
        check: Some(pb::CheckTerms {
            exclude_straggler: false,
            straggler_permille: 2000,
            max_rounds: 8,
            deadlines: Some(pb::CheckDeadlines {
                floor_millis: 2000,
                hard_millis: 15_000,
                median_permille: 3000,
                quorum_permille: 250,
                kill_grace_millis: 1000,
            }),
            has_command: false,
            measures_bandwidth: false,
            reuse_millis: 0,
            on_inconclusive: pb::OnInconclusive::Fail.into(),
            taint_flaky: pb::Tainting::Confirmed.into(),
            on_bad_path: pb::OnBadPath::Exclude.into(),
        }),
    }
}
