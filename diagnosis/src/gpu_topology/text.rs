//! The table that `nvidia-smi topo -m` and `mx-smi topo -m` print.
//!
//! ```text
//!         GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
//! GPU0     X      NV1     PIX     0-19,40-59      0               N/A
//! GPU1    NV1      X      PIX     0-19,40-59      0               N/A
//! NIC0    PIX     PIX      X
//! ```
//!
//! Separated by tabs or any number of spaces, maybe underlined or coloured for a terminal, with text before, a legend
//! after.

use super::{BadMatrix, LinkKind, MAX_GPUS, Matrix, measured};

impl Matrix {
    /// More than any host prints, in bytes: 16 accelerators and 64 network cards are about 30 KiB.
    pub const LONGEST_TEXT: usize = 256 << 10;

    /// Parses the table of `nvidia-smi topo -m` or `mx-smi topo -m`, or measured bandwidths: numbers in GB/s,
    /// separated by commas, a line for each accelerator.
    ///
    /// # Errors
    ///
    /// When there is no table, or it is cut off, not square, not symmetric, too large or has unknown links.
    pub fn parse(text: &str) -> Result<Self, BadMatrix> {
        if text.len() > Self::LONGEST_TEXT {
            return Err(BadMatrix::TooLong(Self::LONGEST_TEXT));
        }
        let text = without_escapes(text);
        let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
        let Some(header) = lines.find(|message| message.first() == Some(&"GPU0")) else {
            return measured::parse(&text);
        };
        let heads = heads(&header);
        let columns = columns(&heads)?;
        let numa_column = heads.iter().position(|head| matches!(*head, "NUMA" | "Node"));
        let (mut rows, mut numa) = (Vec::new(), Vec::new());
        for message in lines {
            let Some((name, cells)) = message.split_first().filter(|(name, _)| number(name).is_some()) else {
                continue;
            };
            let row = rows.len();
            if number(name) != Some(row) {
                return Err(BadMatrix::Row { expected: format!("GPU{row}"), found: shown(name) });
            }
            if row == columns.len() {
                return Err(BadMatrix::NotSquare { columns: columns.len(), rows: row + 1 });
            }
            let cell = |column: &usize| cells.get(*column).ok_or(cells.len());
            let links: Result<Vec<&&str>, usize> = columns.iter().map(cell).collect();
            let links = links.map_err(|cells| BadMatrix::RowLength { row, cells, columns: columns.len() })?;
            let links = links.iter().map(|name| name.parse::<LinkKind>());
            rows.push(
                links.collect::<Result<Vec<LinkKind>, _>>().map_err(|name| BadMatrix::Link { row, name })?,
            );
            // With an empty cell it is ambiguous which one it is; then the NUMA node is unknown.
            let is_complete = cells.len() == heads.len();
            numa.push(numa_column.filter(|_| is_complete).and_then(|column| cells[column].parse().ok()));
        }
        if rows.len() != columns.len() {
            return Err(BadMatrix::NotSquare { columns: columns.len(), rows: rows.len() });
        }
        Self::new(&rows, &numa)
    }
}

/// The places of the accelerators' columns.
fn columns(heads: &[&str]) -> Result<Vec<usize>, BadMatrix> {
    let mut columns = Vec::new();
    for (place, head) in heads.iter().enumerate() {
        match number(head) {
            None => {}
            Some(number) if number == columns.len() => columns.push(place),
            Some(_) => return Err(BadMatrix::Column(shown(head))),
        }
    }
    if columns.len() > MAX_GPUS { Err(BadMatrix::TooMany(columns.len())) } else { Ok(columns) }
}

/// The names of the columns. Some have spaces, as many as there are between two columns.
fn heads<'a>(mut message: &[&'a str]) -> Vec<&'a str> {
    const LONG: [&[&str]; 4] =
        [&["GPU", "NUMA", "ID"], &["CPU", "Affinity"], &["NUMA", "Affinity"], &["Node", "Affinity"]];
    let mut heads = Vec::new();
    while let Some((first, rest)) = message.split_first() {
        let long = LONG.iter().find(|long| message.starts_with(long));
        // The first part of a name is enough to recognize it: `NUMA`.
        heads.push(*first);
        message = long.map_or(rest, |long| &message[long.len()..]);
    }
    heads
}

/// `GPU7` is 7.
fn number(name: &str) -> Option<usize> {
    let digits = name.strip_prefix("GPU")?;
    digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Foreign text, for an error.
fn shown(name: &str) -> String {
    name.chars().take(40).collect()
}

/// Underlined headers for terminals are `ESC [ ... letter`.
fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(letter) = rest.next() {
        match letter {
            '\u{1b}' => {
                if rest.next() == Some('[') {
                    // Parameters, up to and with the final byte.
                    let _final = rest.find(|letter| ('@'..='~').contains(letter));
                }
            }
            '\t' | '\n' => plain.push(letter),
            _ if letter.is_control() => plain.push(' '),
            _ => plain.push(letter),
        }
    }
    plain
}
