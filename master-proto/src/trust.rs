//! Who may speak to a master: whoever has the job's token, and over which certificates.

use std::{fmt, path::PathBuf};

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
};

/// The metadata key that carries the token.
const KEY: &str = "authorization";

/// The job's shared secret. Never shown.
#[derive(Clone)]
pub struct Token {
    header: MetadataValue<Ascii>,
}

/// A token that no header can carry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Nothing.
    #[error("the job token is empty")]
    Empty,
    /// Control characters, or letters beyond ASCII.
    #[error("the job token may have visible ASCII characters only, and no spaces")]
    NotAscii,
}

impl Token {
    /// Spaces and line ends around it, as an editor leaves them in a file, do not count.
    ///
    /// # Errors
    /// When nothing is left, or it is not visible ASCII.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(TokenError::Empty);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::NotAscii);
        }
        let mut header: MetadataValue<Ascii> =
            format!("Bearer {text}").parse().map_err(|_| TokenError::NotAscii)?;
        header.set_sensitive(true);
        Ok(Self { header })
    }

    /// Puts it on a request.
    pub fn put_on<T>(&self, request: &mut Request<T>) {
        request.metadata_mut().insert(KEY, self.header.clone());
    }

    /// Whether a request carries it. The time this takes says nothing about where a wrong one differs.
    ///
    /// # Errors
    /// When it does not.
    pub fn check<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let theirs = request.metadata().get(KEY).map(MetadataValue::as_encoded_bytes).unwrap_or_default();
        let ours = self.header.as_encoded_bytes();
        let differs = theirs.iter().zip(ours).fold(0_u8, |differs, (a, b)| differs | (a ^ b));
        if theirs.len() == ours.len() && differs == 0 {
            return Ok(());
        }
        Err(Status::unauthenticated(
            "the job token is missing or wrong; give every node and the master the same DLROVER_JOB_TOKEN",
        ))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// PEM files. On a master: its certificate and key, and the CA that clients must be signed by, if they must. On
/// an agent: the CA that the master is signed by, and its own certificate and key, if the master wants one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsFiles {
    /// Certificate of this side.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// CA of the other side.
    pub ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Whether TLS is switched on at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.cert.is_some() || self.key.is_some() || self.ca.is_some()
    }
}

/// Who is trusted.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// `None`: anybody may speak.
    pub token: Option<Token>,
    /// All empty: no TLS.
    pub tls: TlsFiles,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_token_is_let_in() {
        let token = Token::new(" s3cret\n").unwrap();
        let mut request = Request::new(());
        assert!(token.check(&request).is_err());
        Token::new("s3creT").unwrap().put_on(&mut request);
        assert!(token.check(&request).is_err());
        Token::new("s3cret").unwrap().put_on(&mut request);
        assert!(token.check(&request).is_ok());
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn a_token_that_no_header_carries_is_refused() {
        assert_eq!(Token::new(" \n").unwrap_err(), TokenError::Empty);
        assert_eq!(Token::new("a b").unwrap_err(), TokenError::NotAscii);
        assert_eq!(Token::new("pässword").unwrap_err(), TokenError::NotAscii);
    }
}
