//! The catalogue as a page.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{
    areas::{self, AREAS, Area},
    scan::Message,
};

const HEAD: &str = "\
# Messages

Every message of the programs, by area and source file: its text with placeholders in braces, and when it appears (the
documentation of its place in the source). Fragments of fewer than three words are not here. The messages of the Python
package `dlrover_run` and of the template of warm workers are in packaging/wheel/python and agent/src/warm.

To find a message, search for three or four words of it without values; lines are wrapped here.

Made from the sources by `DLROVER_RENEW_MESSAGES=1 cargo test -p dlrover-tests --test messages`; the same test fails
when a message is missing. Do not edit it by hand.
";

/// Columns of a line at most.
const WIDTH: usize = 116;

pub(crate) fn render(files: &BTreeMap<String, Vec<Message>>) -> String {
    let mut page = format!("{HEAD}\n");
    for Area { title, .. } in &AREAS {
        let is_of_link = |letter: &char| letter.is_alphanumeric() || matches!(letter, ' ' | '-');
        let link: String = title.to_lowercase().chars().filter(is_of_link).collect();
        writeln!(page, "- [{title}](#{})", link.replace(' ', "-")).unwrap();
    }
    for (number, area) in AREAS.iter().enumerate() {
        write!(page, "\n## {}\n", area.title).unwrap();
        for (file, messages) in files.iter().filter(|(file, _)| areas::of(file) == Some(number)) {
            write!(page, "\n### {file}\n").unwrap();
            let mut last = None;
            for Message { text, when } in messages {
                if last != Some(when) {
                    write!(page, "\n{}\n\n", wrapped(when, "")).unwrap();
                    last = Some(when);
                }
                let ticks = if text.contains('`') { "``" } else { "`" };
                let pad = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
                writeln!(page, "- {}", wrapped(&format!("{ticks}{pad}{text}{pad}{ticks}"), "  ")).unwrap();
            }
        }
    }
    page
}

/// Lines of at most [`WIDTH`] columns; all but the first begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let (mut lines, mut width) = (String::new(), indent.len());
    for word in text.split(' ') {
        let length = word.chars().count();
        if width > indent.len() && width + 1 + length > WIDTH {
            write!(lines, "\n{indent}").unwrap();
            width = indent.len();
        } else if width > indent.len() {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines
}
