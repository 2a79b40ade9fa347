//! The pair check of `dlrover-diag pair`: one end listens, the other dials both connections, so that only one port
//! has to be open. Runs in the calling process and blocks.

use std::{
    sync::mpsc::RecvTimeoutError,
    time::{Duration, Instant},
};

use diagnosis::network_check::Probed;

use super::{
    connection::RingConnection,
    error::{Peer, RingError},
    hello::{Hello, Kind},
    peers::{Acceptor, DialLimits, accept, dial},
    transfer::{self, rate},
};
use crate::{child::progress::Progress, listener::Listener, wire::ring::SIZES};

/// A connected peer has at least this long to answer, however short the timeout.
const MIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The same for all manual pairs: there is no job to distinguish.
const TOKEN: u64 = u64::from_be_bytes(*b"by hand!");

/// The results of a manual pair check, from one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairMeasured {
    /// The time for all transfers.
    pub comm: Duration,
    /// The median of small round trips.
    pub latency: Duration,
    /// Of the largest size, until the peer had compared the bytes.
    pub sent_per_second: u64,
    /// Of the largest size, until the bytes were compared here.
    pub received_per_second: u64,
    /// Bytes that were received and right.
    pub verified: u64,
    /// The sizes of the transfers, each both ways on two connections.
    pub sizes: [u64; 3],
}

/// The listening end, for any number of checks.
#[derive(Debug)]
pub struct PairListener(Acceptor);

/// Starts to accept connections at `listener`, until the process ends.
///
/// # Errors
/// When there is no room for a thread.
pub fn listen_for_pair(listener: &Listener) -> Result<PairListener, RingError> {
    let listener = listener.try_clone().map_err(RingError::Thread)?;
    Acceptor::open(listener, TOKEN).map(PairListener).map_err(RingError::Thread)
}

impl PairListener {
    /// Waits for the other end, up to `within` if given, and runs one check in which no wait is longer than `timeout`
    /// or one second.
    ///
    /// # Errors
    /// When no peer connects, the check fails, or the peer disconnects.
    pub fn check(&self, within: Option<Duration>, timeout: Duration) -> Result<PairMeasured, RingError> {
        let deadline = within.map(|within| Instant::now() + within);
        // A connection of an earlier, broken pair may be among them: the later one counts.
        let (mut leading, mut following) = (None, None);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let (hello, stream) = self.0.next(left).map_err(|end| match end {
                RecvTimeoutError::Timeout => {
                    RingError::NoPeer { seconds: within.unwrap_or_default().as_secs() }
                }
                RecvTimeoutError::Disconnected => RingError::ThreadEnded,
            })?;
            if accept(&hello, &stream).is_err() {
                continue;
            }
            let address = stream.peer_addr().map_or_else(|_| "unknown".into(), |address| address.to_string());
            let peer = Peer { index: 1, address };
            // The seed is sent in place of the number of members, which both ends know.
            let seed = hello.members;
            match hello.kind {
                Kind::Lead => following = Some((seed, RingConnection::new(stream, peer, false, 1))),
                _ => leading = Some((seed, RingConnection::new(stream, peer, true, 0))),
            }
            match (leading, following) {
                (Some((one, leading)), Some((other, following))) if one == other => {
                    return run(seed, [leading, following], timeout);
                }
                (one, other) => {
                    leading = one.filter(|(of, _)| *of == seed);
                    following = other.filter(|(of, _)| *of == seed);
                }
            }
        }
    }
}

/// Dials the listening end at `address` (`HOST:PORT`), with retries until `timeout`, and runs one check, in which no
/// wait is longer than that either.
///
/// # Errors
/// When it cannot be reached, or the check fails.
pub fn dial_pair(address: &str, seed: u64, timeout: Duration) -> Result<PairMeasured, RingError> {
    let peer = Peer { index: 0, address: address.to_owned() };
    let hello = |kind| Hello { kind, token: TOKEN, members: seed, from: 1, to: 0 };
    let limits = DialLimits { connect: timeout, answer: Some(timeout.max(MIN_TIMEOUT)) };
    let leading = dial(&peer, &hello(Kind::Lead), limits)?;
    let following = dial(&peer, &hello(Kind::Follow), limits)?;
    run(
        seed,
        [RingConnection::new(leading, peer.clone(), true, 1), RingConnection::new(following, peer, false, 0)],
        timeout,
    )
}

fn run(
    seed: u64,
    [leading, following]: [RingConnection; 2],
    limit: Duration,
) -> Result<PairMeasured, RingError> {
    let limit = limit.max(MIN_TIMEOUT);
    let links = [leading.with_limit(limit)?, following.with_limit(limit)?];
    let verified = 2 * SIZES.iter().sum::<u64>();
    let progress = Progress::new(verified);
    let done = transfer::run(seed, links, &progress)?;
    debug_assert!(matches!(progress.unfinished(), Probed::Unfinished { bytes, .. } if bytes == verified));
    Ok(PairMeasured {
        comm: done.comm,
        latency: done.latency,
        sent_per_second: rate(done.largest, done.sending),
        received_per_second: rate(done.largest, done.receiving),
        verified,
        sizes: SIZES,
    })
}
