//! Where each stream of each worker goes, by the configuration.

use rules::LocalRank;

use crate::streams::Streams;

use super::stream::Stream;
use crate::config::{LogConfig, LogDir};

/// Where one stream of one worker goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// The worker writes to the launcher's own stream.
    Inherit,
    /// `/dev/null`.
    Discard,
    /// The worker writes to its log file itself.
    File,
    /// Through a relay: every byte to the log file, and whole lines with a prefix to the console.
    Tee,
    /// Through a relay that keeps the end for the failure report.
    Relay {
        /// Whether the bytes are forwarded to the console, unchanged.
        console: bool,
    },
}

/// Returns where `stream` of worker `local_rank` goes.
///
/// As torchrun, also in that tee wins over redirects, that a tee'd stream of a rank outside `--local-ranks-filter`
/// goes to its file only (and not to the filtered file), and that `--log-dir=/dev/null` switches redirects and tees
/// off. With the latter, torchrun ignores `--local-ranks-filter`; here it applies.
#[must_use]
pub fn plan(config: &LogConfig, local_rank: LocalRank, stream: Stream) -> Plan {
    let index = local_rank.0 as usize;
    let chosen = |streams: &[Streams]| stream.is_in(streams.get(index).copied().unwrap_or(Streams::NONE));
    let has_files = config.dir != LogDir::Nowhere;
    let console = config.console_ranks.as_ref().is_none_or(|ranks| ranks.contains(&local_rank.0));
    if has_files && chosen(&config.tee) {
        return if console { Plan::Tee } else { Plan::File };
    }
    if has_files && chosen(&config.redirects) {
        return Plan::File;
    }
    if stream == Stream::Err && config.keep_stderr_tail {
        return Plan::Relay { console };
    }
    if console { Plan::Inherit } else { Plan::Discard }
}

/// Whether both streams of a worker share the relay of its standard error: where the console is one file (`> log
/// 2>&1`, or a terminal), lines of two relays would overtake each other.
#[must_use]
pub fn shares_relay(out: Plan, err: Plan, one_console: bool) -> bool {
    one_console && out == Plan::Inherit && err == (Plan::Relay { console: true })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn config() -> LogConfig {
        LogConfig {
            dir: LogDir::At("/logs".into()),
            redirects: vec![Streams::NONE; 2],
            tee: vec![Streams::NONE; 2],
            prefix_template: "[${role_name}${local_rank}]:".into(),
            console_ranks: None,
            stdout_filters: Vec::new(),
            stderr_filters: Vec::new(),
            keep_stderr_tail: true,
        }
    }

    const BOTH: Streams = Streams { out: true, err: true };

    fn plans(config: &LogConfig, local_rank: u32) -> (Plan, Plan) {
        let rank = LocalRank(local_rank);
        (plan(config, rank, Stream::Out), plan(config, rank, Stream::Err))
    }

    #[test]
    fn by_default_stdout_is_inherited_and_stderr_passes_a_relay() {
        assert_eq!(plans(&config(), 0), (Plan::Inherit, Plan::Relay { console: true }));
        let without_tail = LogConfig { keep_stderr_tail: false, ..config() };
        assert_eq!(plans(&without_tail, 0), (Plan::Inherit, Plan::Inherit));
    }

    #[test]
    fn a_tee_wins_over_a_redirect_of_the_same_stream() {
        let config = LogConfig {
            redirects: vec![BOTH, Streams::NONE],
            tee: vec![Streams { out: true, err: false }, Streams::NONE],
            ..config()
        };
        assert_eq!(plans(&config, 0), (Plan::Tee, Plan::File));
        assert_eq!(plans(&config, 1), (Plan::Inherit, Plan::Relay { console: true }));
    }

    #[test]
    fn a_rank_outside_the_filter_never_reaches_the_console() {
        let ranks = Some(BTreeSet::from([0]));
        let config = LogConfig { console_ranks: ranks, ..config() };
        assert_eq!(plans(&config, 0), (Plan::Inherit, Plan::Relay { console: true }));
        assert_eq!(plans(&config, 1), (Plan::Discard, Plan::Relay { console: false }));
        let without_tail = LogConfig { keep_stderr_tail: false, ..config.clone() };
        assert_eq!(plans(&without_tail, 1), (Plan::Discard, Plan::Discard));
        let tee = LogConfig { tee: vec![BOTH; 2], ..config };
        assert_eq!(plans(&tee, 0), (Plan::Tee, Plan::Tee));
        assert_eq!(plans(&tee, 1), (Plan::File, Plan::File));
    }

    #[test]
    fn without_a_folder_nothing_is_redirected_or_teed() {
        let config =
            LogConfig { dir: LogDir::Nowhere, redirects: vec![BOTH; 2], tee: vec![BOTH; 2], ..config() };
        assert_eq!(plans(&config, 0), (Plan::Inherit, Plan::Relay { console: true }));
    }

    #[test]
    fn a_rank_that_the_configuration_does_not_name_has_no_file() {
        let config = LogConfig { redirects: vec![BOTH], ..config() };
        assert_eq!(plans(&config, 7), (Plan::Inherit, Plan::Relay { console: true }));
    }

    #[test]
    fn both_streams_share_a_relay_only_where_the_console_is_one() {
        let relay = Plan::Relay { console: true };
        assert!(shares_relay(Plan::Inherit, relay, true));
        assert!(!shares_relay(Plan::Inherit, relay, false));
        assert!(!shares_relay(Plan::File, relay, true));
        assert!(!shares_relay(Plan::Inherit, Plan::Relay { console: false }, true));
    }
}
