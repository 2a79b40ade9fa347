//! The job's token for programs that are no launcher: from a file that an option names, else from `DLROVER_JOB_TOKEN`,
//! else from the file that `DLROVER_JOB_TOKEN_FILE` names.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use master_proto::trust::{Token, TokenError};

use crate::environment::Environment;

/// Of a token's file.
const MAX_BYTES: u64 = 64 << 10;

/// Why there is no token although one is named.
#[derive(Debug, thiserror::Error)]
pub enum JobTokenError {
    /// The file with the job token cannot be read.
    #[error("cannot read the job token from {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// The job token is empty, or has characters that it may not have.
    #[error("{given} cannot be used")]
    Token {
        /// Where it comes from. Its value is never printed.
        given: String,
        /// What is wrong with it.
        #[source]
        source: TokenError,
    },
}

/// The warning about a variable that is set and empty, where no file is named either: a secret that was not filled in.
pub(crate) fn empty_variable(has_file: bool, env: Environment<'_>) -> Option<String> {
    let is_empty = env.get("DLROVER_JOB_TOKEN").is_some_and(|value| value.is_empty());
    let has_file = has_file || env.get_filled("DLROVER_JOB_TOKEN_FILE").is_some();
    (is_empty && !has_file).then(|| {
        "warning: DLROVER_JOB_TOKEN is empty, so there is no job token; give it the token of the job, or unset it".to_owned()
    })
}

/// Reads the job token. `file` is what the option names.
///
/// # Errors
/// The file cannot be read, or what it holds is no token.
pub fn read(file: Option<&Path>, env: Environment<'_>) -> Result<Option<Token>, JobTokenError> {
    const VARIABLE: &str = "DLROVER_JOB_TOKEN";
    let token = |text: &str, given: String| {
        Token::new(text).map(Some).map_err(|source| JobTokenError::Token { given, source })
    };
    if let (None, Some(value)) = (file, env.get_filled(VARIABLE)) {
        return token(&value.to_string_lossy(), format!("the job token in {VARIABLE}"));
    }
    let in_variable = || env.get_filled("DLROVER_JOB_TOKEN_FILE").map(PathBuf::from);
    let Some(path) = file.map(Path::to_owned).or_else(in_variable) else { return Ok(None) };
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
    read.map_err(|source| JobTokenError::File { path: path.clone(), source })?;
    token(&text, format!("the job token in {}", path.display()))
}
