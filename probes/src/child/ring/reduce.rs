//! A ring all-reduce: all members end up with the sum. First each chunk goes round and is added up (reduce-scatter),
//! then each sum goes round and is stored (all-gather).

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use diagnosis::network_check::Probed;

use super::{
    connection::RingConnection,
    error::RingError,
    transfer::{confirm, median, on_all_links, rate, round_trips, wait_for_peers},
};
use crate::{
    child::{pattern::BLOCK, progress::Progress},
    wire::{
        group::{AllReduced, Measured},
        ring::RingPlan,
    },
};

/// Bytes of a number.
const WIDTH: usize = size_of::<f32>();

/// The byte of the barrier before each repeat.
const GO: u8 = b'G';

/// Small whole numbers, so that no order of additions rounds.
fn value(seed: u64, member: usize, at: usize) -> f32 {
    f32::from(u8::try_from((seed % 7 + at as u64) % 7).unwrap_or_default()) * weight(member)
}

fn weight(member: usize) -> f32 {
    f32::from(u8::try_from(member % 16 + 1).unwrap_or_default())
}

/// Runs it, checks the sums, and measures it.
pub(super) fn run(
    plan: &RingPlan,
    links: [RingConnection; 2],
    bytes: u64,
    repeats: u32,
    progress: &Progress,
) -> Result<Measured, RingError> {
    let members = plan.members.len();
    let length = usize::try_from(bytes).unwrap_or(usize::MAX) / WIDTH;
    wait_for_peers(&links)?;
    progress.begin();
    let latency = median(on_all_links(&links, |link| round_trips(plan.seed, link))?.concat());
    let [ahead, behind] = &links;
    let (outgoing, to_send) = mpsc::channel::<Vec<u8>>();
    let times = thread::scope(|scope| {
        let sender = thread::Builder::new().name("send".into()).spawn_scoped(scope, move || {
            to_send.into_iter().try_for_each(|chunk| ahead.send(&chunk, "sending"))
        });
        let sender = sender.map_err(RingError::Thread)?;
        let mut ring = Ring { plan, behind, outgoing, progress, numbers: Vec::new() };
        let times = (0..=repeats).map(|_| ring.once(length)).collect::<Result<Vec<_>, _>>();
        drop(ring);
        if times.is_err() {
            links.iter().for_each(RingConnection::shut);
        }
        let sent = sender.join().unwrap_or_else(|_| Err(ahead.invalid_message("sending")));
        let times = times?;
        sent.map(|()| times)
    })?;
    // Exchange the verdict on all repeats with both peers.
    let wrong = times.iter().find_map(|(_, wrong)| *wrong);
    let theirs = on_all_links(&links, |link| Ok((confirm(link, wrong.is_none())?, link.peer.clone())))?;
    if let Some((at, expected, got)) = wrong {
        return Err(RingError::WrongSum { at, expected, got });
    }
    if let Some((_, peer)) = theirs.into_iter().find(|(is_right, _)| !is_right) {
        return Err(RingError::PeerGotWrongSum { peer });
    }
    // The first repeat sees small buffers and windows.
    let time = median(times.iter().skip(1).map(|(time, _)| *time).collect());
    let bytes = (length * WIDTH) as u64;
    Ok(Measured {
        probed: Probed::Passed { comm: time, latency, bytes_per_second: rate(bytes, time) },
        all_reduced: Some(AllReduced { bytes, members, seconds_median: time.as_secs_f64() }),
    })
}

/// Index, expected and actual number.
type WrongSum = Option<(usize, f32, f32)>;

struct Ring<'a> {
    plan: &'a RingPlan,
    behind: &'a RingConnection,
    outgoing: mpsc::Sender<Vec<u8>>,
    progress: &'a Progress,
    numbers: Vec<f32>,
}

impl Ring<'_> {
    fn once(&mut self, length: usize) -> Result<(Duration, WrongSum), RingError> {
        let (seed, me, members) = (self.plan.seed, self.plan.me, self.plan.members.len());
        self.numbers.clear();
        self.numbers.extend((0..length).map(|at| value(seed, me, at)));
        self.barrier()?;
        let began = Instant::now();
        for step in 0..members - 1 {
            self.send(me + members - step);
            self.receive(me + members - step - 1, |mine, received| *mine += received)?;
        }
        for step in 0..members - 1 {
            self.send(me + members + 1 - step);
            self.receive(me + members - step, |mine, received| *mine = received)?;
        }
        let time = began.elapsed();
        let weights: f32 = (0..members).map(weight).sum();
        let wrong = self.numbers.iter().enumerate().find_map(|(at, got)| {
            let expected = f32::from(u8::try_from((seed % 7 + at as u64) % 7).unwrap_or_default()) * weights;
            (got.to_bits() != expected.to_bits()).then_some((at, expected, *got))
        });
        Ok((time, wrong))
    }

    /// Waits for all members: in the first pass all have arrived, in the second they may start.
    fn barrier(&self) -> Result<(), RingError> {
        let doing = "waiting for all to be ready";
        let last = self.plan.members.len() - 1;
        let pass = |is_first: bool| -> Result<(), RingError> {
            let brings = self.plan.me != 0 || is_first;
            let passes_on = self.plan.me != last || is_first;
            let receive = || match self.behind.receive_one(doing)? {
                GO => Ok(()),
                _ => Err(self.behind.invalid_message(doing)),
            };
            if self.plan.me == 0 {
                self.enqueue(vec![GO]);
                return if brings { receive() } else { Ok(()) };
            }
            receive()?;
            if passes_on {
                self.enqueue(vec![GO]);
            }
            Ok(())
        };
        pass(true)?;
        pass(false)
    }

    fn enqueue(&self, bytes: Vec<u8>) {
        // If the sending thread has ended, it reports the error itself.
        let _ended = self.outgoing.send(bytes);
    }

    fn chunk(&self, chunk: usize) -> std::ops::Range<usize> {
        let members = self.plan.members.len();
        let chunk = chunk % members;
        let bound = |chunk: usize| {
            let bound = self.numbers.len() as u128 * chunk as u128 / members as u128;
            usize::try_from(bound).unwrap_or(self.numbers.len())
        };
        bound(chunk)..bound(chunk + 1)
    }

    fn send(&self, chunk: usize) {
        let numbers = &self.numbers[self.chunk(chunk)];
        let mut bytes = vec![0; numbers.len() * WIDTH];
        for (place, number) in bytes.chunks_exact_mut(WIDTH).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        self.enqueue(bytes);
    }

    fn receive(&mut self, chunk: usize, take: impl Fn(&mut f32, f32)) -> Result<(), RingError> {
        let range = self.chunk(chunk);
        let mut buffer = [0; BLOCK];
        for numbers in self.numbers[range].chunks_mut(BLOCK / WIDTH) {
            let bytes = &mut buffer[..numbers.len() * WIDTH];
            self.behind.receive(bytes, "receiving")?;
            for (number, received) in numbers.iter_mut().zip(bytes.chunks_exact(WIDTH)) {
                take(number, f32::from_le_bytes([received[0], received[1], received[2], received[3]]));
            }
            self.progress.received(bytes.len() as u64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_many_members_are_whole_numbers_that_f32_can_hold() {
        let weights: f32 = (0..100_000).map(weight).sum();
        assert!(weights * 6.0 < f32::from_bits(0x4b80_0000), "2^24");
    }
}
