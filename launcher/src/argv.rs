//! Parses the command line as argparse does: which words are options, which are their values, and where the
//! script starts. Everything after the script is the script's own, byte for byte, but for a `--` right behind it.
//!
//! A word is an option when it starts with `-`, but not when it is a lone `-`, looks like a negative number,
//! or has a space in it without being a known option. A value must not be an option. `--` ends the options.
//! A prefix that fits one option is that option. Two differences from torchrun, both wider: a prefix that
//! fits only the two spellings of one option is fine (as in newer CPythons), and arguments of the script are
//! never parsed (CPython before 3.12.8 calls `train.py --no` ambiguous).

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
};

use crate::{
    box_pairs::{self, BoxPair},
    options::{Flag, Kind, OPTIONS, OptionSpec, Owner},
    python_number,
    usage::UsageError,
};

/// An option's value, of the type of its [`Kind`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Switch(bool),
    Text(OsString),
    Int(i64),
    Float(f64),
    List(Vec<String>),
    Pairs(Vec<BoxPair>),
}

/// A parsed command line, or what it asks to print.
#[derive(Debug, PartialEq)]
pub(crate) enum Reading {
    /// `--help`.
    Help,
    /// `--version`.
    Version,
    /// `--print-completion`, and the shell.
    Completion(String),
    /// Anything else.
    Line(Line),
}

/// A parsed command line.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Line {
    /// The options in their order, with the value as it was written.
    pub(crate) given: Vec<(Flag, OsString, Value)>,
    /// The script, if there is one.
    pub(crate) script: Option<OsString>,
    /// Its arguments.
    pub(crate) script_args: Vec<OsString>,
    /// Unknown options. An error, but a missing script is reported first.
    pub(crate) unrecognized: Vec<String>,
}

/// The script in the arguments of a launcher, as it was given, and `-m` before a module; `None` where there is none.
#[must_use]
pub fn script_of(words: &[OsString]) -> Option<String> {
    let Ok(Reading::Line(line)) = read(words) else { return None };
    let is_on = |flag, value: &Value| flag == Flag::Module && *value == Value::Switch(true);
    let is_module = line.given.iter().any(|(flag, _, value)| is_on(*flag, value));
    let script = line.script?;
    Some(format!("{}{}", if is_module { "-m " } else { "" }, script.to_string_lossy()))
}

/// Parses the arguments after the program's name.
///
/// # Errors
///
/// The first word from the left that argparse would refuse.
pub(crate) fn read(words: &[OsString]) -> Result<Reading, UsageError> {
    let mut line = Line::default();
    let mut rest = words;
    while let [word, after @ ..] = rest {
        let (explicit, mut flag) = match classify(word) {
            Class::EndOfOptions => {
                if let [script, args @ ..] = after {
                    line.set_script(script, args)?;
                }
                break;
            }
            Class::Positional => {
                // argparse drops the first `--` of the line, where options could still follow.
                let args = match after {
                    [first, args @ ..] if first == "--" => args,
                    args => args,
                };
                line.set_script(word, args)?;
                break;
            }
            Class::Unknown => {
                line.unrecognized.push(word.to_string_lossy().into_owned());
                rest = after;
                continue;
            }
            Class::Ambiguous(candidates) => {
                return Err(UsageError::Ambiguous { word: lossy(name_of(word)), candidates });
            }
            Class::Option { flag, explicit } => (explicit, flag),
        };
        rest = after;
        let mut explicit = explicit.map(|(value, grouped)| (value.to_owned(), grouped));
        loop {
            let spec = flag.spec();
            match spec.kind {
                Kind::Switch | Kind::Count | Kind::Help | Kind::Version => {
                    let Some((value, grouped)) = explicit else {
                        if let Some(reading) = only_prints(spec) {
                            return Ok(reading);
                        }
                        line.turn_on(flag);
                        break;
                    };
                    // `-mr3`: what follows a short switch is a short option again.
                    let next = match value.as_bytes() {
                        [letter, tail @ ..] if grouped => by_letter(*letter).map(|next| (next, tail)),
                        _ => None,
                    };
                    let Some((next, tail)) = next else {
                        let value = value.to_string_lossy().into_owned();
                        return Err(UsageError::ValueForSwitch { flag, value });
                    };
                    if let Some(reading) = only_prints(spec) {
                        return Ok(reading);
                    }
                    line.turn_on(flag);
                    flag = next;
                    explicit = short_value(tail).map(|tail| (tail.to_owned(), true));
                }
                Kind::Pairs => {
                    rest = line.take_pairs(flag, explicit.map(|(value, _)| value), rest)?;
                    break;
                }
                Kind::Text | Kind::Int | Kind::Float | Kind::Choice(_) | Kind::List | Kind::Completion(_) => {
                    let raw = match explicit {
                        Some((value, _)) => value,
                        None => {
                            let [value, after @ ..] = rest else { return Err(UsageError::NoValue { flag }) };
                            if !matches!(classify(value), Class::Positional) {
                                return Err(UsageError::NoValue { flag });
                            }
                            rest = after;
                            value.clone()
                        }
                    };
                    let value = checked(spec, &raw)?;
                    if let Kind::Completion(_) = spec.kind {
                        return Ok(Reading::Completion(raw.to_string_lossy().into_owned()));
                    }
                    line.given.push((flag, raw, value));
                    break;
                }
            }
        }
    }
    Ok(Reading::Line(line))
}

/// The reading of a line with this option, when it is one that prints and takes no value.
fn only_prints(spec: &OptionSpec) -> Option<Reading> {
    match spec.kind {
        Kind::Help => Some(Reading::Help),
        Kind::Version => Some(Reading::Version),
        _ => None,
    }
}

impl Line {
    /// Adds an option without a value.
    fn turn_on(&mut self, flag: Flag) {
        let value = match flag.spec().kind {
            Kind::Count => {
                let before = self.given.iter().filter(|(other, ..)| *other == flag).count();
                Value::Int(i64::try_from(before).unwrap_or(i64::MAX).saturating_add(1))
            }
            _ => Value::Switch(true),
        };
        self.given.push((flag, OsString::new(), value));
    }

    fn set_script(&mut self, script: &OsStr, args: &[OsString]) -> Result<(), UsageError> {
        if let Some(word) = script.to_str().filter(|word| box_pairs::parse(word).is_some()) {
            return Err(UsageError::PairAsScript { word: word.to_owned() });
        }
        self.script = Some(script.to_owned());
        self.script_args = args.to_vec();
        Ok(())
    }

    /// Takes the words that look like pairs, at least one, and never a script. Returns what follows them.
    fn take_pairs<'a>(
        &mut self,
        flag: Flag,
        explicit: Option<OsString>,
        mut rest: &'a [OsString],
    ) -> Result<&'a [OsString], UsageError> {
        let mut raw = Vec::new();
        let mut pairs = Vec::new();
        if let Some(explicit) = explicit {
            match explicit.to_str().and_then(box_pairs::parse) {
                Some(more) => pairs.extend(more),
                None => {
                    return Err(UsageError::BadValue { flag, value: lossy(explicit.as_bytes()), pet: None });
                }
            }
            raw.push(lossy(explicit.as_bytes()));
        }
        while let [word, after @ ..] = rest {
            let Some(more) = word.to_str().and_then(box_pairs::parse) else { break };
            pairs.extend(more);
            raw.push(lossy(word.as_bytes()));
            rest = after;
        }
        match rest {
            _ if !pairs.is_empty() => {
                self.given.push((flag, raw.join(" ").into(), Value::Pairs(pairs)));
                Ok(rest)
            }
            [word, ..] if matches!(classify(word), Class::Positional) => {
                Err(UsageError::BadValue { flag, value: lossy(word.as_bytes()), pet: None })
            }
            _ => Err(UsageError::NoValue { flag }),
        }
    }
}

/// Converts a value from the command line, held to the option's choices.
fn checked(spec: &OptionSpec, raw: &OsStr) -> Result<Value, UsageError> {
    let is_choice = match spec.kind {
        Kind::Choice(choices) | Kind::Completion(choices) => choices.iter().any(|choice| raw == *choice),
        _ => true,
    };
    is_choice.then(|| convert(spec, raw)).flatten().ok_or_else(|| UsageError::BadValue {
        flag: spec.flag,
        value: lossy(raw.as_bytes()),
        pet: None,
    })
}

/// Converts the text of a value, wherever it comes from; `None` when it is not of the option's type.
pub(crate) fn convert(spec: &OptionSpec, raw: &OsStr) -> Option<Value> {
    match spec.kind {
        Kind::Switch => Some(Value::Switch(python_number::int(raw.to_str()?)? != 0)),
        Kind::Int | Kind::Count => Some(Value::Int(python_number::int(raw.to_str()?)?)),
        Kind::Float => Some(Value::Float(python_number::float(raw.to_str()?)?)),
        Kind::Text | Kind::Choice(_) | Kind::Completion(_) | Kind::Help | Kind::Version => {
            Some(Value::Text(raw.to_owned()))
        }
        Kind::List => Some(Value::List(items(&raw.to_string_lossy()))),
        Kind::Pairs => Some(Value::Pairs(box_pairs::parse(raw.to_str()?)?)),
    }
}

/// The items of a list, in which `,,` is a comma.
fn items(text: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix(",,") {
            push_letter(&mut items, ',');
            rest = after;
            continue;
        }
        match letter {
            ',' => items.push(String::new()),
            _ => push_letter(&mut items, letter),
        }
        rest = &rest[letter.len_utf8()..];
    }
    items
}

fn push_letter(items: &mut [String], letter: char) {
    if let Some(last) = items.last_mut() {
        last.push(letter);
    }
}

/// The class of a word, before its position in the line is known.
enum Class<'a> {
    EndOfOptions,
    Positional,
    /// A known option; its value when it is in the same word, and whether that word has one dash.
    Option {
        flag: Flag,
        explicit: Option<(&'a OsStr, bool)>,
    },
    Ambiguous(Vec<Flag>),
    Unknown,
}

fn classify(word: &OsStr) -> Class<'_> {
    let bytes = word.as_bytes();
    match bytes {
        b"--" => Class::EndOfOptions,
        [b'-', b'-', ..] => classify_long(bytes),
        [b'-', letter, tail @ ..] => match by_letter(*letter) {
            Some(flag) => Class::Option { flag, explicit: short_value(tail).map(|tail| (tail, true)) },
            None => unknown(bytes),
        },
        _ => Class::Positional,
    }
}

fn classify_long(bytes: &[u8]) -> Class<'_> {
    let name = name_of(OsStr::from_bytes(bytes));
    let explicit = bytes.get(name.len() + 1..).map(|value| (OsStr::from_bytes(value), false));
    let name = &name[2..];
    let option = |spec: &OptionSpec| Class::Option { flag: spec.flag, explicit };
    if let Some(spec) = OPTIONS.iter().find(|spec| spec.is_named(name)) {
        return option(spec);
    }
    for owner in [Owner::Torchrun, Owner::Ours] {
        let mut fitting = OPTIONS.iter().filter(|spec| spec.owner == owner && spec.starts_with(name));
        match (fitting.next(), fitting.next()) {
            (None, _) => {}
            (Some(only), None) => return option(only),
            // Like `--network-check` and its `-timeout`: the longer ones came later, and old lines mean the short one.
            (Some(one), Some(other))
                if owner == Owner::Ours
                    && [other].into_iter().chain(fitting.clone()).all(|it| it.long.starts_with(one.long)) =>
            {
                return option(one);
            }
            (Some(one), Some(other)) => {
                let all = [one, other].into_iter().chain(fitting);
                return Class::Ambiguous(all.map(|spec| spec.flag).collect());
            }
        }
    }
    unknown(bytes)
}

/// The class of a word with a dash that is not a known option.
fn unknown(bytes: &[u8]) -> Class<'static> {
    if is_negative_number(bytes) || bytes.contains(&b' ') { Class::Positional } else { Class::Unknown }
}

/// argparse's own pattern: `^-\d+$|^-\d*\.\d+$`.
fn is_negative_number(bytes: &[u8]) -> bool {
    let are_digits = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    let Some(number) = bytes.strip_prefix(b"-") else { return false };
    match number.iter().position(|byte| *byte == b'.') {
        None => !number.is_empty() && are_digits(number),
        Some(point) => {
            let (whole, fraction) = (&number[..point], &number[point + 1..]);
            are_digits(whole) && !fraction.is_empty() && are_digits(fraction)
        }
    }
}

/// `--max-restarts` of `--max-restarts=3`.
fn name_of(word: &OsStr) -> &[u8] {
    let bytes = word.as_bytes();
    bytes.iter().position(|byte| *byte == b'=').map_or(bytes, |at| &bytes[..at])
}

fn by_letter(letter: u8) -> Option<Flag> {
    OPTIONS.iter().find(|spec| spec.short == Some(char::from(letter))).map(|spec| spec.flag)
}

/// The value in the same word as a short option: `3` of `-r3` and of `-r=3`.
fn short_value(tail: &[u8]) -> Option<&OsStr> {
    match tail {
        [] => None,
        [b'=', value @ ..] => Some(OsStr::from_bytes(value)),
        value => Some(OsStr::from_bytes(value)),
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests;
