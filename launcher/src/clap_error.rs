//! Reports clap's errors of `dlrover-diag` and `dlrover-master`: clap's message after the program's name, and a
//! suggestion.

use std::{io, process::ExitCode};

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use crate::failure::{FAILED, SUCCEEDED, USAGE, print_line};

/// Prints the help or the version, if that was requested, or else the error. Returns the exit code.
pub fn answer(program: &str, error: Error) -> ExitCode {
    let is_asked_for = !error.use_stderr();
    if is_asked_for || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // `dlrover-diag --help | head` is not a failure.
        if let Err(failed) = error.print()
            && failed.kind() != io::ErrorKind::BrokenPipe
        {
            print_line(format_args!("{program}: error: cannot write to standard output: {failed}"));
            return ExitCode::from(FAILED);
        }
        return ExitCode::from(if is_asked_for { SUCCEEDED } else { USAGE });
    }
    print_line(format_args!("{program}: {}", words(error)));
    ExitCode::from(USAGE)
}

/// The error, with the suggestion on its first line.
fn words(mut error: Error) -> String {
    let hints = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    let meant = hints.into_iter().find_map(|kind| {
        let meant = match error.remove(kind)? {
            ContextValue::String(word) => word,
            // The most likely one is last.
            ContextValue::Strings(words) => words.into_iter().next_back()?,
            _ => return None,
        };
        Some(format!(" (did you mean {meant}?)"))
    });
    // clap's general advice, such as to put `--` before a value, does not help with a typo.
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

    fn rendered(words_of_line: &[&str]) -> String {
        let pair =
            Command::new("pair").arg(Arg::new("repeat").long("repeat").value_parser(["once", "twice"]));
        let command = Command::new("diag").subcommand(pair).subcommand(Command::new("topo"));
        words(command.try_get_matches_from(words_of_line).unwrap_err())
    }

    #[test]
    fn a_typo_gets_a_suggestion() {
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
            assert_eq!(rendered(line).lines().next(), Some(first), "{}", rendered(line));
            assert!(!rendered(line).contains("tip:"), "{}", rendered(line));
        }
    }
}
