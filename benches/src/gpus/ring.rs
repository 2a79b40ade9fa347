//! A ring all-reduce that really moves and adds bytes, each hop a socket that passes so many bytes a second.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use crate::Outcome;

/// What a sender writes at once: some 0.2 ms of the slowest link.
const SLICE: usize = 8 << 10;

/// A member, which sends to the next and receives from the one before.
struct Member {
    values: Vec<f32>,
    to: UnixStream,
    from: UnixStream,
    bytes_per_second: f64,
}

/// All-reduces `count` values (a multiple of the ring's length) among threads; `rates` are those of the hops, in bytes a
/// second, the first from member 0 to member 1. Gives the time from the start of all to the end of the last.
///
/// # Errors
/// A sum is wrong or the system has no sockets or threads.
pub fn all_reduce(rates: &[f64], count: usize) -> Outcome<Duration> {
    let size = rates.len();
    let mut sockets = (0..size).map(|_| UnixStream::pair()).collect::<Result<Vec<_>, _>>()?;
    // Hop n leads from member n to member n + 1.
    let receivers = sockets.iter().map(|(_, far)| far.try_clone()).collect::<Result<Vec<_>, _>>()?;
    let mut members = Vec::new();
    for (rank, (to, _)) in sockets.drain(..).enumerate() {
        let from = receivers[(rank + size - 1) % size].try_clone()?;
        let values = (0..count).map(|place| (place % 251) as f32 + rank as f32).collect();
        members.push(Member { values, to, from, bytes_per_second: rates[rank] });
    }
    drop(receivers);
    let began = Instant::now();
    let summed: Vec<Result<Vec<f32>, std::io::Error>> = thread::scope(|scope| {
        let run = |(rank, member)| scope.spawn(move || reduced(rank, size, member));
        let threads: Vec<_> = members.into_iter().enumerate().map(run).collect();
        let failed = || std::io::Error::other("a member of the ring panicked");
        threads.into_iter().map(|member| member.join().unwrap_or_else(|_| Err(failed()))).collect()
    });
    let took = began.elapsed();
    let ranks = (0..size).map(|rank| rank as f32).sum::<f32>();
    for values in summed {
        let is_sum = |(place, value): (usize, &f32)| *value == size as f32 * (place % 251) as f32 + ranks;
        if !values?.iter().enumerate().all(is_sum) {
            return Err("a sum is wrong".into());
        }
    }
    Ok(took)
}

/// Reduce-scatter, then all-gather: in each step a chunk goes out while another one comes in.
fn reduced(rank: usize, size: usize, member: Member) -> Result<Vec<f32>, std::io::Error> {
    let Member { mut values, mut to, mut from, bytes_per_second } = member;
    let chunk = values.len() / size;
    let place = |step: usize| ((rank + 2 * size - step) % size) * chunk;
    for step in 0..2 * (size - 1) {
        // Each passes on what it has just heard: partial sums, and in the second half whole ones.
        let out = place(step);
        let out: Vec<u8> = values[out..out + chunk].iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut heard = vec![0; chunk * 4];
        thread::scope(|scope| {
            let sender = scope.spawn(|| paced(&mut to, &out, bytes_per_second));
            from.read_exact(&mut heard)?;
            sender.join().unwrap_or_else(|_| Err(std::io::Error::other("a sender panicked")))
        })?;
        let into = place(step + 1);
        for (value, bytes) in values[into..into + chunk].iter_mut().zip(heard.as_chunks::<4>().0) {
            let other = f32::from_le_bytes(*bytes);
            *value = if step < size - 1 { *value + other } else { other };
        }
    }
    Ok(values)
}

fn paced(to: &mut UnixStream, bytes: &[u8], bytes_per_second: f64) -> Result<(), std::io::Error> {
    let began = Instant::now();
    let mut sent = 0;
    for slice in bytes.chunks(SLICE) {
        sent += slice.len();
        // A slice has passed the link when its last byte has.
        let due = Duration::from_secs_f64(sent as f64 / bytes_per_second);
        thread::sleep(due.saturating_sub(began.elapsed()));
        to.write_all(slice)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_all_sizes_sum_up_at_their_slowest_hop() {
        for size in 2..=8 {
            let mut rates = vec![1e9; size];
            rates[size - 1] = 4e6;
            let count = size * 10_000;
            let took = all_reduce(&rates, count).unwrap();
            // 2 (n - 1) chunks of 40 kB over the slow hop.
            let least = Duration::from_secs_f64(2.0 * (size - 1) as f64 * 40_000.0 / 4e6);
            assert!(took >= least, "{size}: {took:?} < {least:?}");
        }
    }
}
