//! Sorts argv. An ElasticJob names this program in the command of its master pod, and the operator adds what
//! dlrover's own master understands, or will: words that mean nothing here are put aside.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
};

use super::arguments::{OF_DLROVER, command};

/// Argv, sorted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sorted {
    /// The program's name and what [`command`] knows, in its spelling, each value with its option.
    pub(super) known: Vec<OsString>,
    /// What neither we nor dlrover know, as it was written.
    pub(super) unknown: Vec<String>,
}

/// What an option takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Ours, with a value.
    Valued,
    /// Ours, without one.
    Plain,
    /// dlrover's, which changes nothing here.
    OfDlrover,
    /// Nobody's.
    Unknown,
}

/// Sorts the words of the line, of which the first names the program.
pub(super) fn sort(words: impl IntoIterator<Item = OsString>) -> Sorted {
    let command = command();
    let kind = |name: &str| {
        let ours = command.get_arguments().find(|arg| {
            arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|others| others.contains(&name))
        });
        match ours {
            Some(arg) if arg.get_action().takes_values() => Kind::Valued,
            Some(_) => Kind::Plain,
            None if matches!(name, "help" | "version") => Kind::Plain,
            None if OF_DLROVER.contains(&name) => Kind::OfDlrover,
            None => Kind::Unknown,
        }
    };
    let mut words = words.into_iter().peekable();
    let (mut known, mut unknown): (Vec<_>, Vec<_>) = (words.next().into_iter().collect(), Vec::new());
    while let Some(word) = words.next() {
        if word == "-h" || word == "-V" {
            known.push(word);
            continue;
        }
        let Some((name, value)) = option(&word) else {
            unknown.push(word.to_string_lossy().into_owned());
            continue;
        };
        let kind = kind(&name);
        let takes_next = value.is_none() && kind != Kind::Plain;
        // A value that looks like an option is one, unless the option before it wants a value for sure.
        let is_value = |next: &OsString| !next.as_bytes().starts_with(b"--");
        let next = if takes_next { words.next_if(is_value) } else { None };
        let value = value.or_else(|| next.clone());
        match kind {
            Kind::Valued | Kind::Plain => known.push(spelled(&name, value)),
            Kind::OfDlrover => {}
            Kind::Unknown => {
                unknown.push(word.to_string_lossy().into_owned());
                unknown.extend(next.map(|next| next.to_string_lossy().into_owned()));
            }
        }
    }
    Sorted { known, unknown }
}

/// The name of an option, with `-` for `_`, and the value that is joined to it; `None` for another word.
fn option(word: &OsStr) -> Option<(String, Option<OsString>)> {
    let text = word.as_bytes().strip_prefix(b"--")?;
    let end = text.iter().position(|byte| *byte == b'=').unwrap_or(text.len());
    let (name, value) = text.split_at(end);
    let name = String::from_utf8_lossy(name).replace('_', "-");
    let value = value.strip_prefix(b"=").map(|value| OsString::from_vec(value.to_vec()));
    (!name.is_empty()).then_some((name, value))
}

fn spelled(name: &str, value: Option<OsString>) -> OsString {
    let mut word = OsString::from(format!("--{name}"));
    if let Some(value) = value {
        word.push("=");
        word.push(value);
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(line: &str) -> (String, String) {
        let Sorted { known, unknown } = sort(line.split(' ').map(OsString::from));
        let known: Vec<_> = known.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        (known.join(" "), unknown.join(" "))
    }

    fn is(line: &str, known: &str, unknown: &str) {
        assert_eq!(sorted(line), (known.to_owned(), unknown.to_owned()), "{line}");
    }

    #[test]
    fn the_operators_line_passes() {
        is(
            "m --platform pyk8s --namespace ns --job_name j --port 50001 --pending_timeout 900 \
             --pre_check_ops [] --pre_check_bypass True --enable_dashboard --dashboard_port=8080",
            "m --platform=pyk8s --namespace=ns --job-name=j --port=50001",
            "",
        );
    }

    #[test]
    fn both_spellings_and_both_forms_are_one() {
        let known = "m --job-name=j --state-dir=/s --restart-counts=2";
        is("m --job_name j --state_dir=/s --restart_counts 2", known, "");
        is("m --job-name=j --state-dir /s --restart-counts=2", known, "");
    }

    #[test]
    fn what_nobody_knows_is_put_aside_with_its_value() {
        is("m --new 7 --port 5", "m --port=5", "--new 7");
        is("m --new=7 bare --port=5 -x", "m --port=5", "--new=7 bare -x");
        is("m --new --port 5", "m --port=5", "--new");
        is("m -- --port 5", "m --port=5", "--");
    }

    #[test]
    fn a_value_that_is_missing_is_left_to_be_said() {
        is("m --port --job_name j", "m --port --job-name=j", "");
        is("m --port -5 --help", "m --port=-5 --help", "");
    }
}
