//! What an option is. The parser, the `PET_*` defaults, `--help` and the completion scripts are all made from
//! the one table of them, in `table`.

/// Makes [`Flag`] and [`OPTIONS`] of the rows `Flag = spec, "help";`, in sections.
macro_rules! options {
    ($($section:tt { $($flag:ident = $spec:expr, $help:literal;)* })*) => {
        /// An option. The discriminant is its index in [`OPTIONS`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum Flag {
            $($($flag),*),*
        }

        /// Every option, in the order of [`Flag`].
        pub(crate) static OPTIONS: &[OptionSpec] =
            &[$($(OptionSpec { flag: Flag::$flag, section: $section, help: $help, ..$spec }),*),*];
    };
}
use options;

mod table;

pub use self::table::SWITCHBOX_PATHS;
pub(crate) use self::table::{Flag, MASTER, OPTIONS};

/// What kind of value an option takes: argparse's `type`, `choices` and `action`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No value; on or off.
    Switch,
    /// No value on the command line: its number of occurrences counts; a variable gives the number.
    Count,
    /// Any text.
    Text,
    /// Python's `int()`.
    Int,
    /// Python's `float()`.
    Float,
    /// One of these values. As in argparse only the command line is held to it, not the `PET_*` default.
    Choice(&'static [&'static str]),
    /// Items between commas; `,,` is a comma inside an item.
    List,
    /// Pairs of sockets, `0:1 2:4`: takes every following word that looks like one.
    Pairs,
    /// Prints the help and ends.
    Help,
    /// Prints the version and ends.
    Version,
    /// Prints a completion script for one of these shells and ends.
    Completion(&'static [&'static str]),
}

/// The program that an option comes from. An abbreviation is looked up among torchrun's first, so that ours never make an old
/// line ambiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Torchrun,
    Ours,
}

/// One row of the table.
#[derive(Debug)]
pub(crate) struct OptionSpec {
    pub(crate) flag: Flag,
    /// The heading of `--help` below which it is listed.
    pub(crate) section: &'static str,
    pub(crate) help: &'static str,
    /// The long name with `-`; the same name with `_` is its other spelling.
    pub(crate) long: &'static str,
    /// A second long name, which old documents use.
    pub(crate) alias: Option<&'static str>,
    pub(crate) short: Option<char>,
    pub(crate) kind: Kind,
    /// What `--help` calls the value; empty: it takes none.
    pub(crate) value: &'static str,
    /// The value when neither the command line nor the environment has one; empty: none.
    pub(crate) default: &'static str,
    /// Whether `PET_<NAME>` is its default.
    pub(crate) has_pet: bool,
    pub(crate) owner: Owner,
    /// The option without which this one has no effect.
    pub(crate) requires: Option<Flag>,
    /// Why it has no effect here.
    pub(crate) ignored: Option<&'static str>,
}

const fn option(long: &'static str, value: &'static str, kind: Kind) -> OptionSpec {
    OptionSpec {
        // The table sets these three.
        flag: Flag::Help,
        section: "",
        help: "",
        long,
        alias: None,
        short: None,
        kind,
        value,
        default: "",
        has_pet: !matches!(kind, Kind::Help | Kind::Version | Kind::Completion(_)),
        owner: Owner::Ours,
        requires: None,
        ignored: None,
    }
}

const fn switch(long: &'static str) -> OptionSpec {
    option(long, "", Kind::Switch)
}

const fn count(long: &'static str) -> OptionSpec {
    option(long, "", Kind::Count)
}

const fn choice(long: &'static str, value: &'static str, choices: &'static [&'static str]) -> OptionSpec {
    option(long, value, Kind::Choice(choices))
}

const fn prints(long: &'static str, kind: Kind) -> OptionSpec {
    option(long, "", kind)
}

impl OptionSpec {
    const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }

    const fn alias(self, alias: &'static str) -> Self {
        Self { alias: Some(alias), ..self }
    }

    const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    /// torchrun reads no variable for it.
    const fn without_variable(self) -> Self {
        Self { has_pet: false, ..self }
    }

    const fn requires(self, flag: Flag) -> Self {
        Self { requires: Some(flag), ..self }
    }

    const fn ignored(self, why: &'static str) -> Self {
        Self { ignored: Some(why), ..self }
    }

    const fn of_torchrun(self) -> Self {
        Self { owner: Owner::Torchrun, ..self }
    }

    /// `PET_MAX_RESTARTS`.
    pub(crate) fn pet_name(&self) -> String {
        format!("PET_{}", self.long.replace('-', "_").to_ascii_uppercase())
    }

    /// Whether this is the option's long name, or the second one, without the `--`, in one of its two spellings.
    pub(crate) fn is_named(&self, name: &[u8]) -> bool {
        let is_it = |long: &str| name.len() == long.len() && spells_the_start_of(long, name);
        is_it(self.long) || self.alias.is_some_and(is_it)
    }

    /// Whether one of the two spellings of the long name starts like this.
    pub(crate) fn starts_with(&self, prefix: &[u8]) -> bool {
        spells_the_start_of(self.long, prefix)
    }
}

fn spells_the_start_of(long: &str, prefix: &[u8]) -> bool {
    let long = long.as_bytes();
    prefix.len() <= long.len()
        && (long.starts_with(prefix)
            || long.iter().zip(prefix).all(|(ours, theirs)| match ours {
                b'-' => *theirs == b'_',
                _ => ours == theirs,
            }))
}

impl Flag {
    /// This option's row.
    pub(crate) fn spec(self) -> &'static OptionSpec {
        &OPTIONS[self as usize]
    }

    /// `--max-restarts`.
    pub(crate) fn dashed(self) -> String {
        format!("--{}", self.spec().long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_name_an_option_and_a_mix_does_not() {
        let spec = Flag::NprocPerNode.spec();
        assert!(spec.is_named(b"nproc-per-node"));
        assert!(spec.is_named(b"nproc_per_node"));
        assert!(!spec.is_named(b"nproc-per_node"));
        assert!(spec.starts_with(b"nproc_per"));
        assert!(!spec.starts_with(b"nproc_per-"));
        for name in ["restart-count", "restart_count", "restart-counts", "restart_counts"] {
            assert!(Flag::RestartCount.spec().is_named(name.as_bytes()), "{name}");
        }
    }
}
