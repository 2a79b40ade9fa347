//! Writes to disk stand back while a worker of the node saves: its training waits for the copy.

use std::time::Duration;

use super::{
    Saver,
    shard::{Shard, SlotState},
};

/// What a write may wait in any case: a slot of several GB is copied in that time.
const PAUSE: Duration = Duration::from_secs(1);

impl Saver {
    /// A worker copies its state into a slot, and training goes on after it. Not one whose connection has ended: it
    /// has given the copy up, however long it lives.
    #[must_use]
    pub fn is_saving(&self) -> bool {
        let is_connected = |connection| self.clients.get(&connection).is_some_and(|client| !client.is_gone);
        let is_saving = |shard: &Shard| {
            shard.writer.is_some_and(|writer| is_connected(writer.connection))
                && shard.slots.iter().any(|slot| matches!(slot.state, SlotState::Writing(_)))
        };
        self.ending.is_none() && self.shards.values().any(is_saving)
    }
}

/// How long a write to disk may still stand back, `elapsed` after its start, when it has done so for `waited`: in all a
/// second and half of `elapsed`. So beside workers that save without end, or stop in the middle, it takes twice as long
/// as alone, and two seconds.
#[must_use]
pub fn pause_left(elapsed: Duration, waited: Duration) -> Duration {
    (PAUSE + elapsed / 2).saturating_sub(waited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_beside_a_save_that_never_ends_takes_twice_as_long_and_two_seconds() {
        let (block, mut elapsed, mut waited) = (Duration::from_millis(1), Duration::ZERO, Duration::ZERO);
        for _ in 0..1000 {
            // A wait takes time too, so it may go on: this is its end.
            loop {
                let left = pause_left(elapsed, waited);
                if left < Duration::from_micros(1) {
                    break;
                }
                elapsed += left;
                waited += left;
            }
            elapsed += block;
        }
        assert!((3990..=4000).contains(&elapsed.as_millis()), "{elapsed:?}");
    }
}
