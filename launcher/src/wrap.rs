//! Wraps the report of a failure at words, where it is written to a terminal.

use std::io;

use agent::LogFormat;
use terminal_size::{Width, terminal_size_of};

/// A narrower terminal gets lines as they are.
const NARROWEST: usize = 40;

/// What a line of a worker begins with in the report; such a line stays as it is.
const QUOTED: &str = "    | ";

/// The report as standard error gets it.
pub(crate) fn for_stderr(format: LogFormat, report: String) -> String {
    match (format, terminal_size_of(io::stderr())) {
        (LogFormat::Text, Some((Width(columns), _))) => wrapped(&report, columns.into()),
        _ => report,
    }
}

/// Lines of at most `columns`, as far as words allow it. torchrun's box, quoted lines and paths stay whole.
fn wrapped(report: &str, columns: usize) -> String {
    if columns < NARROWEST {
        return report.to_owned();
    }
    let mut text = String::new();
    // torchrun's report has indented lines too.
    let mut is_message = false;
    for line in report.lines() {
        is_message = line.starts_with("dlrover-run: ") || (is_message && line.starts_with("  "));
        if !is_message || line.starts_with(QUOTED) || line.chars().count() <= columns {
            text.push_str(line);
        } else {
            wrap_line(&mut text, line, columns);
        }
        text.push('\n');
    }
    text
}

/// The rest of a long line is indented two columns deeper than the line.
fn wrap_line(text: &mut String, line: &str, columns: usize) {
    let body = line.trim_start_matches(' ');
    let indent = line.len() - body.len();
    let rest = " ".repeat(indent + 2);
    text.push_str(&" ".repeat(indent));
    let mut width = indent;
    for (place, word) in body.split(' ').enumerate() {
        let length = word.chars().count();
        if place > 0 && width + 1 + length > columns {
            text.push('\n');
            text.push_str(&rest);
            width = rest.len();
        } else if place > 0 {
            text.push(' ');
            width += 1;
        }
        text.push_str(word);
        width += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_wrapped_and_quotes_are_not() {
        let quoted = format!("    | {}", "word ".repeat(12).trim_end());
        let root = "Root Cause (first observed failure): and more words than fit into the line";
        let report = format!(
            "{root}\n  {root}\ndlrover-run: rank 0 failed first: killed by the kernel's OOM killer\n  log: /a/very/long/path/that/is/longer/than/a/line\n{quoted}\n"
        );
        let text = wrapped(&report, 40);
        assert_eq!(
            text,
            format!(
                "{root}\n  {root}\ndlrover-run: rank 0 failed first: killed\n  by the kernel's OOM killer\n  log:\n    \
                 /a/very/long/path/that/is/longer/than/a/line\n{quoted}\n"
            )
        );
        assert_eq!(wrapped(&report, 39), report);
    }
}
