//! Writes the man pages and the completion scripts of the three programs: `pages DIR` makes `DIR/man` and
//! `DIR/completions/{bash,zsh,fish}`. packaging/build calls it.

use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::Command;
use clap_mangen::{Man, roff::Roff, roff::roman};
use launcher::completion::{Shell, script_of};

/// The programs, and the section of the manual that they belong to.
const SECTION: &str = "1";

fn main() -> io::Result<()> {
    let Some(to) = env::args_os().nth(1).map(PathBuf::from) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "usage: pages DIR"));
    };
    write(&to)
}

fn write(to: &Path) -> io::Result<()> {
    for command in [launcher::help::command(), launcher::master_main::command(), dlrover_diag::command()] {
        let name = command.get_name();
        for (shell, file) in [
            (Shell::Bash, format!("bash/{name}.bash")),
            (Shell::Zsh, format!("zsh/_{name}")),
            (Shell::Fish, format!("fish/{name}.fish")),
        ] {
            let file = to.join("completions").join(file);
            fs::create_dir_all(file.parent().unwrap_or(to))?;
            fs::write(file, script_of(shell, command.clone()))?;
        }
        let folder = to.join("man");
        fs::create_dir_all(&folder)?;
        write_pages(command, &folder)?;
    }
    Ok(())
}

/// One page for the program and one for each subcommand, `dlrover-diag-status.1`.
fn write_pages(command: Command, folder: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    let mut command = command.disable_help_subcommand(true);
    command.build();
    for subcommand in command.get_subcommands() {
        let name = format!("{name}-{}", subcommand.get_name());
        // Names live as long as the program, which ends after the last page.
        write_page(subcommand.clone().name(&*name.leak()), folder)?;
    }
    write_page(command, folder)
}

fn write_page(command: Command, folder: &Path) -> io::Result<()> {
    let mut file = fs::File::create(folder.join(format!("{}.{SECTION}", command.get_name())))?;
    let after = command.get_after_help().map(ToString::to_string);
    let usage = command.clone().render_usage().to_string();
    let page = Man::new(command.after_help("")).section(SECTION).source(source());
    page.render_title(&mut file)?;
    page.render_name_section(&mut file)?;
    section(&mut file, "SYNOPSIS", usage.trim_start_matches("Usage: "))?;
    page.render_description_section(&mut file)?;
    page.render_options_section(&mut file)?;
    page.render_subcommands_section(&mut file)?;
    if let Some(after) = after {
        for (title, text) in parts(&after) {
            section(&mut file, &title, &text)?;
        }
    }
    Ok(())
}

fn source() -> String {
    format!("dlrover-run {}", env!("CARGO_PKG_VERSION"))
}

/// The text below the options in its parts: a line that ends with a colon and is not indented begins one.
fn parts(after: &str) -> Vec<(String, String)> {
    let mut parts = vec![("NOTES".to_owned(), String::new())];
    for line in after.lines() {
        let is_title = !line.starts_with(' ');
        match line.strip_suffix(':').filter(|_| is_title) {
            Some(title) => parts.push((title.to_uppercase(), String::new())),
            None => {
                if let Some((_, text)) = parts.last_mut() {
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
    }
    parts.retain(|(_, text)| !text.trim().is_empty());
    parts
}

/// A section whose lines stay as they are.
fn section(to: &mut impl Write, title: &str, text: &str) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    roff.control("nf", []);
    for line in text.trim_matches('\n').lines() {
        // troff would take a leading dot or quote for a request; `roman` escapes both.
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.to_writer(to)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What bash offers after these words.
    fn offered(folder: &Path, program: &str, words: &str) -> String {
        let script = r#". "$1"; COMP_WORDS=($2 $3); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
            "_${2//-/__}" "$2" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"; echo "${COMPREPLY[*]}""#;
        let file = folder.join(format!("completions/bash/{program}.bash"));
        let output =
            Command::new("bash").args(["-c", script, "sh"]).arg(file).args([program, words]).output();
        let output = output.expect("bash runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }

    #[test]
    fn bash_completes_options_of_programs_and_of_subcommands() {
        let folder = env::temp_dir().join(format!("dlrover-pages-{}", std::process::id()));
        write(&folder).unwrap();
        for (program, words, expected) in [
            ("dlrover-run", "--max-res", "--max-restarts"),
            ("dlrover-master", "--state", "--state-dir"),
            ("dlrover-diag", "stat", "status"),
            ("dlrover-diag", "status --wat", "--watch"),
            ("dlrover-diag", "rehearse --rac", "--racks"),
            ("dlrover-diag", "completion z", "zsh"),
            ("dlrover-master", "--print-completion fi", "fish"),
        ] {
            assert_eq!(offered(&folder, program, words), expected, "{program} {words}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
