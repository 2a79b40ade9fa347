//! What `dlrover-diag` and `dlrover-master` say to a command line that they cannot read: clap's words behind the
//! program's name, and what may have been meant.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use crate::failure::{SUCCEEDED, USAGE, tell};

/// Prints the help or the version where that is what was asked for, else what is wrong; gives the exit code.
pub fn answer(program: &str, error: Error) -> ExitCode {
    let is_asked_for = !error.use_stderr();
    if is_asked_for || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Nothing can be done about a closed stream.
        let _closed = error.print();
        return ExitCode::from(if is_asked_for { SUCCEEDED } else { USAGE });
    }
    tell(format_args!("{program}: {}", words(error)));
    ExitCode::from(USAGE)
}

/// What is wrong, with the hint on the line that says it.
fn words(mut error: Error) -> String {
    let hints = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    let meant = hints.into_iter().find_map(|kind| {
        let meant = match error.remove(kind)? {
            ContextValue::String(word) => word,
            // The likeliest comes last.
            ContextValue::Strings(words) => words.into_iter().next_back()?,
            _ => return None,
        };
        Some(format!(" (did you mean {meant}?)"))
    });
    // clap's general advice, such as to put `--` before a value, helps nobody who made a slip.
    let _advice = error.remove(ContextKind::Suggested);
    let text = error.render().to_string();
    let text = text.trim_end();
    match (meant, text.split_once('\n')) {
        (None, _) => text.to_owned(),
        (Some(meant), None) => format!("{text}{meant}"),
        (Some(meant), Some((first, rest))) => format!("{first}{meant}\n{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    fn said(words_of_line: &[&str]) -> String {
        let pair =
            Command::new("pair").arg(Arg::new("repeat").long("repeat").value_parser(["once", "twice"]));
        let command = Command::new("diag").subcommand(pair).subcommand(Command::new("topo"));
        words(command.try_get_matches_from(words_of_line).unwrap_err())
    }

    #[test]
    fn a_slip_is_told_with_what_was_meant() {
        for (line, first) in [
            (&["diag", "piar"][..], "error: unrecognized subcommand 'piar' (did you mean pair?)"),
            (
                &["diag", "pair", "--reapeat=once"],
                "error: unexpected argument '--reapeat' found (did you mean --repeat?)",
            ),
            (
                &["diag", "pair", "--repeat=twcie"],
                "error: invalid value 'twcie' for '--repeat <repeat>' (did you mean twice?)",
            ),
            (&["diag", "pair", "--zzz"], "error: unexpected argument '--zzz' found"),
        ] {
            assert_eq!(said(line).lines().next(), Some(first), "{}", said(line));
            assert!(!said(line).contains("tip:"), "{}", said(line));
        }
    }
}
