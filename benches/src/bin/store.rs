//! Our store's server and torch's own, under the same load, in one run.
//!
//!     TORCH_PYTHON=.../bin/python cargo run --profile dist -p dlrover-benches --bin store [-- ROUNDS [MILLISECONDS]]
//!
//! Both servers are processes of their own on 127.0.0.1; the load comes from this one, over raw sockets, each
//! client waiting for its reply before it asks again. A round runs every case on both, in turn, so that a noisy
//! machine disturbs both alike. Without TORCH_PYTHON only ours is measured. Nothing is asserted.

use std::{
    error::Error,
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    rc::Rc,
    time::{Duration, Instant},
};

use dlrover_benches::figures::progress;
use store::{Limits, Reply, Request, StoreServer, bind_loopback};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::LocalSet,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const CLIENTS: [usize; 3] = [1, 32, 256];

/// Torch's server looks up the name of each peer on its only thread; where the name server does not answer,
/// that is 5 s each.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

const TORCH_SERVER: &str = "
import sys, torch.distributed as dist
store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// All clients connect at once and have their ping answered.
    Connect,
    Add,
    /// What a torch client sends for `get`, one after the other.
    WaitGet,
    /// SET has no reply, so a PING behind it says when it was served.
    SetPing,
    Get4K,
}

const CASES: [Case; 5] = [Case::Connect, Case::Add, Case::WaitGet, Case::SetPing, Case::Get4K];

/// One server under test.
struct Served {
    name: &'static str,
    child: Child,
    address: SocketAddr,
}

/// What one case on one server gave.
#[derive(Debug, Default, Clone)]
struct Measured {
    ops_per_s: Vec<f64>,
    latencies_us: Vec<f32>,
    cpu_s: f64,
    ops: usize,
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some("--serve") {
        return serve();
    }
    let rounds: usize = first.map_or(Ok(5), |text| text.parse())?;
    let span = Duration::from_millis(arguments.next().map_or(Ok(500), |text| text.parse())?);

    let mut servers = vec![Served::start("ours", Command::new(std::env::current_exe()?).arg("--serve"))?];
    if let Ok(python) = std::env::var("TORCH_PYTHON") {
        servers.push(Served::start("torch", Command::new(python).arg("-c").arg(TORCH_SERVER))?);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut measured = vec![vec![Measured::default(); servers.len()]; CLIENTS.len() * CASES.len()];
    LocalSet::new().block_on(&runtime, async {
        let mut streams = Vec::new();
        for server in &servers {
            let mut of_server = Vec::new();
            for (clients, _) in rows().filter(|(_, case)| *case != Case::Connect) {
                progress(format_args!("connecting {clients} to {}", server.name))?;
                let mut connected = Vec::new();
                for _ in 0..clients {
                    connected.push(connect(server.address).await?);
                }
                of_server.push(connected);
            }
            streams.push(of_server);
        }
        for round in 0..rounds {
            let mut loaded = 0;
            for (row, (clients, case)) in rows().enumerate() {
                for turn in 0..servers.len() {
                    let which = (turn + round) % servers.len();
                    let (server, into) = (&servers[which], &mut measured[row][which]);
                    progress(format_args!(
                        "round {} of {rounds}: {clients} clients, {case:?}, {}",
                        round + 1,
                        server.name
                    ))?;
                    let cpu_before = server.cpu_s()?;
                    match case {
                        Case::Connect => measure_connect(clients, server.address, into).await?,
                        _ => measure(case, &mut streams[which][loaded], span, into).await?,
                    }
                    into.cpu_s += server.cpu_s()? - cpu_before;
                }
                loaded += usize::from(case != Case::Connect);
            }
        }
        Outcome::Ok(())
    })?;
    progress(format_args!(""))?;
    print(&servers, measured)
}

fn rows() -> impl Iterator<Item = (usize, Case)> {
    CLIENTS.into_iter().flat_map(|clients| CASES.into_iter().map(move |case| (clients, case)))
}

/// Ours, in a process of its own, until stdin ends.
fn serve() -> Outcome<()> {
    let listeners = bind_loopback(0)?;
    writeln!(std::io::stdout(), "{}", listeners[0].local_addr()?.port())?;
    let _server = StoreServer::start(listeners, Limits::default())?;
    std::io::stdin().lines().for_each(drop);
    Ok(())
}

impl Served {
    fn start(name: &'static str, command: &mut Command) -> Outcome<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or("no stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let port: u16 = line.trim().parse()?;
        Ok(Served { name, child, address: ([127, 0, 0, 1], port).into() })
    }

    /// User and system time so far, by the kernel's clock of 100 Hz.
    fn cpu_s(&self) -> Outcome<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks: u64 =
            after_name.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
        Ok(ticks as f64 / 100.0)
    }

    fn pss_kib(&self) -> Option<String> {
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id())).ok()?;
        rollup.lines().find_map(|line| Some(line.strip_prefix("Pss:")?.trim().to_owned()))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All clients at once. Those not through within the deadline count as having taken all of it.
async fn measure_connect(clients: usize, address: SocketAddr, measured: &mut Measured) -> Outcome<()> {
    let began = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|_| tokio::task::spawn_local(tokio::time::timeout(CONNECT_DEADLINE, connect(address))))
        .collect();
    let mut connected = 0;
    for task in tasks {
        // Kept until all have connected, as ranks do.
        if let Ok(stream) = task.await? {
            stream?;
            connected += 1;
        }
        measured.latencies_us.push(began.elapsed().as_secs_f32() * 1e6);
    }
    measured.ops_per_s.push(connected as f64 / began.elapsed().as_secs_f64());
    measured.ops += connected;
    Ok(())
}

async fn measure(
    case: Case,
    streams: &mut Vec<TcpStream>,
    span: Duration,
    measured: &mut Measured,
) -> Outcome<()> {
    let began = Instant::now();
    let tasks: Vec<_> = std::mem::take(streams)
        .into_iter()
        .enumerate()
        .map(|(number, stream)| tokio::task::spawn_local(load(case, number, stream, began + span)))
        .collect();
    let mut ops = 0;
    for task in tasks {
        let (stream, latencies) = task.await??;
        streams.push(stream);
        ops += latencies.len();
        measured.latencies_us.extend(latencies);
    }
    measured.ops_per_s.push(ops as f64 / began.elapsed().as_secs_f64());
    measured.ops += ops;
    Ok(())
}

async fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&bytes_of(&[Request::Validate, Request::Ping { nonce: 1 }])).await?;
    stream.read_exact(&mut [0; 4]).await?;
    Ok(stream)
}

async fn load(
    case: Case,
    number: usize,
    mut stream: TcpStream,
    until: Instant,
) -> std::io::Result<(TcpStream, Vec<f32>)> {
    let key = Rc::<str>::from(format!("/bench/{number}"));
    let key = || (&*key).into();
    let value = |len: usize| vec![b'x'; len].into();
    let reply_len = |reply: Reply| reply.encoded_len();
    // Each exchange: what is sent, and how much comes back.
    let (prepare, exchanges): (Vec<Request>, Vec<(Vec<Request>, usize)>) = match case {
        Case::Connect => (vec![], vec![]),
        Case::Add => (
            vec![Request::Delete(key())],
            vec![(vec![Request::Add { key: key(), delta: 1 }], reply_len(Reply::Number(0)))],
        ),
        Case::WaitGet => (
            vec![Request::Set { key: key(), value: value(64) }, Request::QueueLen(key())],
            vec![
                (vec![Request::Wait(vec![key()])], 1),
                (vec![Request::Get(key())], reply_len(Reply::Value(value(64)))),
            ],
        ),
        Case::SetPing => (
            vec![Request::QueueLen(key())],
            vec![(vec![Request::Set { key: key(), value: value(64) }, Request::Ping { nonce: 1 }], 4)],
        ),
        Case::Get4K => (
            vec![Request::Set { key: key(), value: value(4096) }, Request::QueueLen(key())],
            vec![(vec![Request::Get(key())], reply_len(Reply::Value(value(4096))))],
        ),
    };
    let mut buffer = vec![0; 8192];
    stream.write_all(&bytes_of(&prepare)).await?;
    stream.read_exact(&mut buffer[..8]).await?;
    let exchanges: Vec<_> = exchanges.iter().map(|(requests, len)| (bytes_of(requests), *len)).collect();
    let mut latencies = Vec::new();
    let mut began = Instant::now();
    while began < until {
        for (request, reply_len) in &exchanges {
            stream.write_all(request).await?;
            stream.read_exact(&mut buffer[..*reply_len]).await?;
        }
        let ended = Instant::now();
        latencies.push((ended - began).as_secs_f32() * 1e6);
        began = ended;
    }
    Ok((stream, latencies))
}

fn bytes_of(requests: &[Request]) -> Vec<u8> {
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| request.encode(&mut bytes));
    bytes
}

fn print(servers: &[Served], mut measured: Vec<Vec<Measured>>) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{:>7} {:8} {:6} {:>9} {:>8} {:>8} {:>10} {:>11}  (lowest and highest round)",
        "clients", "case", "server", "ops/s", "p50 us", "p99 us", "cpu us/op", "ours/torch"
    )?;
    for ((clients, case), row) in rows().zip(&mut measured) {
        let ratio = match &row[..] {
            [ours, torch] => {
                let ratios = ours.ops_per_s.iter().zip(&torch.ops_per_s).map(|(ours, torch)| ours / torch);
                let ratio = median(&mut ratios.collect::<Vec<_>>());
                format!("{ratio:.2}")
            }
            _ => "-".to_owned(),
        };
        for (server, of) in servers.iter().zip(row) {
            of.latencies_us.sort_by(f32::total_cmp);
            let at = |share: f64| {
                let last = of.latencies_us.len().saturating_sub(1);
                of.latencies_us.get((last as f64 * share) as usize).copied().unwrap_or(f32::NAN)
            };
            let (p50, p99) = (at(0.5), at(0.99));
            let cpu_us = of.cpu_s * 1e6 / of.ops as f64;
            let ops_per_s = median(&mut of.ops_per_s);
            let (low, high) = (of.ops_per_s[0], of.ops_per_s[of.ops_per_s.len() - 1]);
            writeln!(
                out,
                "{clients:>7} {:8} {:6} {ops_per_s:>9.0} {p50:>8.1} {p99:>8.1} {cpu_us:>10.2} {:>11}  ({low:.0} .. {high:.0})",
                format!("{case:?}"),
                server.name,
                if server.name == "ours" { &ratio } else { "" },
            )?;
        }
    }
    for server in servers {
        let pss = server.pss_kib().unwrap_or_else(|| "unknown".to_owned());
        writeln!(out, "{}: proportional set size {pss} at the end", server.name)?;
    }
    Ok(())
}

/// Leaves them in order. Of an even number the higher middle one.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}
