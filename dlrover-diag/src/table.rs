//! Columns for humans.

use std::{fmt, ops::Range};

/// Lines of cells under a heading. Columns are as wide as their widest cell; those after the last filled one of a line
/// are left away.
#[derive(Debug, Default)]
pub(super) struct Table {
    lines: Vec<Vec<String>>,
    /// Columns of numbers, which end at the same place.
    numbers: Range<usize>,
}

impl Table {
    pub(super) fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self { lines: vec![heading.map(Into::into).into()], numbers: 0..0 }
    }

    /// The cells of these columns end at the same place.
    pub(super) fn with_numbers_in(self, numbers: Range<usize>) -> Self {
        Self { numbers, ..self }
    }

    pub(super) fn line(&mut self, cells: impl IntoIterator<Item = String>) {
        self.lines.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for line in &self.lines {
            let mut text = String::new();
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                match self.numbers.contains(&column) {
                    true => text.push_str(&format!("{cell:>width$}  ")),
                    false => text.push_str(&format!("{cell:width$}  ")),
                }
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["GPU", "PCI"]);
        table.line(["0".into(), "0000:10:00.0".into(), "x".into()]);
        table.line(["11".into(), String::new()]);
        assert_eq!(table.to_string(), "GPU  PCI\n0    0000:10:00.0  x\n11\n");
    }

    #[test]
    fn numbers_end_at_the_same_place() {
        let mut table = Table::new(["pair", "MB/s", "path"]).with_numbers_in(1..2);
        table.line(["0:1".into(), "7.5".into(), "pcie".into()]);
        assert_eq!(table.to_string(), "pair  MB/s  path\n0:1    7.5  pcie\n");
    }
}
