//! How much is measured: the command line of the bench.

use crate::Outcome;

/// The cases, in the order in which they are measured.
pub const CASES: [&str; 5] = ["dump", "merge", "hang", "pause", "armed"];

/// More workers than that are no longer a node.
const MAX_RANKS: usize = 1024;

/// What is measured, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Amount {
    /// Workers of a job, 2 to 1024.
    pub ranks: usize,
    /// Rounds of each case, above 0.
    pub rounds: usize,
    wanted: Vec<String>,
}

impl Amount {
    /// Parses arguments: names of cases, `--ranks N` and `--rounds N`.
    ///
    /// # Errors
    /// An argument is none of these, or a number is not in its range.
    pub fn of(mut args: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut amount = Self { ranks: 64, rounds: 5, wanted: Vec::new() };
        while let Some(arg) = args.next() {
            let mut number = |least: usize, most: usize| {
                let number = args.next().and_then(|text| text.parse().ok());
                let number = number.filter(|number| (least..=most).contains(number));
                number.ok_or_else(|| format!("{arg} needs a number from {least} to {most}"))
            };
            match arg.as_str() {
                "--ranks" => amount.ranks = number(2, MAX_RANKS)?,
                "--rounds" => amount.rounds = number(1, 10_000)?,
                case if CASES.contains(&case) => amount.wanted.push(arg),
                _ => return Err(format!("unknown case `{arg}`; cases are {}", CASES.join(", ")).into()),
            }
        }
        Ok(amount)
    }

    /// Returns whether a case is measured: all are unless some are named.
    #[must_use]
    pub fn has(&self, case: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|wanted| wanted == case)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Amount, String> {
        Amount::of(line.split_ascii_whitespace().map(str::to_owned)).map_err(|error| error.to_string())
    }

    #[test]
    fn all_cases_are_measured_unless_some_are_named() {
        let all = of("").unwrap();
        assert_eq!((all.ranks, all.rounds), (64, 5));
        assert!(CASES.iter().all(|case| all.has(case)));
        let one = of("merge --ranks 8 --rounds 2").unwrap();
        assert_eq!((one.ranks, one.rounds), (8, 2));
        assert!(one.has("merge") && !one.has("dump"));
    }

    #[test]
    fn a_number_out_of_range_and_an_unknown_case_are_refused() {
        for wrong in ["--ranks 1", "--ranks 1025", "--ranks x", "--rounds 0", "--rounds", "--ranks -2"] {
            let (option, _) = wrong.split_once(' ').unwrap_or((wrong, ""));
            assert!(of(wrong).unwrap_err().starts_with(&format!("{option} needs a number from ")), "{wrong}");
        }
        assert!(of("dmp").unwrap_err().starts_with("unknown case `dmp`; cases are dump, "));
    }
}
