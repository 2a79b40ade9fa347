//! Command lines that cannot be parsed: the usage line and exit code 2, as in argparse.

use crate::options::{Flag, Kind, OPTIONS};

/// Why a command line cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UsageError {
    /// An abbreviation of several options.
    #[error("ambiguous option: {word} could match {}", dashed_list(.candidates))]
    Ambiguous { word: String, candidates: Vec<Flag> },
    /// An option at the end, or followed by another option.
    #[error("argument {}: expected one argument", .flag.dashed())]
    NoValue { flag: Flag },
    /// A value for an option that takes none, such as `--standalone=1`.
    #[error("argument {}: ignored explicit argument '{value}': the option takes no value", .flag.dashed())]
    ValueForSwitch { flag: Flag, value: String },
    /// A value that is not what the option takes.
    #[error("argument {}: {}", .flag.dashed(), why(*.flag, .value, .pet.as_deref()))]
    BadValue {
        flag: Flag,
        value: String,
        /// The variable that it comes from; `None`: the command line.
        pet: Option<String>,
    },
    /// The command line names no script to run.
    #[error("the following arguments are required: training_script, training_script_args")]
    NoScript,
    /// A pair of `--box-pairs` where the script should be.
    #[error(
        "'{word}' is where the training script should be, but looks like a pair of --box-pairs: \
         pairs follow the option directly, and a script of that name is given as ./{word}"
    )]
    PairAsScript { word: String },
    /// Unknown options.
    #[error("unrecognized arguments: {}{}", .words.join(" "), suggestion(.words))]
    Unrecognized { words: Vec<String> },
}

/// A suggestion for the first unknown option.
fn suggestion(words: &[String]) -> String {
    let name = words.first().and_then(|word| word.split('=').next()?.strip_prefix("--"));
    let nearest = name.and_then(|name| {
        let name = name.replace('_', "-");
        let with_distance = OPTIONS.iter().map(|spec| (distance(&name, spec.long), spec));
        // Two typos, and most of the word right.
        with_distance
            .filter(|(far, spec)| *far <= 2 && far * 3 <= spec.long.len())
            .min_by_key(|(far, _)| *far)
    });
    nearest.map(|(_, spec)| format!(" (did you mean {}?)", spec.flag.dashed())).unwrap_or_default()
}

/// The Levenshtein distance of two words.
pub(crate) fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (place, letter) in one.chars().enumerate() {
        let mut diagonal = place;
        if let Some(first) = row.first_mut() {
            *first = place + 1;
        }
        let mut left = place + 1;
        for (above, theirs) in row.iter_mut().skip(1).zip(other.chars()) {
            let replaced = diagonal + usize::from(letter != theirs);
            diagonal = *above;
            *above = replaced.min(diagonal + 1).min(left + 1);
            left = *above;
        }
    }
    row.last().copied().unwrap_or_default()
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
        Kind::Count => format!("invalid value: '{value}'{from}: give a whole number"),
        Kind::Switch | Kind::Text | Kind::List | Kind::Help | Kind::Version => {
            format!("invalid value: '{value}'{from}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_gets_a_suggestion() {
        let message = |word: &str| UsageError::Unrecognized { words: vec![word.to_owned()] }.to_string();
        for (word, option) in [
            ("--nporc-per-node=2", "--nproc-per-node"),
            ("--nproc-per_node", "--nproc-per-node"),
            ("--max-restart_s", "--max-restarts"),
            ("--standalonee", "--standalone"),
        ] {
            assert_eq!(message(word), format!("unrecognized arguments: {word} (did you mean {option}?)"));
        }
        for word in ["--bogus", "-x", "--", "--epochs=3", "--lr"] {
            assert_eq!(message(word), format!("unrecognized arguments: {word}"));
        }
    }

    #[test]
    fn the_distance_of_words_counts_letters() {
        for (one, other, far) in [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("tee", "tee", 0)] {
            assert_eq!(distance(one, other), far);
            assert_eq!(distance(other, one), far);
        }
    }
}
