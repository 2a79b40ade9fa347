//! The command line over the `PET_*` defaults, each value with its origin.

use std::{
    ffi::{OsStr, OsString},
    fmt,
};

use crate::{
    argv::{self, Line, Reading, Value},
    box_pairs::BoxPair,
    environment::Environment,
    invalid::Invalid,
    options::{Flag, Kind, OPTIONS, OptionSpec},
    python_number,
    usage::UsageError,
};

/// What the entry point is to do.
#[derive(Debug)]
pub(crate) enum Request {
    /// Print the help.
    Help,
    /// Print the version.
    Version,
    /// Print the completion script for this shell.
    Completion(String),
    /// Run a script.
    Run(Cli),
}

/// Why there is no request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CannotRead {
    #[error(transparent)]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// A run as requested: every option's value, and the script.
#[derive(Debug)]
pub(crate) struct Cli {
    /// By [`Flag`]; `None`: only the table's default is left.
    entries: Vec<Option<Entry>>,
    /// The script, module or program.
    pub(crate) script: OsString,
    /// Its arguments.
    pub(crate) script_args: Vec<OsString>,
}

#[derive(Debug, Clone)]
struct Entry {
    /// As given.
    raw: OsString,
    value: Value,
    origin: Origin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    CommandLine,
    Pet,
}

/// A value as the user wrote it and where: `--nnodes=a`, `PET_NNODES=a`, `HOST_PORTS=x`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given(String);

impl Given {
    /// The value of a variable.
    pub(crate) fn in_variable(name: &str, value: &OsStr) -> Self {
        Self(format!("{name}={}", value.to_string_lossy()))
    }

    /// A variable whose value must not be printed.
    pub(crate) fn variable(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Request {
    /// Reads a command line, without the program's name, over the environment.
    ///
    /// # Errors
    ///
    /// In torchrun's order: a `PET_*` switch that is not a number (even `--help` fails then), a word that
    /// cannot be parsed, a `PET_*` value that is not a number, no script, unknown options.
    pub(crate) fn read(words: &[OsString], env: Environment<'_>) -> Result<Self, CannotRead> {
        let variables = PetVariables::of(env);
        let mut entries = vec![None; OPTIONS.len()];
        for spec in OPTIONS.iter().filter(|spec| spec.kind == Kind::Switch) {
            if let Some(raw) = variables.get(spec) {
                let value = argv::convert(spec, raw)
                    .ok_or_else(|| Invalid::PetSwitch { given: Given::in_variable(&spec.pet_name(), raw) })?;
                entries[spec.flag as usize] = Some(Entry { raw: raw.to_owned(), value, origin: Origin::Pet });
            }
        }
        let line = match argv::read(words)? {
            Reading::Help => return Ok(Self::Help),
            Reading::Version => return Ok(Self::Version),
            Reading::Completion(shell) => return Ok(Self::Completion(shell)),
            Reading::Line(line) => line,
        };
        let Line { given, script, script_args, unrecognized } = line;
        for (flag, raw, value) in given {
            entries[flag as usize] = Some(Entry { raw, value, origin: Origin::CommandLine });
        }
        for spec in OPTIONS {
            let entry = &mut entries[spec.flag as usize];
            if let (None, Some(raw)) = (&entry, variables.get(spec)) {
                let value = argv::convert(spec, raw).ok_or_else(|| UsageError::BadValue {
                    flag: spec.flag,
                    value: raw.to_string_lossy().into_owned(),
                    pet: Some(spec.pet_name()),
                })?;
                *entry = Some(Entry { raw: raw.to_owned(), value, origin: Origin::Pet });
            }
        }
        let script = script.ok_or(UsageError::NoScript)?;
        if !unrecognized.is_empty() {
            return Err(UsageError::Unrecognized { words: unrecognized }.into());
        }
        Ok(Self::Run(Cli { entries, script, script_args }))
    }
}

/// The `PET_*` variables of an environment: few, where the environment may be large.
struct PetVariables<'a>(Vec<(&'a str, &'a OsStr)>);

impl<'a> PetVariables<'a> {
    fn of(env: Environment<'a>) -> Self {
        let named = |(key, value): &'a (OsString, OsString)| {
            Some((key.to_str()?.strip_prefix("PET_")?, value.as_os_str()))
        };
        Self(env.0.iter().filter_map(named).collect())
    }

    fn get(&self, spec: &OptionSpec) -> Option<&'a OsStr> {
        if self.0.is_empty() || !spec.has_pet {
            return None;
        }
        let names = |key: &str| {
            key.len() == spec.long.len()
                && key.bytes().zip(spec.long.bytes()).all(|(theirs, ours)| match ours {
                    b'-' => theirs == b'_',
                    _ => theirs == ours.to_ascii_uppercase(),
                })
        };
        self.0.iter().find(|(key, _)| names(key)).map(|(_, value)| *value)
    }
}

impl Cli {
    fn entry(&self, flag: Flag) -> Option<&Entry> {
        self.entries.get(flag as usize)?.as_ref()
    }

    /// Whether the command line or the environment has this option.
    pub(crate) fn is_given(&self, flag: Flag) -> bool {
        self.entry(flag).is_some()
    }

    /// Whether it is on the command line. The environment may be that of a whole cluster, for any job.
    pub(crate) fn is_on_the_line(&self, flag: Flag) -> bool {
        self.entry(flag).is_some_and(|entry| entry.origin == Origin::CommandLine)
    }

    /// Whether a switch is on.
    pub(crate) fn is_on(&self, flag: Flag) -> bool {
        matches!(self.entry(flag), Some(Entry { value: Value::Switch(true), .. }))
    }

    /// The value with its origin, for messages.
    pub(crate) fn given(&self, flag: Flag) -> Given {
        let spec = flag.spec();
        match self.entry(flag) {
            Some(Entry { origin: Origin::CommandLine, .. })
                if matches!(spec.kind, Kind::Switch | Kind::Count) =>
            {
                Given(flag.dashed())
            }
            Some(Entry { raw, origin: Origin::CommandLine, .. }) => {
                Given(format!("{}={}", flag.dashed(), raw.to_string_lossy()))
            }
            Some(Entry { raw, origin: Origin::Pet, .. }) => Given::in_variable(&spec.pet_name(), raw),
            None => Given(format!("{}={}", flag.dashed(), spec.default)),
        }
    }

    /// A text option's bytes, else the table's default, which may be empty.
    pub(crate) fn bytes(&self, flag: Flag) -> &OsStr {
        match self.entry(flag) {
            Some(Entry { raw, .. }) => raw,
            None => OsStr::new(flag.spec().default),
        }
    }

    /// A text option's value, else the table's default, which may be empty.
    ///
    /// # Errors
    ///
    /// When it is not UTF-8.
    pub(crate) fn text(&self, flag: Flag) -> Result<&str, Invalid> {
        self.bytes(flag).to_str().ok_or_else(|| Invalid::NotUtf8 { given: self.given(flag) })
    }

    /// A whole number, else the table's default; `None` when it has none.
    pub(crate) fn int(&self, flag: Flag) -> Option<i64> {
        match self.entry(flag) {
            Some(Entry { value: Value::Int(number), .. }) => Some(*number),
            _ => python_number::int(flag.spec().default),
        }
    }

    /// A number, else the table's default; `None` when it has none.
    pub(crate) fn float(&self, flag: Flag) -> Option<f64> {
        match self.entry(flag) {
            Some(Entry { value: Value::Float(number), .. }) => Some(*number),
            _ => python_number::float(flag.spec().default),
        }
    }

    /// A list; empty when not given.
    pub(crate) fn list(&self, flag: Flag) -> Vec<String> {
        match self.entry(flag) {
            Some(Entry { value: Value::List(items), .. }) => items.clone(),
            _ => Vec::new(),
        }
    }

    /// Pairs, else the table's default.
    pub(crate) fn pairs(&self, flag: Flag) -> Vec<BoxPair> {
        match self.entry(flag) {
            Some(Entry { value: Value::Pairs(pairs), .. }) => pairs.clone(),
            _ => crate::box_pairs::parse(flag.spec().default).unwrap_or_default(),
        }
    }
}
