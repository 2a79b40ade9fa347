//! `--rdzv-conf`: `key=value` between commas. Nothing in it changes a run on one node, but a typo is not left for
//! the day when there are two. Keys that torchrun does not know are free, as there.

use crate::{cli::Cli, invalid::Invalid, options::Flag, python_number};

/// The settings, in their order.
pub(super) struct Conf<'a>(Vec<(&'a str, &'a str)>);

/// What a setting's value must be.
type Rule = (fn(&str) -> bool, &'static str);

const COUNT: Rule =
    (|value| python_number::int(value).is_some_and(|number| number > 0), "a whole number above 0");
const DELAY: Rule = (
    |value| python_number::float(value).is_some_and(|number| number >= 0.0 && number.is_finite()),
    "a number from 0 on",
);
const YES_OR_NO: Rule = (
    |value| ["1", "true", "t", "yes", "y", "0", "false", "f", "no", "n"].contains(&&*value.to_lowercase()),
    "true or false",
);
const STORE: Rule = (|value| ["tcp", "file"].contains(&&*value.to_lowercase()), "tcp or file");

/// The settings of torchrun's c10d rendezvous.
const DYNAMIC: [(&str, Rule); 10] = [
    ("join_timeout", COUNT),
    ("last_call_timeout", COUNT),
    ("close_timeout", COUNT),
    ("heartbeat_timeout", COUNT),
    ("keep_alive_interval", COUNT),
    ("keep_alive_max_attempt", COUNT),
    ("read_timeout", COUNT),
    ("cas_backoff_max_seconds", DELAY),
    ("is_host", YES_OR_NO),
    ("store_type", STORE),
];

/// The one setting of its static rendezvous.
const STATIC: [(&str, Rule); 1] = [("timeout", COUNT)];

impl<'a> Conf<'a> {
    /// # Errors
    ///
    /// When the text is not `key=value` between commas.
    pub(super) fn parse(cli: &'a Cli) -> Result<Self, Invalid> {
        let text = cli.text(Flag::RdzvConf)?.trim();
        let bad = |why| Err(Invalid::RdzvConf { said: cli.said(Flag::RdzvConf), why });
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
                    return bad(format!("option '{key}' must have a value specified, as in {key}=60"));
                }
                (key, value) => pairs.push((key, value)),
            }
        }
        Ok(Self(pairs))
    }

    /// Holds the values to what a c10d rendezvous takes.
    pub(super) fn check_dynamic(&self, cli: &Cli) -> Result<(), Invalid> {
        self.check(cli, &DYNAMIC)
    }

    /// Holds the values to what a static rendezvous takes.
    pub(super) fn check_static(&self, cli: &Cli) -> Result<(), Invalid> {
        self.check(cli, &STATIC)
    }

    fn check(&self, cli: &Cli, rules: &[(&str, Rule)]) -> Result<(), Invalid> {
        for (key, value) in &self.0 {
            let rule = rules.iter().find(|(name, _)| name == key);
            if let Some((_, (_, right))) = rule.filter(|(_, (is_right, _))| !is_right(value)) {
                let why = format!("'{key}' is {right}, not '{value}'");
                return Err(Invalid::RdzvConf { said: cli.said(Flag::RdzvConf), why });
            }
        }
        Ok(())
    }
}
