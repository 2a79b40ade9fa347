//! Warm workers: the terms, and what is said of them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// When Python workers are forked from a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmTerms {
    pub when: WarmStart,
    /// The modules that the template imports are given. Else they are those that a worker has after its first step.
    pub has_modules: bool,
}

/// The first workers that are forked from a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WarmStart {
    /// Those of the first restart. The template is made while workers train.
    Restart,
    /// Those of the first start, which waits for the template.
    Start,
}

/// A package that the template does not import, because it reads a variable, while it is imported, whose value differs
/// between workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    pub package: String,
    pub variable: String,
}

/// What is said of the template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WarmNotice {
    /// A template cannot be used in this run.
    Unfit { reason: String },
    /// Workers could not be forked from the template. With `is_last`, none will be in this run.
    Refused { reason: String, is_last: bool },
    /// Each worker imports a package for itself.
    LeftOut(LeftOut),
}

impl fmt::Display for WarmNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unfit { reason } => write!(f, "workers are not forked from a template: {reason}"),
            Self::Refused { reason, is_last: false } => {
                write!(
                    f,
                    "workers are no longer forked from the template: {reason}; a later restart may use a new template"
                )
            }
            Self::Refused { reason, is_last: true } => {
                write!(f, "workers are no longer forked from a template: {reason}")
            }
            Self::LeftOut(LeftOut { package, variable }) => write!(
                f,
                "the template of warm workers does not import `{package}`, which reads {variable} while it is imported; \
                 each worker imports it"
            ),
        }
    }
}
