//! The output of a check command.

use std::time::Duration;

use diagnosis::network_check::Probed;
use serde::Deserialize;

use crate::wire::command::VERSION;

/// The characters of an invalid result that are shown.
const SHOWN: usize = 200;

#[derive(Debug, Deserialize)]
struct Answer {
    version: u32,
    comm_ms: Option<f64>,
    latency_us: Option<f64>,
    bytes_per_second: Option<f64>,
    checksum_ok: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct ProgressLine {
    progress: CommandProgress,
}

/// The progress of a check command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct CommandProgress {
    pub(crate) bytes: u64,
    pub(crate) total: u64,
}

/// Parses a progress line. `None`: another line.
pub(crate) fn progress(line: &[u8]) -> Option<CommandProgress> {
    serde_json::from_slice::<ProgressLine>(line).ok().map(|line| line.progress)
}

/// Judges the last line of a check command that exited with code 0.
pub(crate) fn judge(line: Option<&[u8]>) -> Probed {
    read(line).unwrap_or_else(|reason| Probed::Failed { reason })
}

fn read(line: Option<&[u8]>) -> Result<Probed, String> {
    let Some(line) = line else {
        return Err("the check command exited with code 0, but printed no result".into());
    };
    let no_answer = |why: String| {
        let line = String::from_utf8_lossy(line);
        let shown: String = line.chars().take(SHOWN).collect();
        let more = if shown.len() < line.len() { "..." } else { "" };
        format!(
            "the check command exited with code 0, but its last line is not a result: {why}: {shown}{more}"
        )
    };
    let answer: Answer = serde_json::from_slice(line).map_err(|error| no_answer(error.to_string()))?;
    if answer.version != VERSION {
        return Err(no_answer(format!("unknown version {}", answer.version)));
    }
    if answer.checksum_ok == Some(false) {
        return Err("the check command received wrong bytes (checksum_ok is false)".into());
    }
    let time = |name: &str, number: f64, per_second: f64| {
        Duration::try_from_secs_f64(number / per_second)
            .map_err(|error| no_answer(format!("{name} is not a time: {error}")))
    };
    let comm = answer.comm_ms.ok_or_else(|| no_answer("comm_ms is missing".into()))?;
    let rate = answer.bytes_per_second.unwrap_or_default();
    if rate < 0.0 {
        return Err(no_answer("bytes_per_second is negative".into()));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "looked at; too large saturates"
    )]
    let bytes_per_second = rate as u64;
    Ok(Probed::Passed {
        comm: time("comm_ms", comm, 1e3)?,
        latency: time("latency_us", answer.latency_us.unwrap_or_default(), 1e6)?,
        bytes_per_second,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reason(line: &str) -> String {
        match judge(Some(line.as_bytes())) {
            Probed::Failed { reason } => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_documented_result_and_the_shortest_one() {
        let full = br#"{"version":1,"comm_ms":12.5,"latency_us":50,"bytes_per_second":1e9,"checksum_ok":true,"more":[]}"#;
        let (comm, latency) = (Duration::from_micros(12_500), Duration::from_micros(50));
        assert_eq!(judge(Some(full)), Probed::Passed { comm, latency, bytes_per_second: 1_000_000_000 });
        let (comm, latency) = (Duration::from_millis(3), Duration::ZERO);
        let short = br#"{"version":1,"comm_ms":3}"#;
        assert_eq!(judge(Some(short)), Probed::Passed { comm, latency, bytes_per_second: 0 });
    }

    #[test]
    fn an_invalid_result_is_quoted_with_its_error() {
        for (line, why) in [
            (r#"{"version":2,"comm_ms":1}"#, "unknown version 2"),
            (r#"{"version":1}"#, "comm_ms is missing"),
            (r#"{"version":1,"comm_ms":-1}"#, "comm_ms is not a time"),
            (r#"{"version":1,"comm_ms":1e300}"#, "comm_ms is not a time"),
            (r#"{"version":1,"comm_ms":1e999}"#, "out of range"),
            (r#"{"version":1,"comm_ms":1,"latency_us":-1}"#, "latency_us is not a time"),
            (r#"{"version":1,"comm_ms":1,"bytes_per_second":-5}"#, "bytes_per_second is negative"),
            (r#"{"version":1,"comm_ms":"fast"}"#, "invalid type"),
            ("done", "expected value"),
        ] {
            let reason = reason(line);
            assert!(reason.contains(why) && reason.ends_with(line), "{reason}");
        }
        assert!(reason(&"[".repeat(5000)).len() < 500);
        assert!(matches!(judge(None), Probed::Failed { .. }));
    }

    #[test]
    fn wrong_bytes_are_a_failure() {
        let line = r#"{"version":1,"comm_ms":1,"checksum_ok":false}"#;
        assert!(reason(line).contains("received wrong bytes"));
    }

    #[test]
    fn progress_is_distinguished_from_a_result() {
        let line = br#"{"progress":{"bytes":5,"total":9,"speed":1}}"#;
        assert_eq!(progress(line), Some(CommandProgress { bytes: 5, total: 9 }));
        assert_eq!(progress(br#"{"version":1,"comm_ms":1}"#), None);
        assert_eq!(progress(br#"{"progress":{"bytes":-5,"total":9}}"#), None);
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(line in proptest::collection::vec(any::<u8>(), 0..200), comm in any::<f64>()) {
            let _either_way = (judge(Some(&line)), progress(&line));
            let line = format!(r#"{{"version":1,"comm_ms":{comm:e},"bytes_per_second":{comm:e}}}"#);
            let _either_way = judge(Some(line.as_bytes()));
        }
    }
}
