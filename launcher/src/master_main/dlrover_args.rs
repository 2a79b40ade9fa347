//! Removes the options of dlrover's own master from argv. An ElasticJob names this program in the command of its
//! master pod, and the operator adds arguments that mean nothing here. What neither knows is left for clap to refuse: a
//! typo such as `--prot` must not end in a master on a random port.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
};

use super::arguments::{OF_DLROVER, command};

/// What an option takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Ours, with a value.
    Valued,
    /// dlrover's, which changes nothing here.
    OfDlrover,
    /// Ours without a value, or unknown.
    Other,
}

/// The arguments, after the name of the program: what [`command`] knows in its spelling, each value
/// joined to its option, and unknown words as they were written.
pub(super) fn without_dlrover_args(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let command = command();
    let kind = |name: &str| {
        if OF_DLROVER.contains(&name) {
            return Kind::OfDlrover;
        }
        let is_ours = |arg: &&clap::Arg| {
            arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|others| others.contains(&name))
        };
        match command.get_arguments().find(is_ours) {
            Some(arg) if arg.get_action().takes_values() => Kind::Valued,
            Some(_) | None => Kind::Other,
        }
    };
    let mut words = words.into_iter().peekable();
    let mut left: Vec<OsString> = words.next().into_iter().collect();
    // A value that looks like an option is one.
    let is_value = |next: &OsString| !next.as_bytes().starts_with(b"--");
    while let Some(word) = words.next() {
        let Some((name, value)) = option(&word) else {
            left.push(word);
            continue;
        };
        match kind(&name) {
            Kind::Valued => {
                let value = value.or_else(|| words.next_if(is_value));
                left.push(spelled(&name, value));
            }
            // The operator puts annotations into a shell's line as they are, so one with blanks is several arguments.
            Kind::OfDlrover => while words.next_if(is_value).is_some() {},
            Kind::Other => left.push(spelled(&name, value)),
        }
    }
    left
}

/// The name of an option, with `-` for `_`, and the value that is joined to it; `None` for any other argument.
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

    fn is(line: &str, left: &str) {
        let words = without_dlrover_args(line.split(' ').map(OsString::from));
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(words.join(" "), left, "{line}");
    }

    #[test]
    fn the_operators_line_passes() {
        is(
            "m --platform pyk8s --namespace ns --job_name j --port 50001 --pending_timeout 900 \
             --pre_check_ops [a, b] --pre_check_bypass True --enable_dashboard --dashboard_port=8080",
            "m --platform=pyk8s --namespace=ns --job-name=j --port=50001",
        );
    }

    #[test]
    fn every_annotation_and_argument_of_dlrover_passes() {
        for name in OF_DLROVER {
            is(&format!("m --{name} 7 --port 5"), "m --port=5");
            is(&format!("m --{}=7 --port 5", name.replace('-', "_")), "m --port=5");
        }
    }

    #[test]
    fn both_spellings_and_both_forms_are_one() {
        let known = "m --job-name=j --state-dir=/s --restart-counts=2";
        is("m --job_name j --state_dir=/s --restart_counts 2", known);
        is("m --job-name=j --state-dir /s --restart-counts=2", known);
    }

    #[test]
    fn unknown_options_are_left_for_clap_to_refuse() {
        for line in [
            "m --new 7",
            "m --new=7",
            "m bare --port=5",
            "m -x",
            "m --prot 50083",
            "m --pending-timeuot 9",
            "m -- x",
        ] {
            let words = without_dlrover_args(line.split(' ').map(OsString::from));
            let refused = command().try_get_matches_from(words).unwrap_err();
            assert_eq!(refused.kind(), clap::error::ErrorKind::UnknownArgument, "{line}: {refused}");
        }
    }

    #[test]
    fn a_missing_value_is_left_for_clap_to_report() {
        is("m --port --job_name j", "m --port --job-name=j");
        is("m --port -5 --help", "m --port=-5 --help");
    }
}
