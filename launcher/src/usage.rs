//! Command lines that cannot be read: what argparse answers with the usage line and exit code 2.

use crate::options::{Flag, Kind};

/// Why a command line cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UsageError {
    /// An abbreviation of several options.
    #[error("ambiguous option: {word} could match {}", dashed_list(.candidates))]
    Ambiguous { word: String, candidates: Vec<Flag> },
    /// An option at the end, or followed by another option.
    #[error("argument {}: expected one argument", .flag.dashed())]
    NoValue { flag: Flag },
    /// `--standalone=1`.
    #[error("argument {}: ignored explicit argument '{value}': it is a switch and takes no value", .flag.dashed())]
    ValueForSwitch { flag: Flag, value: String },
    /// A value that is not what the option takes.
    #[error("argument {}: {}", .flag.dashed(), why(*.flag, .value, .pet.as_deref()))]
    BadValue {
        flag: Flag,
        value: String,
        /// The variable that it comes from; `None`: the command line.
        pet: Option<String>,
    },
    /// Nothing to run.
    #[error("the following arguments are required: training_script, training_script_args")]
    NoScript,
    /// A pair of `--box-pairs` where the script should be.
    #[error(
        "'{word}' stands where the training script should be, but looks like a pair of --box-pairs: \
         pairs follow the option directly, and a script of that name is given as ./{word}"
    )]
    PairAsScript { word: String },
    /// Options that nobody knows.
    #[error("unrecognized arguments: {}", .words.join(" "))]
    Unrecognized { words: Vec<String> },
}

fn dashed_list(flags: &[Flag]) -> String {
    flags.iter().map(|flag| flag.dashed()).collect::<Vec<_>>().join(", ")
}

/// What is wrong with a value, and what would be right.
fn why(flag: Flag, value: &str, pet: Option<&str>) -> String {
    let from = pet.map(|name| format!(" (from {name})")).unwrap_or_default();
    match flag.spec().kind {
        Kind::Int => format!("invalid int value: '{value}'{from}: give a whole number"),
        Kind::Float => format!("invalid float value: '{value}'{from}: give a number"),
        Kind::Choice(choices) | Kind::Completion(choices) => {
            format!("invalid choice: '{value}'{from} (choose from {})", choices.join(", "))
        }
        Kind::Pairs => format!("invalid pairs: '{value}'{from}: give pairs of sockets such as 0:1 2:4"),
        Kind::Switch | Kind::Text | Kind::List | Kind::Help => format!("invalid value: '{value}'{from}"),
    }
}
