//! The command line of a bench.

use crate::Outcome;

/// Which cases are measured, and how often.
#[derive(Debug)]
pub struct Cases {
    /// Rounds of each case.
    pub rounds: usize,
    wanted: Vec<String>,
}

impl Cases {
    /// Parses this process's arguments: names of cases, and `--rounds N`.
    ///
    /// # Errors
    /// An argument is neither, or the number is not above 0.
    pub fn from_args(known: &[&str], rounds: usize) -> Outcome<Self> {
        let mut cases = Self { rounds, wanted: Vec::new() };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            if arg == "--rounds" {
                let number = args.next().and_then(|text| text.parse().ok());
                cases.rounds =
                    number.filter(|rounds| *rounds > 0).ok_or("--rounds needs a number above 0")?;
            } else if known.contains(&&*arg) {
                cases.wanted.push(arg);
            } else {
                return Err(format!("unknown case `{arg}`; cases are {}", known.join(", ")).into());
            }
        }
        Ok(cases)
    }

    /// Returns whether a case is measured: all are unless some are named.
    #[must_use]
    pub fn has(&self, case: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|wanted| wanted == case)
    }
}
