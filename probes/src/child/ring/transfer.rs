//! The check: small round trips, then known bytes of three sizes, both ways at once on every link.
//!
//! Every byte is compared; after each size both ends exchange whether what they received was right, so a size
//! succeeds at both ends or at neither.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use diagnosis::network_check::Probed;

use super::{connection::RingConnection, error::RingError};
use crate::{
    child::{
        pattern::{BLOCK, Checker, Pattern},
        progress::Progress,
    },
    wire::ring::SIZES,
};

/// Small round trips of each link, and their size.
const ROUND_TRIPS: u64 = 32;
const SMALL: usize = 64;

/// Both links of this member are up.
const READY: u8 = b'R';
/// The bytes received were right, or wrong.
const RIGHT: u8 = b'Y';
const WRONG: u8 = b'N';

/// After a mere disconnect, how long the other links may take to report its cause.
const ROOT_CAUSE_TIMEOUT: Duration = Duration::from_millis(300);

/// The results of the check of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transferred {
    /// From both links being up at both ends to the last confirmation.
    pub(crate) comm: Duration,
    /// The median of the round trips led by this node.
    pub(crate) latency: Duration,
    /// Bytes of the largest size in each direction, over all links.
    pub(crate) largest: u64,
    /// The time until they were received and compared.
    pub(crate) receiving: Duration,
    /// The time until the peers had confirmed them.
    pub(crate) sending: Duration,
}

pub(crate) fn rate(bytes: u64, time: Duration) -> u64 {
    let per_second = u128::from(bytes) * 1_000_000_000 / time.as_nanos().max(1);
    u64::try_from(per_second).unwrap_or(u64::MAX)
}

impl Transferred {
    /// The result for the rules: the slower of the two directions counts.
    pub(super) fn probed(&self) -> Probed {
        let slower = self.receiving.max(self.sending);
        Probed::Passed {
            comm: self.comm,
            latency: self.latency,
            bytes_per_second: rate(self.largest, slower),
        }
    }
}

/// The results of one link.
struct OneLink {
    round_trips: Vec<Duration>,
    largest: Largest,
}

/// Three instants of the largest transfer.
#[derive(Clone, Copy)]
struct Largest {
    began: Instant,
    received: Instant,
    confirmed: Instant,
}

/// Runs the check over both links.
pub(super) fn run(
    seed: u64,
    links: [RingConnection; 2],
    progress: &Progress,
) -> Result<Transferred, RingError> {
    wait_for_peers(&links)?;
    progress.begin();
    let began = Instant::now();
    let done = on_all_links(&links, |link| one_link(seed, link, progress))?;
    let comm = began.elapsed();
    let latency = median(done.iter().flat_map(|one| one.round_trips.iter().copied()).collect());
    let begin = done.iter().map(|one| one.largest.began).min().unwrap_or(began);
    let until = |moment: fn(&Largest) -> Instant| {
        done.iter().map(|one| moment(&one.largest)).max().unwrap_or(begin).saturating_duration_since(begin)
    };
    Ok(Transferred {
        comm,
        latency,
        largest: SIZES[SIZES.len() - 1] * links.len() as u64,
        receiving: until(|largest| largest.received),
        sending: until(|largest| largest.confirmed),
    })
}

/// Waits until the peers have both their links too, so that a late start of one is not measured by another.
pub(super) fn wait_for_peers(links: &[RingConnection]) -> Result<(), RingError> {
    let doing = "getting ready";
    for link in links {
        link.send(&[READY], doing)?;
    }
    for link in links {
        if link.receive_one(doing)? != READY {
            return Err(link.invalid_message(doing));
        }
    }
    Ok(())
}

/// The median; zero of an empty list.
pub(super) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Runs `work` on all links at once. An error ends the others and is returned, unless another error says more: a peer
/// that detects an error closes all of its connections.
pub(super) fn on_all_links<T: Send>(
    links: &[RingConnection],
    work: impl Fn(&RingConnection) -> Result<T, RingError> + Sync,
) -> Result<Vec<T>, RingError> {
    thread::scope(|scope| {
        let (done, results) = mpsc::channel();
        for link in links {
            let (done, work) = (done.clone(), &work);
            let started = thread::Builder::new().name("link".into()).spawn_scoped(scope, move || {
                let _nobody = done.send(work(link));
            });
            if let Err(error) = started {
                links.iter().for_each(RingConnection::shut);
                return Err(RingError::Thread(error));
            }
        }
        drop(done);
        let mut all = Vec::new();
        let mut wrong: Option<RingError> = None;
        loop {
            let next = match &wrong {
                Some(error) if error.is_disconnect() => results.recv_timeout(ROOT_CAUSE_TIMEOUT),
                _ => results.recv().map_err(mpsc::RecvTimeoutError::from),
            };
            match next {
                Ok(Ok(one)) => all.push(one),
                Ok(Err(error)) => {
                    if wrong.as_ref().is_none_or(|wrong| wrong.is_disconnect() && !error.is_disconnect()) {
                        wrong = Some(error);
                    }
                    if wrong.as_ref().is_some_and(|wrong| !wrong.is_disconnect()) {
                        links.iter().for_each(RingConnection::shut);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => links.iter().for_each(RingConnection::shut),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        wrong.map_or(Ok(all), Err)
    })
}

fn one_link(seed: u64, link: &RingConnection, progress: &Progress) -> Result<OneLink, RingError> {
    let round_trips = round_trips(seed, link)?;
    let mut largest = None;
    for size in SIZES {
        largest = Some(both_ways(seed, link, size, progress)?);
    }
    let now = Instant::now();
    let largest = largest.unwrap_or(Largest { began: now, received: now, confirmed: now });
    Ok(OneLink { round_trips, largest })
}

pub(super) fn round_trips(seed: u64, link: &RingConnection) -> Result<Vec<Duration>, RingError> {
    let doing = "measuring round trips";
    let mut times = Vec::new();
    let (mut sent, mut received) = ([0; SMALL], [0; SMALL]);
    for turn in 0..ROUND_TRIPS {
        Pattern::new(seed, &[link.name, turn]).fill(&mut sent);
        let began = Instant::now();
        if link.leads {
            link.send(&sent, doing)?;
        }
        link.receive(&mut received, doing)?;
        if link.leads {
            times.push(began.elapsed());
        } else {
            // Echoed right or wrong, so that both ends see it.
            link.send(&received, doing)?;
        }
        if let Some(at) = sent.iter().zip(&received).position(|(a, b)| a != b) {
            let wrong = super::error::WrongByte { offset: at as u64, expected: sent[at], got: received[at] };
            return Err(RingError::WrongBytes { peer: link.peer.clone(), size: SMALL as u64, wrong });
        }
    }
    Ok(times)
}

/// The bytes sent by the leader of a link, or by the other end.
fn pattern(seed: u64, link: &RingConnection, from_leader: bool, size: u64) -> Pattern {
    Pattern::new(seed, &[link.name, u64::from(from_leader), size])
}

fn both_ways(seed: u64, link: &RingConnection, size: u64, progress: &Progress) -> Result<Largest, RingError> {
    let began = Instant::now();
    let (sent, received) = thread::scope(|scope| {
        let sending = thread::Builder::new()
            .name("send".into())
            .spawn_scoped(scope, || send(link, pattern(seed, link, link.leads, size), size));
        let sending = match sending {
            Ok(sending) => sending,
            Err(error) => return (Ok(()), Err(RingError::Thread(error))),
        };
        let received = receive(link, pattern(seed, link, !link.leads, size), size, progress);
        if received.is_err() {
            link.shut();
        }
        let received = received.map(|verdict| (verdict, Instant::now()));
        let sent = sending.join().unwrap_or_else(|_| Err(link.invalid_message("sending")));
        (sent, received)
    });
    let (verdict, received) = received?;
    sent?;
    let is_right = confirm(link, verdict.is_ok());
    verdict?;
    match is_right? {
        true => Ok(Largest { began, received, confirmed: Instant::now() }),
        false => Err(RingError::PeerGotWrongBytes { peer: link.peer.clone(), size }),
    }
}

/// Sends whether the received bytes were right, and returns the peer's verdict on those sent.
pub(super) fn confirm(link: &RingConnection, is_right: bool) -> Result<bool, RingError> {
    let doing = "confirming the received bytes";
    link.send(&[if is_right { RIGHT } else { WRONG }], doing)?;
    match link.receive_one(doing)? {
        RIGHT => Ok(true),
        WRONG => Ok(false),
        _ => Err(link.invalid_message(doing)),
    }
}

fn send(link: &RingConnection, pattern: Pattern, size: u64) -> Result<(), RingError> {
    let blocks = pattern.blocks();
    (0..size / BLOCK as u64).try_for_each(|index| link.send(blocks.get(index), "sending"))
}

/// Receives all bytes. After a wrong byte the rest is still read, so that the peer gets to the exchange of verdicts;
/// the inner error is that wrong byte.
fn receive(
    link: &RingConnection,
    pattern: Pattern,
    size: u64,
    progress: &Progress,
) -> Result<Result<(), RingError>, RingError> {
    let mut buffer = vec![0; BLOCK];
    let mut checker = Checker::new(pattern);
    let mut verdict = Ok(());
    let mut left = size;
    while left > 0 {
        let room = usize::try_from(left).map_or(BLOCK, |left| left.min(BLOCK));
        let length = match link.receive_some(&mut buffer[..room], "receiving") {
            Ok(length) => length,
            // The wrong byte says more.
            Err(_) if verdict.is_err() => return Ok(verdict),
            Err(error) => return Err(error),
        };
        left -= length as u64;
        if verdict.is_err() {
            continue;
        }
        match checker.check(&buffer[..length]) {
            Ok(()) => progress.received(length as u64),
            Err(wrong) => {
                let wrong = wrong.into();
                verdict = Err(RingError::WrongBytes { peer: link.peer.clone(), size, wrong });
            }
        }
    }
    Ok(verdict)
}
