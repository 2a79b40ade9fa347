//! What it costs to watch a job: the same rounds with and without `--http`, and what a scrape takes.

use std::{
    io::{self, Write as _},
    time::{Duration, Instant},
};

use master_proto::pb::{self, master_client::MasterClient};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    agents::{Agents, last},
    case::start,
    master::Plan,
};
use crate::{
    Outcome,
    figures::{Figures, Short, goal, heading, progress},
};

/// How often each thing is asked for.
const REQUESTS: usize = 100;

/// Prometheus' usual interval is 15 to 60 s; this is to be felt.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);

/// Of each request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Masters of each side, in turn.
const TURNS: [bool; 4] = [false, true, true, false];

/// The times of one side, in milliseconds.
#[derive(Debug, Default)]
struct Side {
    join: Figures,
    restart: Figures,
}

/// The times of requests, and the size of an answer.
#[derive(Debug, Default)]
struct Requests {
    took: Figures,
    bytes: usize,
}

/// Measures a number of agents.
pub(super) async fn measure(plan: &Plan, rounds: usize, hold: Duration) -> Outcome<()> {
    let count = plan.agents;
    let mut sides: [Side; 2] = Default::default();
    for (turn, is_watched) in TURNS.into_iter().enumerate() {
        let with = if is_watched { "with" } else { "without" };
        progress(format_args!("{count} agents {with} --http: {} of {}", turn + 1, TURNS.len()))?;
        let http = WebServer::free()?;
        let mut plan = plan.clone();
        if is_watched {
            plan.args = vec![format!("--http={}", http.0)];
        }
        let master = start(&plan, 0, None).await?;
        let (mut agents, ..) = Agents::join_all(master.port, count).await?;
        let watchers = if is_watched { http.watchers() } else { JoinSet::new() };
        let side = &mut sides[usize::from(is_watched)];
        for round in 0..rounds {
            side.join.add(last(&agents.last_join(round).await?));
            side.restart.add(last(&agents.fail(round).await?.assigned));
        }
        drop(watchers);
        if turn + 2 == TURNS.len() {
            requests(&http, master.port, count).await?;
            if !hold.is_zero() {
                progress(format_args!("http://{}/ for {} s", http.0, hold.as_secs()))?;
                agents.idle(hold).await?;
            }
        }
    }
    progress(format_args!(""))?;
    let [without, with] = &sides;
    heading(&format!(
        "{count} agents, with --http scraped every second and followed by a page, and without"
    ))?;
    row("last join -> last assignment", &without.join, &with.join)?;
    row("failure -> last assignment, next round", &without.restart, &with.restart)
}

fn row(name: &str, without: &Figures, with: &Figures) -> Outcome<()> {
    writeln!(
        io::stdout(),
        "  {name:40} without {} ms (worst of {}: {}), with {} ms (worst {})",
        Short(without.median()),
        without.len(),
        Short(without.at(1.0)),
        Short(with.median()),
        Short(with.at(1.0))
    )?;
    Ok(())
}

/// Asks an idle master for each thing.
async fn requests(http: &WebServer, port: u16, count: usize) -> Outcome<()> {
    progress(format_args!(""))?;
    heading(&format!("{count} agents, {REQUESTS} requests of each"))?;
    for (path, goal_ms) in [("/metrics", Some(50.0)), ("/status.json", None), ("/", None), ("/healthz", None)]
    {
        let mut requests = Requests::default();
        for _ in 0..REQUESTS {
            let began = Instant::now();
            requests.bytes = http.get(path).await?.len();
            requests.took.add(ms(began));
        }
        print(path, &requests, goal_ms)?;
    }
    let mut client = MasterClient::connect(format!("http://127.0.0.1:{port}")).await?;
    let mut requests = Requests::default();
    for _ in 0..REQUESTS {
        let began = Instant::now();
        requests.bytes = client.show_status(pb::ShowStatusRequest {}).await?.into_inner().json.len();
        requests.took.add(ms(began));
    }
    print("ShowStatus (dlrover-diag status)", &requests, Some(100.0))
}

fn print(name: &str, Requests { took, bytes }: &Requests, goal_ms: Option<f64>) -> Outcome<()> {
    let (median, slowest) = (Short(took.median()), Short(took.at(1.0)));
    writeln!(io::stdout(), "  {name:34} {bytes} bytes in {median} ms (longest {slowest})")?;
    goal_ms.map_or(Ok(()), |most| goal(&format!("{most} ms, the longest"), took.at(1.0), " ms", most))
}

/// Where the web server is.
#[derive(Debug, Clone)]
struct WebServer(std::net::SocketAddr);

impl WebServer {
    /// A port that is free now.
    fn free() -> Outcome<Self> {
        Ok(Self(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?))
    }

    async fn get(&self, path: &str) -> Outcome<Vec<u8>> {
        let asking = async {
            let mut stream = TcpStream::connect(self.0).await?;
            stream.write_all(request(path).as_bytes()).await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            io::Result::Ok(answer)
        };
        let answer = timeout(TIMEOUT, asking).await??;
        if answer.starts_with(b"HTTP/1.1 200 ") {
            Ok(answer)
        } else {
            Err(format!("{path}: {}", String::from_utf8_lossy(&answer[..answer.len().min(200)])).into())
        }
    }

    /// A Prometheus and a page.
    fn watchers(&self) -> JoinSet<()> {
        let mut watchers = JoinSet::new();
        let prometheus = self.clone();
        watchers.spawn(async move {
            let mut scrapes = interval(SCRAPE_INTERVAL);
            scrapes.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                scrapes.tick().await;
                let _scraped = prometheus.get("/metrics").await;
            }
        });
        let address = self.0;
        watchers.spawn(async move {
            let Ok(mut stream) = TcpStream::connect(address).await else { return };
            if stream.write_all(request("/status-stream").as_bytes()).await.is_ok() {
                let _ended = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            }
        });
        watchers
    }
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
}

fn ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}
