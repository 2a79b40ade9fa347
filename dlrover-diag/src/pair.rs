//! `dlrover-diag pair`: the pair check of the network check, by hand, between two hosts.

use std::{
    io,
    net::ToSocketAddrs as _,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::ArgGroup;
use probes::{Listener, PairMeasured, RingError, dial_pair, listen_for_pair};
use rules::chain;
use serde::Serialize;

use super::log_line;
use launcher::{
    endpoint::Endpoint,
    failure::{FAILED, SUCCEEDED, USAGE},
    numbers::whole,
};

/// The default of `--patience`.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A day.
const LONGEST_TIMEOUT: u64 = 86_400;

/// Why a pair check gave no figures.
#[derive(Debug, thiserror::Error)]
enum PairError {
    /// Not an address of this host, or the port is in use.
    #[error("cannot listen on {at}")]
    Listen {
        /// Where.
        at: String,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// There was no connection for the next of several checks: the peer has exited, or the network failed.
    #[error(
        "no connection to the peer after {done} of {of} checks (if the peer has exited, give the same --repeat \
         on both hosts)"
    )]
    Left {
        /// What was done.
        done: u32,
        /// What was asked for.
        of: u32,
        /// The error.
        #[source]
        source: RingError,
    },
    /// The check.
    #[error(transparent)]
    Ring(RingError),
}

impl PairError {
    /// What `error` means after so many checks.
    fn after(done: u32, of: u32, error: RingError) -> Self {
        match error {
            RingError::NoPeer { .. } | RingError::CannotConnect { .. } if done > 0 => {
                Self::Left { done, of, source: error }
            }
            error => Self::Ring(error),
        }
    }
}

/// One check, as `--json` shows it.
#[derive(Debug, Serialize)]
struct Figures {
    latency_us: f64,
    sent_bytes_per_second: u64,
    received_bytes_per_second: u64,
    comm_ms: f64,
    sizes: [u64; 3],
    verified_bytes: u64,
}

impl From<PairMeasured> for Figures {
    fn from(measured: PairMeasured) -> Self {
        Self {
            latency_us: measured.latency.as_secs_f64() * 1e6,
            sent_bytes_per_second: measured.sent_per_second,
            received_bytes_per_second: measured.received_per_second,
            comm_ms: measured.comm.as_secs_f64() * 1e3,
            sizes: measured.sizes,
            verified_bytes: measured.verified,
        }
    }
}

impl Figures {
    fn for_people(&self) -> String {
        let sizes: Vec<String> = self.sizes.iter().map(|size| in_units(*size)).collect();
        format!(
            "latency {:.1} µs, sent {}, received {}; {} of known bytes received without an error, in {:.1} ms ({}, both ways on \
             two connections)",
            self.latency_us,
            speed(self.sent_bytes_per_second),
            speed(self.received_bytes_per_second),
            in_units(self.verified_bytes),
            self.comm_ms,
            sizes.join(", "),
        )
    }
}

fn in_units(bytes: u64) -> String {
    match bytes {
        ..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ => format!("{}.{} MiB", bytes >> 20, ((bytes % (1 << 20)) * 10) >> 20),
    }
}

fn speed(per_second: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let per_second = per_second as f64;
    format!("{:.0} MB/s ({:.2} Gbit/s)", per_second / 1e6, per_second * 8.0 / 1e9)
}

/// Checks the path between two hosts: latency, bandwidth both ways, and that every byte arrives right
#[derive(Debug, clap::Args)]
#[command(after_help = "\
On one host: dlrover-diag pair --listen 10.0.0.1
On the other, with the port that the first one prints: dlrover-diag pair --connect 10.0.0.1:PORT

Exit code: 0 when all checks passed, 1 when one failed, 2 when the command line cannot be used.")]
#[command(group = ArgGroup::new("end").args(["listen", "connect"]).required(true))]
pub(super) struct Arguments {
    /// Wait for the peer at this address or name of this host; without a port, at any that is free
    #[arg(long, value_name = "ADDR[:PORT]")]
    listen: Option<String>,
    /// Connect to the end that listens there
    #[arg(long, value_name = "ADDR:PORT")]
    connect: Option<String>,
    /// How many checks, one after the other; the same number at both ends
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=u32::MAX.into()), default_value = "1")]
    repeat: u32,
    /// How long to try to connect, and how long the peer may be silent; --listen waits for the first check as
    /// long as it takes, unless this is given [default: 10]
    #[arg(long = "patience", value_name = "SECONDS", value_parser = whole::<u64>(0..=LONGEST_TIMEOUT))]
    timeout: Option<u64>,
    /// One JSON document a check, one a line
    #[arg(long)]
    json: bool,
}

/// Runs one end of the pair check.
pub(super) fn main(arguments: &Arguments) -> ExitCode {
    let Arguments { listen: listen_at, connect: connect_to, repeat, .. } = arguments;
    let given_timeout = arguments.timeout.map(Duration::from_secs);
    let timeout = given_timeout.unwrap_or(TIMEOUT);
    let print = |measured: PairMeasured| {
        let figures = Figures::from(measured);
        let line = match arguments.json {
            true => serde_json::to_string(&figures).unwrap_or_default(),
            false => figures.for_people(),
        };
        // A closed output is not an error.
        let _closed = super::line(&line);
    };
    let end = if let Some(address) = connect_to {
        if !is_host_and_port(address) {
            return unusable(&format!("--connect {address}: expected ADDR:PORT"));
        }
        connect(address, *repeat, timeout, print)
    } else {
        let address = listen_at.as_deref().unwrap_or_default();
        let Some(at) = address_and_port(address) else {
            return unusable(&format!(
                "--listen {address}: expected ADDR[:PORT], an address or name of this host and a port from 0 to \
                 65535"
            ));
        };
        listen(at, *repeat, given_timeout, timeout, print)
    };
    match end {
        Ok(()) => ExitCode::from(SUCCEEDED),
        Err(error) => {
            log_line(format_args!("error: {}", chain(&error)));
            ExitCode::from(FAILED)
        }
    }
}

fn unusable(words: &str) -> ExitCode {
    log_line(format_args!("error: {words}"));
    ExitCode::from(USAGE)
}

/// Waits for the peer, and runs the checks. `first`: how long to wait for the first one; `None`: without a
/// limit.
fn listen(
    (host, port): (&str, u16),
    repeat: u32,
    first: Option<Duration>,
    timeout: Duration,
    print: impl Fn(PairMeasured),
) -> Result<(), PairError> {
    let at = Endpoint { host: host.to_owned(), port }.to_string();
    let failed = |source| PairError::Listen { at: at.clone(), source };
    let listener = bind(host, port).map_err(failed)?;
    let listening = listen_for_pair(&listener).map_err(PairError::Ring)?;
    let address = listener.local_addr().map_err(failed)?;
    // Alone on its line: scripts read it.
    log_line(format_args!("listening on {address}"));
    match first {
        Some(limit) => log_line(format_args!("waiting up to {} s for the peer", limit.as_secs())),
        None => log_line("waiting for the peer; press Ctrl-C to stop"),
    }
    for turn in 0..repeat {
        let within = if turn == 0 { first } else { Some(timeout) };
        print(listening.check(within, timeout).map_err(|error| PairError::after(turn, repeat, error))?);
    }
    Ok(())
}

/// The first address of the name that this host has.
fn bind(host: &str, port: u16) -> io::Result<Listener> {
    let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in (host, port).to_socket_addrs()? {
        // One address means one family; the unspecified one of IPv6 takes both.
        match Listener::bind(Some(address.ip()), port) {
            Ok(listener) => return Ok(listener),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

fn connect(
    address: &str,
    repeat: u32,
    timeout: Duration,
    print: impl Fn(PairMeasured),
) -> Result<(), PairError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Any number does; another one each time.
    let seed = u64::from(now.subsec_nanos()) << 32 | u64::from(std::process::id());
    for turn in 0..repeat {
        let checked = dial_pair(address, seed.wrapping_add(u64::from(turn) << 20), timeout);
        print(checked.map_err(|error| PairError::after(turn, repeat, error))?);
    }
    Ok(())
}

/// `10.0.0.1`, `10.0.0.1:7000`, `fd00::1`, `[fd00::1]:7000`, `node-0`, `node-0:7000`; port 0 where none is given.
fn address_and_port(words: &str) -> Option<(&str, u16)> {
    let bare = |host: &str| host.parse::<std::net::Ipv6Addr>().is_ok();
    if bare(words) {
        return Some((words, 0));
    }
    let (host, port) = match words.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').filter(|(host, _)| bare(host))?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => words.split_once(':').map_or((words, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Some(0), |port| port.parse().ok())?;
    (!host.is_empty() && !host.contains(char::is_whitespace)).then_some((host, port))
}

fn is_host_and_port(words: &str) -> bool {
    words.rsplit_once(':').is_some_and(|(host, port)| {
        let is_name = !host.is_empty() && (!host.contains(':') || host.starts_with('['));
        is_name && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_and_without_port() {
        for (words, address, port) in [
            ("10.0.0.1", "10.0.0.1", 0),
            ("10.0.0.1:70", "10.0.0.1", 70),
            ("::", "::", 0),
            ("[fd00::1]", "fd00::1", 0),
            ("[fd00::1]:70", "fd00::1", 70),
            ("localhost", "localhost", 0),
            ("node-0.rack:70", "node-0.rack", 70),
        ] {
            assert_eq!(address_and_port(words), Some((address, port)), "{words}");
        }
        for words in
            ["", "a b", "10.0.0.1:", "10.0.0.1:70000", ":70", "host:x", "[host]:7", "[::1]7", "1:2:3"]
        {
            assert_eq!(address_and_port(words), None, "{words}");
        }
    }

    #[test]
    fn what_can_be_connected_to() {
        for words in ["host:1", "10.0.0.1:65535", "[fd00::1]:70"] {
            assert!(is_host_and_port(words), "{words}");
        }
        for words in ["host", ":1", "host:0", "host:x", "fd00::1:70000", "fd00::1:7"] {
            assert!(!is_host_and_port(words), "{words}");
        }
    }

    #[test]
    fn figures_for_people() {
        let figures = Figures::from(PairMeasured {
            comm: Duration::from_micros(29_460),
            latency: Duration::from_nanos(13_860),
            sent_per_second: 1_250_000_000,
            received_per_second: 1_000_000,
            verified: 35_782_656,
            sizes: [64 << 10, 1 << 20, 16 << 20],
        });
        assert_eq!(
            figures.for_people(),
            "latency 13.9 µs, sent 1250 MB/s (10.00 Gbit/s), received 1 MB/s (0.01 Gbit/s); 34.1 MiB of known bytes \
             received without an error, in 29.5 ms (64 KiB, 1 MiB, 16 MiB, both ways on two connections)"
        );
    }
}
