//! Scripts that teach a shell the options of a program: `--print-completion` of dlrover-run and dlrover-master, and
//! `dlrover-diag completion`.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::{Command, ValueEnum};
use clap_complete::generate;

use crate::{
    failure::{FAILED, SUCCEEDED, print_line},
    help,
    options::{Kind, OPTIONS},
};

/// The shells of dlrover-master and dlrover-diag. dlrover-run knows torchrun's tcsh too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// The script for the options and subcommands of a program.
#[must_use]
pub fn script_of(shell: Shell, mut command: Command) -> String {
    let (name, mut script) = (command.get_name().to_owned(), Vec::new());
    match shell {
        Shell::Bash => generate(clap_complete::Shell::Bash, &mut command, name, &mut script),
        Shell::Zsh => generate(clap_complete::Shell::Zsh, &mut command, name, &mut script),
        Shell::Fish => generate(clap_complete::Shell::Fish, &mut command, name, &mut script),
    }
    // For bash, clap_complete 4.6 sets `cmd` to `dlrover__diag__subcmd__status` and looks for the label
    // `dlrover__subcmd__diag__subcmd__status`: the hyphen of the name is taken for the start of a subcommand.
    String::from_utf8_lossy(&script).replace("dlrover__subcmd__", "dlrover__")
}

/// Prints the script, and returns the exit code.
pub fn answer(shell: Shell, command: Command) -> ExitCode {
    let name = command.get_name().to_owned();
    let (script, mut stdout) = (script_of(shell, command), io::stdout());
    match stdout.write_all(script.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            print_line(format_args!("{name}: error: cannot write to standard output: {error}"));
            ExitCode::from(FAILED)
        }
        _ => ExitCode::from(SUCCEEDED),
    }
}

/// The script of dlrover-run for bash, zsh, fish or tcsh.
#[must_use]
pub(crate) fn script(shell: &str) -> String {
    match shell {
        "bash" => script_of(Shell::Bash, help::command()),
        "zsh" => script_of(Shell::Zsh, help::command()),
        "fish" => script_of(Shell::Fish, help::command()),
        _ => tcsh(),
    }
}

/// tcsh: the option names after `--`, the choices after an option that has some, files elsewhere.
fn tcsh() -> String {
    let names = OPTIONS.iter().map(|spec| spec.long).collect::<Vec<_>>().join(" ");
    let choices: String = OPTIONS
        .iter()
        .filter_map(|spec| match spec.kind {
            Kind::Choice(choices) | Kind::Completion(choices) => {
                Some(format!(" 'n/--{}/({})/'", spec.long, choices.join(" ")))
            }
            Kind::Switch
            | Kind::Count
            | Kind::Text
            | Kind::Int
            | Kind::Float
            | Kind::List
            | Kind::Pairs
            | Kind::Help
            | Kind::Version => None,
        })
        .collect();
    format!("complete dlrover-run{choices} 'c/--/({names})/' 'p/*/f/'\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    const SHELLS: [&str; 4] = ["bash", "zsh", "fish", "tcsh"];

    #[test]
    fn every_shell_learns_every_option() {
        for shell in SHELLS {
            let script = script(shell);
            for spec in OPTIONS {
                assert!(script.contains(spec.long), "{shell}: {}", spec.long);
            }
        }
    }

    #[test]
    fn every_shell_learns_every_option_of_the_job_master() {
        let command = crate::master_main::command();
        for shell in Shell::value_variants() {
            let script = script_of(*shell, command.clone());
            for option in command.get_arguments().filter_map(|option| option.get_long()) {
                assert!(script.contains(option), "{shell:?}: {option}");
            }
        }
    }

    #[test]
    fn the_line_for_tcsh_names_options_and_choices() {
        insta::assert_snapshot!(tcsh());
    }
}
