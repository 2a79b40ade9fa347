//! Precision and recall of what was said of the jobs of a corpus.

use std::fmt;

use diagnosis::counted::counted;

use crate::{
    case::Case,
    observed::{Observed, all_files},
};

/// A ratio with its counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measure {
    /// What was said and holds.
    right: u32,
    /// What was said and does not hold.
    wrong: u32,
    /// What was not said and holds.
    missed: u32,
}

impl Measure {
    fn add(&mut self, was_said: bool, holds: bool) {
        match (was_said, holds) {
            (true, true) => self.right += 1,
            (true, false) => self.wrong += 1,
            (false, true) => self.missed += 1,
            (false, false) => {}
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { right, wrong, missed } = *self;
        let ratio = |other: u32| 100.0 * f64::from(right) / f64::from((right + other).max(1));
        write!(
            f,
            "precision {:6.2} % ({right} of {}), recall {:6.2} % ({right} of {})",
            ratio(wrong),
            right + wrong,
            ratio(missed),
            right + missed
        )
    }
}

/// The figures of a corpus.
#[derive(Debug, Default)]
pub(crate) struct Score {
    cases: u32,
    /// Jobs that failed by themselves. Those that were to hang count as missed.
    failed: u32,
    /// Jobs that are healthy, and did not end.
    open: u32,
    declared: Measure,
    ranks: Measure,
    exact: u32,
    hangs: u32,
    reason: Measure,
    /// Hangs that were declared with all their files.
    complete: u32,
    /// Jobs of which all is right.
    right: u32,
    /// Seconds from the end of the timeout to the line.
    delays: Vec<f64>,
}

impl Score {
    /// Takes a case; returns its line of the table.
    pub(crate) fn add(&mut self, number: usize, case: &Case, observed: &Observed) -> String {
        self.cases += 1;
        self.failed += u32::from(matches!(observed, Observed::Failed(_)));
        let expected = case.expected();
        let hang = match observed {
            Observed::Declared(hang) => Some(hang),
            Observed::Ended | Observed::Unnoticed | Observed::Failed(_) => None,
        };
        self.declared.add(hang.is_some(), expected.is_some());
        let named = hang.map(|hang| hang.ranks()).unwrap_or_default();
        let at_fault = expected.clone().unwrap_or_default();
        for rank in 0..case.ranks {
            self.ranks.add(named.contains(&rank), at_fault.contains(&rank));
        }
        let is_reason_right =
            hang.is_some_and(|hang| case.says().iter().all(|word| hang.sentence().contains(word)));
        let is_exact = hang.is_some() && expected.is_some() && named == at_fault;
        if expected.is_some() {
            self.hangs += 1;
            self.exact += u32::from(is_exact);
            self.reason.add(hang.is_some() && is_reason_right, true);
        }
        if hang.is_some() && !(expected.is_some() && is_reason_right) {
            self.reason.wrong += 1;
        }
        let delay = hang.map(|hang| hang.after - f64::from(case.kind.timeout + case.kind.held));
        self.delays.extend(delay.filter(|_| expected.is_some()));
        let has_all_files = hang.is_some_and(|hang| hang.files == all_files(case.ranks));
        self.complete += u32::from(has_all_files && expected.is_some());
        let outcome = match (hang.is_some(), expected.is_some()) {
            (true, true) if !is_exact => "RANKS",
            (true, true) if !is_reason_right => "REASON",
            (true, true) if !has_all_files => "FILES",
            (true, true) => RIGHT,
            (true, false) => "FALSE",
            (false, true) => "MISSED",
            (false, false) if matches!(observed, Observed::Failed(_)) => "FAILED",
            (false, false) if matches!(observed, Observed::Unnoticed) => "OPEN",
            (false, false) => RIGHT,
        };
        self.right += u32::from(outcome == RIGHT);
        self.open += u32::from(outcome == "OPEN");
        let manner = case.manner.iter().filter(|argument| !argument.starts_with("--seed")).cloned();
        let manner = manner.map(|argument| argument.trim_start_matches("--").to_owned());
        let delay = delay.map_or_else(|| "-".to_owned(), |delay| format!("{delay:+.2} s"));
        let rank = if expected.is_some() { case.who.to_string() } else { "-".to_owned() };
        let text = match observed {
            Observed::Declared(hang) => hang.sentence().to_owned(),
            Observed::Ended => "no hang".to_owned(),
            Observed::Failed(why) => format!("failed by itself: {}", why.lines().next().unwrap_or_default()),
            Observed::Unnoticed => "neither ended nor declared".to_owned(),
        };
        format!(
            "{number:3} {outcome:6} {:26} {:2} {rank:>3} {delay:>8}  {text}  [{}]",
            case.kind.name,
            case.ranks,
            manner.collect::<Vec<_>>().join(" ")
        )
    }
}

impl Score {
    /// What falls short of the goals: no healthy job is declared, all hangs are in time, and the right ranks are named.
    pub(crate) fn shortfalls(&self) -> Vec<String> {
        let mut shortfalls = Vec::new();
        let late = self.delays.iter().filter(|delay| **delay > LONGEST_DELAY).count();
        let late = u32::try_from(late).unwrap_or(u32::MAX);
        for (count, noun, what) in [
            (self.declared.wrong, "healthy job", "declared as hanging"),
            (self.failed, "job", "ended by a failure"),
            (self.open, "healthy job", "without an end"),
            (self.declared.right - self.complete, "hang", "without all files"),
        ] {
            if count > 0 {
                shortfalls.push(format!("{} {what}", counted(count, noun)));
            }
        }
        if late > 0 {
            // A loaded host is slow in all that it does.
            let (load, hangs) = (load(), counted(late, "hang"));
            shortfalls
                .push(format!("{hangs} declared more than 2 s after the timeout; load average: {load}"));
        }
        if self.exact * 100 < self.hangs * GOAL {
            let (exact, hangs) = (self.exact, self.hangs);
            shortfalls.push(format!("exactly the right ranks in {exact} of {hangs} hangs, below {GOAL} %"));
        }
        shortfalls
    }
}

/// The load of this host over the last minute, as the kernel writes it.
fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// A job of which all is right, in the table.
const RIGHT: &str = "right";

/// Seconds after its timeout in which a hang is declared.
const LONGEST_DELAY: f64 = 2.0;

/// Of so many hangs in a hundred, exactly the ranks at fault must be named.
const GOAL: u32 = 95;

/// The head of the table.
pub(crate) const HEAD: &str =
    "  # result kind                       of who    after  what was said  [manner]";

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut delays = self.delays.clone();
        delays.sort_by(f64::total_cmp);
        let at =
            |permille: usize| delays.get((delays.len().max(1) - 1) * permille / 1000).copied().unwrap_or(0.0);
        let in_time = delays.iter().filter(|delay| **delay <= LONGEST_DELAY).count();
        writeln!(f, "{} cases, {} of which hang; {} failed", self.cases, self.hangs, self.failed)?;
        writeln!(f, "declared           {}", self.declared)?;
        writeln!(f, "right ranks named  {}; exactly those in {} of {}", self.ranks, self.exact, self.hangs)?;
        writeln!(f, "right reason       {}", self.reason)?;
        writeln!(f, "all files          {} of {}", self.complete, self.hangs)?;
        writeln!(f, "exactly {} of {} jobs right", self.right, self.cases)?;
        write!(
            f,
            "declared after the timeout by {:.2} s (median), {:.2} s (90 %), {:.2} s (most); within 2 s in {in_time} of {}",
            at(500),
            at(900),
            at(1000),
            delays.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::observed::Hang;

    /// A hang of two ranks that names these, with all its files.
    fn hang(ranks: &[u32]) -> Hang {
        Hang {
            line: String::new(),
            status: json!({ "ranks": ranks, "sentence": "rank 1 is in hang.py:40 search_for_sample" }),
            after: 2.5,
            files: all_files(2),
        }
    }

    /// The score of one job, and its outcome in the table.
    fn score_of(case: &Case, observed: &Observed) -> (Score, String) {
        let mut score = Score::default();
        let line = score.add(0, case, observed);
        let outcome = line.split_whitespace().nth(1).unwrap().to_owned();
        (score, outcome)
    }

    #[test]
    fn a_job_is_right_when_nothing_is_missing() {
        let case = Case::of("loop", 2, 1);
        let mut incomplete = hang(&[1]);
        assert!(incomplete.files.remove("py_stack.svg"));
        let mut unexplained = hang(&[1]);
        unexplained.status["sentence"] = "rank 1 has no process".into();
        for (hang, expected, right) in [
            (hang(&[1]), "right", 1),
            (hang(&[0, 1]), "RANKS", 0),
            (unexplained, "REASON", 0),
            (incomplete, "FILES", 0),
        ] {
            let (score, outcome) = score_of(&case, &Observed::Declared(Box::new(hang)));
            assert_eq!((outcome.as_str(), score.right), (expected, right));
            assert!(score.to_string().contains(&format!("\nexactly {right} of 1 jobs right\n")), "{score}");
        }
        assert_eq!(score_of(&case, &Observed::Ended).1, "MISSED");
        assert_eq!(score_of(&Case::of("healthy", 2, 1), &Observed::Ended).0.right, 1);
    }

    #[test]
    fn whatever_is_not_right_falls_short() {
        let (hangs, healthy) = (Case::of("loop", 2, 1), Case::of("healthy", 2, 1));
        let declared = |hang: Hang| Observed::Declared(Box::new(hang));
        let mut incomplete = hang(&[1]);
        assert!(incomplete.files.remove("py_stack.svg"));
        let failed = || Observed::Failed("code 1".to_owned());
        for (case, observed, outcome, shortfall) in [
            (&healthy, failed(), "FAILED", "1 job ended by a failure"),
            (&healthy, Observed::Unnoticed, "OPEN", "1 healthy job without an end"),
            (&hangs, declared(incomplete), "FILES", "1 hang without all files"),
            (
                &hangs,
                declared(Hang { after: 4.1, ..hang(&[1]) }),
                "right",
                "1 hang declared more than 2 s after the timeout",
            ),
        ] {
            let (score, found) = score_of(case, &observed);
            let shortfalls = score.shortfalls();
            let [found_shortfall] = &shortfalls[..] else { panic!("{shortfalls:?}") };
            assert_eq!(found, outcome);
            assert_eq!(found_shortfall.split("; load average: ").next(), Some(shortfall));
        }
        assert_eq!(score_of(&hangs, &failed()).0.shortfalls().len(), 2, "it was not declared either");
    }

    #[test]
    fn a_corpus_falls_short_of_its_goals() {
        let declared = |ranks: &[u32]| Observed::Declared(Box::new(hang(ranks)));
        let (score, outcome) = score_of(&Case::of("healthy", 2, 1), &declared(&[1]));
        assert_eq!(outcome, "FALSE");
        assert_eq!(score.shortfalls(), ["1 healthy job declared as hanging"]);
        let late = Observed::Declared(Box::new(Hang { after: 99.0, ..hang(&[1]) }));
        let (score, _) = score_of(&Case::of("healthy", 2, 1), &late);
        assert_eq!(score.shortfalls().len(), 1, "what does not hang is not late");
        let case = Case::of("loop", 2, 1);
        let mut score = Score::default();
        for ranks in std::iter::repeat_n(&[1][..], 19).chain([&[0][..]]) {
            let _line = score.add(0, &case, &declared(ranks));
        }
        assert_eq!(score.shortfalls(), [""; 0], "19 of 20");
        let _line = score.add(0, &case, &Observed::Unnoticed);
        assert_eq!(score.shortfalls(), ["exactly the right ranks in 19 of 21 hangs, below 95 %"]);
    }

    #[test]
    fn a_measure_counts() {
        let mut measure = Measure::default();
        for (was_said, holds) in
            [(true, true), (true, true), (true, true), (true, false), (false, true), (false, false)]
        {
            measure.add(was_said, holds);
        }
        assert_eq!(measure.to_string(), "precision  75.00 % (3 of 4), recall  75.00 % (3 of 4)");
    }
}
