//! A table of measured bandwidths.

use super::{BadMatrix, MAX_GPUS, Matrix};

/// Numbers in GB/s, separated by commas, a line for each accelerator; the diagonal is ignored. Empty lines and those
/// that start with `#` are skipped.
pub(super) fn parse(text: &str) -> Result<Matrix, BadMatrix> {
    let is_row = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let lines: Vec<&str> = text.lines().map(str::trim).filter(is_row).collect();
    let is_table = |line: &&str| {
        line.contains(',') && line.starts_with(|c: char| c.is_ascii_digit() || "-X.".contains(c))
    };
    if !lines.first().is_some_and(is_table) {
        return Err(BadMatrix::NoTable);
    }
    if lines.len() > MAX_GPUS {
        return Err(BadMatrix::TooMany(lines.len()));
    }
    let mut rows = Vec::new();
    for (row, line) in lines.iter().enumerate() {
        let number = |(column, name): (usize, &str)| match name.trim().parse() {
            Ok(gbps) => Ok(gbps),
            Err(_) if column == row => Ok(0.0),
            Err(_) => Err(BadMatrix::Number { row, name: name.trim().chars().take(40).collect() }),
        };
        rows.push(line.split(',').enumerate().map(number).collect::<Result<Vec<f64>, _>>()?);
    }
    Matrix::measured(&rows)
}
