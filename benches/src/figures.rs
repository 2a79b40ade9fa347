//! Measurements, and how they are printed.

use std::{
    fmt,
    io::{IsTerminal as _, Write as _},
};

use crate::Outcome;

/// Sorted measurements of one quantity of one side.
#[derive(Debug, Default, Clone)]
pub struct Figures(Vec<f64>);

impl Figures {
    pub fn add(&mut self, figure: f64) {
        let at = self.0.partition_point(|other| *other < figure);
        self.0.insert(at, figure);
    }

    /// Adds many.
    pub fn extend(&mut self, figures: &[f64]) {
        self.0.extend_from_slice(figures);
        self.0.sort_by(f64::total_cmp);
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the quantile of this share; NaN if there are no figures.
    #[must_use]
    pub fn at(&self, share: f64) -> f64 {
        let index = (self.0.len().saturating_sub(1) as f64 * share).round();
        self.0.get(index as usize).copied().unwrap_or(f64::NAN)
    }

    #[must_use]
    pub fn median(&self) -> f64 {
        self.at(0.5)
    }
}

/// Three significant digits.
#[derive(Debug, Clone, Copy)]
pub struct Short(pub f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.0.abs() {
            size if size < 10.0 => 2,
            size if size < 100.0 => 1,
            _ => 0,
        };
        // Through a string, so that width and alignment apply.
        f.pad(&format!("{:.digits$}", self.0))
    }
}

/// Prints one side's line under the heading of its row.
///
/// # Errors
/// Standard output cannot be written.
pub fn line(name: &str, figures: &Figures, unit: &str) -> Outcome<()> {
    let (low, high) = if figures.len() < 10 { (0.0, 1.0) } else { (0.1, 0.9) };
    let range = if figures.len() < 10 { "least .. most" } else { "p10 .. p90" };
    writeln!(
        std::io::stdout(),
        "  {name:10} {:>8} {unit:6} ({} .. {}; {range} of {})",
        Short(figures.median()),
        Short(figures.at(low)),
        Short(figures.at(high)),
        figures.len()
    )?;
    Ok(())
}

/// Prints a goal and what was measured; nothing when one side is missing.
///
/// # Errors
/// Standard output cannot be written.
pub fn goal(text: &str, measured: f64, unit: &str, at_most: f64) -> Outcome<()> {
    if measured.is_finite() {
        let verdict = if measured <= at_most { "holds" } else { "does not hold" };
        writeln!(std::io::stdout(), "  goal: at most {text}: {}{unit}, {verdict}", Short(measured))?;
    }
    Ok(())
}

/// Prints a goal relative to torchrun.
///
/// # Errors
/// Standard output cannot be written.
pub fn goal_of_peer(one_of: f64, ours: &Figures, peer: &Figures) -> Outcome<()> {
    let times = peer.median() / ours.median();
    if times.is_finite() {
        let verdict = if times >= one_of { "holds" } else { "does not hold" };
        writeln!(std::io::stdout(), "  goal: 1/{one_of:.0} of torchrun: 1/{times:.0}, {verdict}")?;
    }
    Ok(())
}

/// Prints a ratio without a goal.
///
/// # Errors
/// Standard output cannot be written.
pub fn ratio(what: &str, ratio: f64) -> Outcome<()> {
    if ratio.is_finite() {
        writeln!(std::io::stdout(), "  {what}: {}", Short(ratio))?;
    }
    Ok(())
}

/// Prints the heading of a row.
///
/// # Errors
/// Standard output cannot be written.
pub fn heading(text: &str) -> Outcome<()> {
    writeln!(std::io::stdout(), "\n{text}")?;
    Ok(())
}

/// Prints on standard error what is being measured: in place on a terminal, else a line each.
///
/// # Errors
/// Standard error cannot be written.
pub fn progress(what: fmt::Arguments<'_>) -> Outcome<()> {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        write!(out, "\r\x1b[K{what}")?;
    } else if what.as_str() != Some("") {
        writeln!(out, "{what}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_does_not_depend_on_the_order() {
        let mut figures = Figures::default();
        [3.0, 1.0, 2.0].into_iter().for_each(|figure| figures.add(figure));
        assert_eq!((figures.at(0.0), figures.median(), figures.at(1.0)), (1.0, 2.0, 3.0));
        assert!(Figures::default().median().is_nan());
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(format!("{:>6}", Short(0.0123)), "  0.01");
        assert_eq!(Short(12.34).to_string(), "12.3");
        assert_eq!(Short(1234.5).to_string(), "1234");
    }
}
