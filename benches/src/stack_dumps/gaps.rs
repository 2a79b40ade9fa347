//! The times for which a worker did not run, as it has noted them itself.

use std::{fs, path::Path};

use crate::Outcome;

/// Numbers of 8 bytes in the file: two for each gap.
const NUMBERS: usize = 1 << 19;

/// A time for which the worker did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) ended_ns: u64,
    pub(super) length_ns: u64,
}

/// Makes an empty file, which the worker maps into its memory.
pub(super) fn make(path: &Path) -> Outcome<()> {
    Ok(fs::write(path, vec![0; NUMBERS * 8])?)
}

/// Reads what the worker has noted.
pub(super) fn read(path: &Path) -> Outcome<Vec<Gap>> {
    let gaps = parse(&fs::read(path)?);
    if gaps.len() == NUMBERS / 2 { Err("the worker has noted more gaps than fit".into()) } else { Ok(gaps) }
}

/// The last one may have its end and not yet its length.
fn parse(bytes: &[u8]) -> Vec<Gap> {
    let (numbers, _) = bytes.as_chunks::<8>();
    let (pairs, _) = numbers.as_chunks::<2>();
    let gap = |[ended, length]: &[[u8; 8]; 2]| Gap {
        ended_ns: u64::from_ne_bytes(*ended),
        length_ns: u64::from_ne_bytes(*length),
    };
    pairs.iter().map(gap).take_while(|gap| gap.length_ns > 0).collect()
}

/// What a worker did not run in a window of time, in ms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Missed {
    pub(super) longest: f64,
    pub(super) sum: f64,
}

/// The gaps that end in a window.
pub(super) fn within(gaps: &[Gap], from_ns: u64, to_ns: u64) -> Missed {
    let lengths =
        gaps.iter().filter(|gap| (from_ns..=to_ns).contains(&gap.ended_ns)).map(|gap| gap.length_ns);
    let (longest, sum) = lengths.fold((0, 0), |(longest, sum), length| (length.max(longest), sum + length));
    Missed { longest: longest as f64 / 1e6, sum: sum as f64 / 1e6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_without_its_length_is_not_there_yet() {
        let numbers: [u64; 8] = [100, 30, 200, 50, 300, 0, 0, 0];
        let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_ne_bytes).collect();
        let gaps = [(100, 30), (200, 50)].map(|(ended_ns, length_ns)| Gap { ended_ns, length_ns });
        assert_eq!(parse(&bytes), gaps);
        assert_eq!(parse(&[]), []);
    }

    #[test]
    fn gaps_belong_to_the_window_in_which_they_end() {
        let gap = |ended_ns, length_ns| Gap { ended_ns, length_ns };
        let gaps = [gap(5_000_000, 1_000_000), gap(9_000_000, 2_000_000), gap(20_000_000, 7_000_000)];
        assert_eq!(within(&gaps, 5_000_000, 10_000_000), Missed { longest: 2.0, sum: 3.0 });
        assert_eq!(within(&gaps, 10_000_000, 11_000_000), Missed { longest: 0.0, sum: 0.0 });
    }
}
