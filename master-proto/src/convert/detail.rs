//! What a node knows of a worker that failed. Its text is the worker's, and foreign to the master and to every other
//! node: longer text than a sender makes is refused, and control characters are taken out on receipt.

use rules::{
    LocalRank, Rank, Round,
    failure::{ExitCause, WorkerFailure},
    job::Event,
    last_lines::{MAX_BYTES, MAX_LINES, MAX_MESSAGE},
    node::NodeName,
    root_cause::{FailureDetail, RootCause},
};

use super::{ConvertError, limited, node_id};
use crate::pb::{self, failure_detail::Cause};

/// A report of what is known of a failure.
#[must_use]
pub fn detail_report(node_id: String, round: Round, detail: FailureDetail) -> pb::DetailReport {
    pb::DetailReport { node_id, round: round.0, detail: Some(detail.into()) }
}

impl From<FailureDetail> for pb::FailureDetail {
    fn from(detail: FailureDetail) -> Self {
        let WorkerFailure { rank, local_rank, pid, cause, unix_secs, out_of_memory } = detail.failure;
        let number = |number: i32| u32::try_from(number).unwrap_or_default();
        Self {
            rank: rank.0,
            local_rank: local_rank.0,
            pid,
            cause: Some(match cause {
                ExitCause::Code(code) => Cause::ExitCode(number(code)),
                ExitCause::Signal(signal) => Cause::Signal(number(signal)),
            }),
            out_of_memory,
            unix_secs,
            message: detail.message().to_owned(),
            lines: detail.lines().to_vec(),
            is_mixed: detail.is_mixed(),
        }
    }
}

impl TryFrom<pb::FailureDetail> for FailureDetail {
    type Error = ConvertError;

    fn try_from(wire: pb::FailureDetail) -> Result<Self, ConvertError> {
        let within = |value: u32, most: u16, field, expected| {
            let valid = u16::try_from(value).ok().filter(|it| (1..=most).contains(it));
            valid.map(i32::from).ok_or(ConvertError::Range { field, value: u64::from(value), expected })
        };
        let cause = match wire.cause.ok_or(ConvertError::Missing { field: "detail.cause" })? {
            Cause::ExitCode(code) => ExitCause::Code(within(code, 255, "detail.exit_code", "1 to 255")?),
            Cause::Signal(signal) => ExitCause::Signal(within(signal, 64, "detail.signal", "1 to 64")?),
        };
        if wire.lines.len() > MAX_LINES {
            let (field, length) = ("detail.lines", wire.lines.len());
            return Err(ConvertError::TooMany { field, length, max: MAX_LINES });
        }
        let length = wire.lines.iter().map(|line| line.len() + 1).sum();
        if length > MAX_BYTES {
            return Err(ConvertError::TooLong { field: "detail.lines", length, max: MAX_BYTES });
        }
        let failure = WorkerFailure {
            rank: Rank(wire.rank),
            local_rank: LocalRank(wire.local_rank),
            pid: wire.pid,
            cause,
            unix_secs: wire.unix_secs,
            out_of_memory: wire.out_of_memory,
        };
        let message = limited(wire.message, MAX_MESSAGE, "detail.message")?;
        Ok(Self::received(failure, &message, &wire.lines, wire.is_mixed))
    }
}

impl TryFrom<pb::DetailReport> for Event {
    type Error = ConvertError;

    fn try_from(report: pb::DetailReport) -> Result<Self, ConvertError> {
        let detail = report.detail.ok_or(ConvertError::Missing { field: "detail" })?;
        Ok(Self::FailureDetailed {
            node: node_id(report.node_id, "node_id")?,
            round: Round(report.round),
            detail: Box::new(detail.try_into()?),
        })
    }
}

impl From<RootCause> for pb::RootCause {
    fn from(RootCause { round, node, detail }: RootCause) -> Self {
        Self { round: round.0, node: Some(node.into()), detail: Some(detail.into()) }
    }
}

impl TryFrom<pb::RootCause> for RootCause {
    type Error = ConvertError;

    fn try_from(wire: pb::RootCause) -> Result<Self, ConvertError> {
        let node = wire.node.ok_or(ConvertError::Missing { field: "root_cause.node" })?;
        let detail = wire.detail.ok_or(ConvertError::Missing { field: "root_cause.detail" })?;
        Ok(Self { round: Round(wire.round), node: NodeName::from(node), detail: detail.try_into()? })
    }
}

#[cfg(test)]
mod tests {
    use rules::{NodeId, last_lines::Output};

    use super::*;

    fn failure(cause: ExitCause) -> WorkerFailure {
        let (rank, local_rank, out_of_memory) = (Rank(13), LocalRank(5), false);
        WorkerFailure { rank, local_rank, pid: 4711, cause, unix_secs: 7, out_of_memory }
    }

    fn wire() -> pb::FailureDetail {
        let output = Output::new("a\nValueError: é\n".as_bytes(), true);
        FailureDetail::new(failure(ExitCause::Code(3)), None, &output, true).into()
    }

    fn refused(detail: pb::FailureDetail) -> String {
        let report = pb::DetailReport { node_id: "a".into(), round: 1, detail: Some(detail) };
        Event::try_from(report).unwrap_err().to_string()
    }

    #[test]
    fn what_an_agent_sends_is_received_unchanged() {
        let output = Output::new(&b"x\x1b[31m y\n".repeat(9000), true);
        for cause in [ExitCause::Code(1), ExitCause::Code(255), ExitCause::Signal(9)] {
            let detail = FailureDetail::new(failure(cause), Some("boom"), &output, false);
            let report = detail_report("a".into(), Round(4), detail.clone());
            let (node, round, detail) = (NodeId("a".into()), Round(4), Box::new(detail));
            assert_eq!(
                Event::try_from(report),
                Ok(Event::FailureDetailed { node, round, detail: detail.clone() })
            );
            let node = pb::NodeName { rank: Some(1), host: "b".into(), ..pb::NodeName::default() };
            let root_cause = RootCause { round, node: node.into(), detail: *detail };
            assert_eq!(RootCause::try_from(pb::RootCause::from(root_cause.clone())), Ok(root_cause));
        }
    }

    #[test]
    fn more_than_an_agent_would_send_is_refused_by_name() {
        let long = |bytes: usize| "x".repeat(bytes);
        for (detail, error) in [
            (pb::FailureDetail { cause: None, ..wire() }, "detail.cause is missing"),
            (
                pb::FailureDetail { cause: Some(Cause::ExitCode(256)), ..wire() },
                "detail.exit_code is 256; expected 1 to 255",
            ),
            (
                pb::FailureDetail { cause: Some(Cause::Signal(0)), ..wire() },
                "detail.signal is 0; expected 1 to 64",
            ),
            (
                pb::FailureDetail { message: long(513), ..wire() },
                "detail.message has 513 bytes (maximum: 512)",
            ),
            (
                pb::FailureDetail { lines: vec![String::new(); 21], ..wire() },
                "detail.lines has 21 entries (maximum: 20)",
            ),
            (
                pb::FailureDetail { lines: vec![long(2048); 2], ..wire() },
                "detail.lines has 4098 bytes (maximum: 4096)",
            ),
        ] {
            assert_eq!(refused(detail), error);
        }
        let empty = pb::DetailReport { node_id: "a".into(), round: 1, detail: None };
        assert_eq!(Event::try_from(empty).unwrap_err(), ConvertError::Missing { field: "detail" });
        let nameless = pb::DetailReport { node_id: String::new(), round: 1, detail: Some(wire()) };
        assert_eq!(Event::try_from(nameless).unwrap_err(), ConvertError::Missing { field: "node_id" });
    }

    #[test]
    fn escapes_for_a_terminal_do_not_get_in() {
        let hostile = pb::FailureDetail {
            message: "a\x1b]0;title\x07b\nc".into(),
            lines: vec!["\x1b[2Jd\r\ne".into(), "\u{202e}f".into()],
            ..wire()
        };
        let detail = FailureDetail::try_from(hostile).unwrap();
        assert_eq!((detail.message(), detail.lines()), ("ab", &["de".to_owned(), "f".to_owned()][..]));
        let again = FailureDetail::try_from(pb::FailureDetail::from(detail.clone()));
        assert_eq!(again, Ok(detail), "once is enough");
    }
}
