//! Tables of a document: two columns, what is meant in code, and a verdict.

/// A row, such as `` | `--node-unit=1` | same | ``.
#[derive(Debug)]
pub(crate) struct Row {
    /// The first cell as it is.
    pub(crate) cell: String,
    /// The first code of it.
    pub(crate) line: String,
    pub(crate) verdict: String,
}

impl Row {
    /// The name before the value.
    pub(crate) fn flag(&self) -> &str {
        self.line.split_once('=').map_or(&*self.line, |(name, _)| name)
    }
}

/// The rows of all tables below a heading of the second level.
pub(crate) fn rows(document: &str, heading: &str) -> Vec<Row> {
    let begins = format!("## {heading}");
    let mut lines = document.lines().skip_while(|line| *line != begins).skip(1).peekable();
    assert!(lines.peek().is_some(), "there is no heading {heading}");
    let inside = lines.take_while(|line| !line.starts_with("## "));
    let rows = inside.filter(|line| line.starts_with("| `")).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [cell, verdict] = cells[..] else { panic!("not two cells: {line}") };
        let code = *names(cell).first().unwrap_or_else(|| panic!("no code: {line}"));
        Row { cell: cell.to_owned(), line: code.to_owned(), verdict: verdict.to_owned() }
    });
    rows.collect()
}

/// What stands between backticks.
pub(crate) fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}
