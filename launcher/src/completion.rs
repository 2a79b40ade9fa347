//! `--print-completion`: a script that teaches a shell our options.

use clap_complete::{Shell, generate};

use crate::{
    help,
    options::{Kind, OPTIONS},
};

/// The script for bash, zsh or tcsh.
#[must_use]
pub(crate) fn script(shell: &str) -> String {
    match shell {
        "bash" => generated(Shell::Bash),
        "zsh" => generated(Shell::Zsh),
        _ => tcsh(),
    }
}

fn generated(shell: Shell) -> String {
    let mut script = Vec::new();
    generate(shell, &mut help::command(), "dlrover-run", &mut script);
    String::from_utf8_lossy(&script).into_owned()
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
    const SHELLS: [&str; 3] = ["bash", "zsh", "tcsh"];

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
    fn the_line_for_tcsh_names_options_and_choices() {
        insta::assert_snapshot!(tcsh());
    }
}
