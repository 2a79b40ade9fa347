//! `--rdzv-conf`: `key=value` between commas. Settings are checked even when this rendezvous does not use
//! them. Keys that torchrun does not know are free, as there.

use std::time::Duration;

use crate::{cli::Cli, invalid::Invalid, options::Flag, python_number, usage::distance};

/// The settings, in their order.
pub(super) struct Conf<'a>(Vec<(&'a str, &'a str)>);

/// What a setting's value must be.
type Rule = (fn(&str) -> bool, &'static str);

const COUNT: Rule =
    (|value| python_number::int(value).is_some_and(|number| number > 0), "a whole number above 0");
const DELAY: Rule = (|value| delay(value).is_some(), "a non-negative number");
const YES_OR_NO: Rule = (|value| yes_or_no(value).is_some(), "true or false");
const STORE: Rule = (|value| ["tcp", "file"].contains(&&*value.to_lowercase()), "tcp or file");

/// torchrun's name of the last call, and DLRover's.
const LAST_CALL: [&str; 2] = ["last_call_timeout", "lastcall_timeout"];

/// The settings of torchrun's c10d rendezvous. The last call may be 0 here, and in DLRover's spelling.
const DYNAMIC: [(&str, Rule); 11] = [
    ("join_timeout", COUNT),
    (LAST_CALL[0], DELAY),
    (LAST_CALL[1], DELAY),
    ("close_timeout", COUNT),
    ("heartbeat_timeout", COUNT),
    ("keep_alive_interval", COUNT),
    ("keep_alive_max_attempt", COUNT),
    ("read_timeout", COUNT),
    ("cas_backoff_max_seconds", DELAY),
    ("is_host", YES_OR_NO),
    ("store_type", STORE),
];

/// The one setting of its static rendezvous, and what a static line here uses too.
const STATIC: [(&str, Rule); 4] =
    [("timeout", COUNT), ("join_timeout", COUNT), (LAST_CALL[0], DELAY), (LAST_CALL[1], DELAY)];

impl<'a> Conf<'a> {
    /// # Errors
    ///
    /// When the text is not `key=value` between commas.
    pub(super) fn parse(cli: &'a Cli) -> Result<Self, Invalid> {
        let text = cli.text(Flag::RdzvConf)?.trim();
        let bad = |why| Err(Invalid::RdzvConf { given: cli.given(Flag::RdzvConf), why });
        let mut pairs = Vec::new();
        for pair in text.split(',').filter(|_| !text.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (key.trim(), value.trim()) {
                ("", _) => {
                    let why =
                        "it must be in format key=value,key=value, such as join_timeout=600,read_timeout=60";
                    return bad(why.to_owned());
                }
                (key, "") => {
                    return bad(format!("option '{key}' must have a value specified, as in {key}=VALUE"));
                }
                (key, value) => pairs.push((key, value)),
            }
        }
        Ok(Self(pairs))
    }

    /// Holds the values to what a c10d rendezvous takes.
    pub(super) fn check_dynamic(&self, cli: &Cli, notices: &mut Vec<String>) -> Result<(), Invalid> {
        self.check(cli, &DYNAMIC, notices)
    }

    /// Holds the values to what a static rendezvous takes.
    pub(super) fn check_static(&self, cli: &Cli, notices: &mut Vec<String>) -> Result<(), Invalid> {
        self.check(cli, &STATIC, notices)
    }

    fn check(&self, cli: &Cli, rules: &[(&str, Rule)], notices: &mut Vec<String>) -> Result<(), Invalid> {
        for (key, value) in &self.0 {
            notices.extend(misspelt(key));
            let rule = rules.iter().find(|(name, _)| name == key);
            if let Some((_, (_, right))) = rule.filter(|(_, (is_right, _))| !is_right(value)) {
                let why = format!("'{key}' must be {right}, not '{value}'");
                return Err(Invalid::RdzvConf { given: cli.given(Flag::RdzvConf), why });
            }
        }
        Ok(())
    }

    /// The last value of any of these, as in a Python dictionary.
    fn last(&self, keys: &[&str]) -> Option<&'a str> {
        self.0.iter().rfind(|(key, _)| keys.contains(key)).map(|(_, value)| *value)
    }

    /// How long nodes may take to join.
    pub(super) fn join_timeout(&self) -> Option<Duration> {
        let seconds = python_number::int(self.last(&["join_timeout"])?)?;
        Some(Duration::from_secs(u64::try_from(seconds).ok()?).min(FOR_EVER))
    }

    /// How long a job that has enough nodes waits for another.
    pub(super) fn last_call(&self) -> Option<Duration> {
        delay(self.last(&LAST_CALL)?)
    }

    /// Whether nodes are to meet at a file, which the endpoint names.
    pub(super) fn is_at_a_file(&self) -> bool {
        self.last(&["store_type"]).is_some_and(|value| value.eq_ignore_ascii_case("file"))
    }

    /// Whether this launcher serves the job master; `None`: find out.
    pub(super) fn is_host(&self) -> Option<bool> {
        yes_or_no(self.last(&["is_host"])?)
    }
}

/// The line about an unknown key that is nearly the same as a known one.
fn misspelt(key: &str) -> Option<String> {
    let known = || DYNAMIC.iter().chain(&STATIC).map(|(name, _)| *name);
    if known().any(|name| name == key) {
        return None;
    }
    let nearest = known().min_by_key(|name| distance(key, name)).filter(|name| distance(key, name) <= 2)?;
    Some(format!("--rdzv-conf: unknown key '{key}' is ignored (did you mean {nearest}?)"))
}

/// 136 years.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Seconds from 0 on, up to [`FOR_EVER`].
pub(super) fn delay(text: &str) -> Option<Duration> {
    seconds(python_number::float(text)?)
}

/// The same, of a number.
pub(super) fn seconds(number: f64) -> Option<Duration> {
    let number = Some(number).filter(|number| *number >= 0.0 && number.is_finite())?;
    Duration::try_from_secs_f64(number.min(FOR_EVER.as_secs_f64())).ok()
}

fn yes_or_no(text: &str) -> Option<bool> {
    match &*text.to_lowercase() {
        "1" | "true" | "t" | "yes" | "y" => Some(true),
        "0" | "false" | "f" | "no" | "n" => Some(false),
        _ => None,
    }
}
