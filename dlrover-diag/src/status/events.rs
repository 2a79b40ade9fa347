//! The events of a job as they come: `dlrover-diag events`, and the lines of `status --watch` without a terminal.

use std::io;

use diagnosis::counted::counted;
use rules::job_status::{JobEvent, JobStatus};
use serde_json::json;

use super::{Show, at, line, log_line, now};

/// Tells new events from those that a status had before.
#[derive(Debug, Default)]
pub(super) struct NewEvents {
    /// The master's epoch, and the number of the last event.
    last: Option<(String, u64)>,
}

impl NewEvents {
    /// The events of this status that none before had, and how many there were that no status had: a status has the last
    /// 256 only.
    pub(super) fn of<'a>(&mut self, status: &'a JobStatus) -> (u64, &'a [JobEvent]) {
        let newest = status.events.last().map_or(0, |event| event.number);
        let epoch = &status.master.epoch;
        let seen = self.last.as_ref().map(|(before, number)| {
            // A master without state counts from 1 again.
            let is_anew = before != epoch && (newest < *number || !status.master.has_state_dir);
            if is_anew { 0 } else { *number }
        });
        self.last = Some((epoch.clone(), newest.max(seen.unwrap_or_default())));
        let first_new = status.events.partition_point(|event| event.number <= seen.unwrap_or_default());
        let events = &status.events[first_new..];
        // Those before the first status are not missed.
        let missed = match (seen, events.first()) {
            (Some(seen), Some(first)) => first.number - seen - 1,
            _ => 0,
        };
        (missed, events)
    }
}

/// A line for each of these events.
pub(super) fn lines(missed: u64, events: &[JobEvent]) -> io::Result<()> {
    if missed > 0 {
        line(&format!("{} {}", now(), not_received(missed)))?;
    }
    events.iter().try_for_each(|event| line(&format!("{} {}", at(event.seconds_ago), event.message)))
}

fn not_received(missed: u64) -> String {
    let verb = if missed == 1 { "was" } else { "were" };
    format!("{} {verb} not received", counted(missed, "event"))
}

/// `events`.
pub(super) struct Printed {
    is_json: bool,
    events: NewEvents,
}

impl Printed {
    pub(super) fn new(is_json: bool) -> Self {
        Self { is_json, events: NewEvents::default() }
    }
}

impl Show for Printed {
    fn show(&mut self, status: &JobStatus) -> io::Result<()> {
        let (missed, events) = self.events.of(status);
        if !self.is_json {
            return lines(missed, events);
        }
        if missed > 0 {
            log_line(not_received(missed));
        }
        events.iter().try_for_each(|event| {
            let time = at(event.seconds_ago);
            line(&json!({ "number": event.number, "time": time, "message": event.message }).to_string())
        })
    }

    fn lost(&mut self, why: &str) -> io::Result<()> {
        log_line(format_args!("no contact with the job master: {why}; reconnecting"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rules::job_status::MasterStatus;

    use super::*;
    use crate::status::screen::tests::status;

    fn with(epoch: &str, has_state_dir: bool, numbers: std::ops::RangeInclusive<u64>) -> JobStatus {
        let event = |number| JobEvent { number, seconds_ago: 1.0, message: format!("event {number}") };
        let master = MasterStatus { epoch: epoch.into(), has_state_dir, ..MasterStatus::default() };
        JobStatus { master, events: numbers.map(event).collect(), ..status() }
    }

    #[test]
    fn each_event_is_new_once_and_a_jump_of_the_numbers_is_noticed() {
        let mut events = NewEvents::default();
        for (epoch, has_state_dir, numbers, missed, new) in [
            // Those that were dropped before the first status are not missed.
            ("a", true, 3..=5, 0, vec![3, 4, 5]),
            ("a", true, 3..=5, 0, vec![]),
            ("a", true, 4..=7, 0, vec![6, 7]),
            ("a", true, 11..=12, 3, vec![11, 12]),
            // A master that continues counts on, one without state begins again, however many it has by now.
            ("b", true, 11..=13, 0, vec![13]),
            ("c", false, 1..=2, 0, vec![1, 2]),
            ("d", false, 2..=3, 1, vec![2, 3]),
        ] {
            let status = with(epoch, has_state_dir, numbers);
            let (now_missed, now_new) = events.of(&status);
            let now_new: Vec<u64> = now_new.iter().map(|event| event.number).collect();
            assert_eq!((now_missed, now_new), (missed, new), "{status:?}");
        }
    }

    #[test]
    fn events_that_were_not_received_are_counted() {
        assert_eq!(not_received(1), "1 event was not received");
        assert_eq!(not_received(30), "30 events were not received");
    }
}
