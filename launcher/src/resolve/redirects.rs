//! The grammar of `--redirects` and `--tee`: one value for all workers, `3`, or `rank:value` pairs, `0:3,1:2`.
//!
//! torchrun takes single-digit ranks only; here `10:1` is fine too. All that torchrun takes means the same.

use agent::Streams;

/// Why a value is not a choice of streams.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadStreams {
    /// Not one of 0 to 3.
    #[error("`{0}` is not one of 0 (none), 1 (stdout), 2 (stderr), 3 (both), nor a list such as 0:3,1:2")]
    Value(String),
    /// A local rank that is not a number.
    #[error("`{0}` is not a local rank: give rank:streams pairs such as 0:3,1:2")]
    Rank(String),
}

/// The streams of each local rank of `local_world_size`. Ranks that a list leaves out have none, ranks beyond
/// the last worker are ignored, and the last value of a rank counts.
pub(crate) fn parse(text: &str, local_world_size: u32) -> Result<Vec<Streams>, BadStreams> {
    let size = local_world_size as usize;
    if !text.contains(':') {
        return Ok(vec![streams(text)?; size]);
    }
    let mut by_rank = vec![Streams::NONE; size];
    for pair in text.split(',') {
        let (rank, value) = pair.split_once(':').ok_or_else(|| BadStreams::Value(pair.to_owned()))?;
        if rank.is_empty() || !rank.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(BadStreams::Rank(rank.to_owned()));
        }
        let value = streams(value)?;
        // A rank too large for a number is beyond the last worker all the more.
        if let Some(of_rank) = rank.parse().ok().and_then(|rank: usize| by_rank.get_mut(rank)) {
            *of_rank = value;
        }
    }
    Ok(by_rank)
}

fn streams(text: &str) -> Result<Streams, BadStreams> {
    let bits = match text.as_bytes() {
        [digit @ b'0'..=b'3'] => Streams::from_bits(digit - b'0'),
        _ => None,
    };
    bits.ok_or_else(|| BadStreams::Value(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONE: Streams = Streams::NONE;
    const OUT: Streams = Streams { out: true, err: false };
    const ERR: Streams = Streams { out: false, err: true };
    const BOTH: Streams = Streams { out: true, err: true };

    #[test]
    fn one_value_is_for_every_worker() {
        assert_eq!(parse("0", 2), Ok(vec![NONE; 2]));
        assert_eq!(parse("1", 2), Ok(vec![OUT; 2]));
        assert_eq!(parse("2", 1), Ok(vec![ERR]));
        assert_eq!(parse("3", 3), Ok(vec![BOTH; 3]));
    }

    #[test]
    fn a_list_is_by_rank_and_what_it_leaves_out_is_none() {
        assert_eq!(parse("0:3,2:2", 4), Ok(vec![BOTH, NONE, ERR, NONE]));
        assert_eq!(parse("0:3,0:1", 1), Ok(vec![OUT]));
    }

    #[test]
    fn ranks_beyond_the_last_worker_are_ignored() {
        assert_eq!(parse("0:1,7:3,99999999999999999999:1", 1), Ok(vec![OUT]));
    }

    #[test]
    fn ranks_of_two_digits_are_fine_though_torchrun_refuses_them() {
        assert_eq!(parse("10:1", 11).map(|streams| streams[10]), Ok(OUT));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in
            ["", "4", "9", "33", " 3", "0:4", "0:", ":1", "0:1,", ",0:1", "a:1", "0:1,2", "-1:1", "0:1:2"]
        {
            assert!(parse(text, 2).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".*", size in 1u32..20) {
            let _ = parse(&text, size);
        }

        #[test]
        fn what_torchrun_takes_is_taken(pairs in prop::collection::vec((0usize..10, 0u8..4), 1..6)) {
            let text = pairs.iter().map(|(rank, bits)| format!("{rank}:{bits}")).collect::<Vec<_>>().join(",");
            let parsed = parse(&text, 10).expect("torchrun's grammar");
            for (rank, bits) in &pairs {
                let last = pairs.iter().rev().find(|(other, _)| other == rank).map(|(_, bits)| *bits);
                prop_assert_eq!(Streams::from_bits(last.unwrap_or(*bits)), Some(parsed[*rank]));
            }
        }
    }
}
