//! `--help`, and the `clap` command that it and the completion scripts are rendered from. Parsing does not
//! come by here: a run builds none of this.

use clap::{Arg, ArgAction, Command, builder::PossibleValuesParser};

use crate::{
    options::{Kind, OPTIONS, OptionSpec},
    version::VERSION,
};

/// The line above every error about the command line.
pub const USAGE: &str = "usage: dlrover-run [options] training_script [training_script_args...]";

const ABOUT: &str = "Starts the workers of a training run on this node, watches them, and restarts them together \
                     when one fails, here or on another node of the job. Takes torchrun's command line.";

const AFTER: &str = "\
Environment:
  PET_<NAME>, such as PET_NNODES or PET_MAX_RESTARTS, is the default of an option (a switch: 1 or
  0), and the command line takes precedence. These have no variable:
  {WITHOUT_VARIABLE}.
  PYTHON_EXEC names the Python of the workers; else it is the one installed next to this program,
  the virtual environment's, or the first on PATH. HOST_PORTS limits MASTER_PORT to some ports,
  such as 20000,20010-20020.

Rendezvous, in order of precedence:
  --standalone: this node alone. DLROVER_MASTER_ADDR=HOST:PORT: the job master there, with
  NODE_RANK as the node rank and ELASTIC_JOB_NAME as the run id (else --rdzv-id, else none);
  --rdzv-backend, --rdzv-endpoint, --master-addr and --master-port are ignored, and the options of
  a job master unless this launcher serves it. --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT, or
  --node-rank --master-addr --master-port: torchrun's options, the same on every node except for
  --node-rank. When no job master listens there yet, the launcher whose host is HOST serves it,
  and exits last. GANG_MIN_AVAILABLE is the default of --nnodes, GANG_SCHEDULE_TIMEOUT (seconds)
  that of join_timeout.

Spelling:
  Every --two-words may be written --two_words, or abbreviated if the abbreviation is unambiguous.
  Options end at the script: what follows it is the script's own. In its arguments ${local_rank}
  becomes the worker's local rank, and $$ becomes $.

Exit codes:
  0    all workers succeeded
  1    the run failed, for any other reason
  2    the command line cannot be parsed, or its options contradict each other
  75   with DLROVER_MASTER_ADDR: too few nodes joined within join_timeout, or the job master was
       unreachable for that long
  201  a network check excluded this node: broken, unreachable, slow, or without usable accelerators
  202  a network check cannot tell which node is at fault (--on-inconclusive), or nodes are cut
       off from each other (--on-bad-path)
  203  a network check found more nodes at fault than --taint-guard allows
  With --propagate-exit-code a failed run exits as the worker that failed first did: 128+N for
  signal N, 247 when the kernel's OOM killer killed that worker.

Examples:
  dlrover-run --standalone --nproc-per-node=2 train.py --epochs 3
  dlrover-run --nproc-per-node=gpu --max-restarts=3 --tee=3 -m my_package.train
  dlrover-run --no-python --nproc-per-node=4 ./simulate --seed '${local_rank}'
  dlrover-run --nnodes=2:4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=node-0:29400 \\
    --rdzv-id=llm train.py";

const TEMPLATE: &str = "{usage-heading} {usage}\n\n{about}\n\n{all-args}{after-help}\n";

/// The width of help: the same everywhere, so that its text can be quoted.
const WIDTH: usize = 100;

/// The text of `--version`.
#[must_use]
pub(crate) fn version() -> String {
    format!("dlrover-run {VERSION}\n")
}

/// The text of `--help`.
#[must_use]
pub fn text() -> String {
    command().render_help().to_string()
}

/// All options, as `clap` knows them.
#[must_use]
pub fn command() -> Command {
    let command = Command::new("dlrover-run")
        .about(ABOUT)
        .after_help(after_help())
        .help_template(TEMPLATE)
        .override_usage("dlrover-run [options] training_script [training_script_args...]")
        .term_width(WIDTH)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .version(VERSION)
        .arg(
            Arg::new("training_script")
                .value_name("training_script")
                .help_heading("What to run")
                .help("The script, module (-m) or program (--no-python) of every worker")
                .value_hint(clap::ValueHint::FilePath),
        )
        .arg(
            Arg::new("training_script_args")
                .value_name("training_script_args")
                .help_heading("What to run")
                .help("Its arguments")
                .num_args(0..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true),
        );
    OPTIONS.iter().fold(command, |command, spec| command.arg(argument(spec)))
}

fn after_help() -> String {
    let without = OPTIONS.iter().filter(|spec| !spec.has_pet).map(|spec| spec.flag.dashed());
    AFTER.replace("{WITHOUT_VARIABLE}", &without.collect::<Vec<_>>().join(", "))
}

fn argument(spec: &'static OptionSpec) -> Arg {
    let mut argument = Arg::new(spec.long).long(spec.long).help(spec.help).help_heading(spec.section);
    if let Some(short) = spec.short {
        argument = argument.short(short);
    }
    if let Some(alias) = spec.alias {
        argument = argument.visible_alias(alias);
    }
    if !spec.default.is_empty() {
        argument = argument.default_value(spec.default);
    }
    match spec.kind {
        Kind::Switch => argument.action(ArgAction::SetTrue),
        Kind::Count => argument.action(ArgAction::Count),
        Kind::Help => argument.action(ArgAction::HelpShort),
        Kind::Version => argument.action(ArgAction::Version),
        Kind::Choice(choices) | Kind::Completion(choices) => {
            argument.value_name(spec.value).value_parser(PossibleValuesParser::new(choices.iter().copied()))
        }
        Kind::Text | Kind::Int | Kind::Float | Kind::List | Kind::Pairs => argument.value_name(spec.value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure;

    #[test]
    fn the_help_is_pleasant_to_read() {
        insta::assert_snapshot!(text());
    }

    #[test]
    fn every_exit_code_is_in_the_help() {
        let text = text();
        let codes =
            text.split_once("Exit codes:").and_then(|(_, rest)| rest.split_once("Examples:")).unwrap().0;
        for code in [
            failure::SUCCEEDED,
            failure::FAILED,
            failure::USAGE,
            failure::NO_RENDEZVOUS,
            failure::EXCLUDED,
            failure::INCONCLUSIVE,
            failure::MASS_FAILURE,
        ] {
            assert!(codes.contains(&format!("\n  {code} ")), "{code}: {codes}");
        }
    }

    #[test]
    fn clap_finds_nothing_wrong_with_the_table() {
        command().debug_assert();
    }
}
