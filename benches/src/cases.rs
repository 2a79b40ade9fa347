//! What a bench is asked for on its command line.

use crate::Outcome;

/// Which cases are measured, and how often.
#[derive(Debug)]
pub struct Cases {
    /// So many rounds.
    pub rounds: usize,
    wanted: Vec<String>,
}

impl Cases {
    /// From this process's arguments: names of cases, and `--rounds N`.
    ///
    /// # Errors
    /// When a word is neither, or the number is none above 0.
    pub fn from_line(known: &[&str], rounds: usize) -> Outcome<Self> {
        let mut cases = Self { rounds, wanted: Vec::new() };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            if word == "--rounds" {
                let number = words.next().and_then(|text| text.parse().ok());
                cases.rounds =
                    number.filter(|rounds| *rounds > 0).ok_or("--rounds needs a number above 0")?;
            } else if known.contains(&&*word) {
                cases.wanted.push(word);
            } else {
                return Err(format!("`{word}` is no case; cases are {}", known.join(", ")).into());
            }
        }
        Ok(cases)
    }

    /// All are, unless some are named.
    #[must_use]
    pub fn has(&self, case: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|wanted| wanted == case)
    }
}
