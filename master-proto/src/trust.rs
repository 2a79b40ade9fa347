//! Authentication: the job's token, TLS files, and the secrets of nodes.

use std::{fmt, path::PathBuf};

use ring::digest::{SHA256, digest};
use rules::NodeId;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataMap, MetadataValue},
};

/// The metadata key that carries the token.
const KEY: &str = "authorization";

/// The metadata key that carries a node's secret.
const SECRET_KEY: &str = "dlrover-node-secret";

/// The metadata key of the answer to a subscription whose token was checked: this master requires one.
pub const TOKEN_REQUIRED: &str = "dlrover-token-required";

/// Bytes of the digest in a node's id: too many for a brute-force search.
const ID_BYTES: usize = 16;

/// The job's shared secret. Never printed.
#[derive(Clone)]
pub struct Token {
    header: MetadataValue<Ascii>,
}

/// The token cannot be used in a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token is empty.
    #[error("the job token is empty")]
    Empty,
    /// The token has control or non-ASCII characters, or spaces.
    #[error("the job token may contain only visible ASCII characters, without spaces")]
    NotAscii,
}

impl Token {
    /// Creates a token; surrounding whitespace, as editors leave it in a file, is removed.
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

    /// Returns the token as the key of an HMAC.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.header.as_encoded_bytes()
    }

    /// Adds it to a request.
    pub fn put_on<T>(&self, request: &mut Request<T>) {
        request.metadata_mut().insert(KEY, self.header.clone());
    }

    /// Whether this is the value of the header `authorization` that carries the token, `Bearer <token>`; compared in
    /// constant time.
    #[must_use]
    pub fn matches(&self, header: &[u8]) -> bool {
        let ours = self.header.as_encoded_bytes();
        let differs = header.iter().zip(ours).fold(0_u8, |differs, (a, b)| differs | (a ^ b));
        header.len() == ours.len() && differs == 0
    }

    /// Checks, in constant time, that a request carries the token.
    ///
    /// # Errors
    /// It does not.
    pub fn check<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let theirs = request.metadata().get(KEY).map(MetadataValue::as_encoded_bytes).unwrap_or_default();
        if self.matches(theirs) {
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

/// Authenticates the calls of a node. Random for each start of a launcher, sent to the master with every call, and never
/// printed.
///
/// The node's id is its digest. So a master verifies a call without any state, also after a restart without a journal,
/// and the id alone (in logs, the journal, at other nodes) is not enough to act for the node.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeSecret {
    /// Hexadecimal digits.
    text: String,
}

impl NodeSecret {
    /// `random` must be hard to guess, as a fresh UUID is.
    #[must_use]
    pub fn new(random: &str) -> Self {
        Self { text: hexadecimal(digest(&SHA256, random.as_bytes()).as_ref()) }
    }

    /// Returns the node's id, which is public.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        id_of(self.text.as_bytes())
    }

    /// Adds it to a request.
    pub fn put_on<T>(&self, request: &mut Request<T>) {
        // Digits always fit.
        if let Ok(mut value) = self.text.parse::<MetadataValue<Ascii>>() {
            value.set_sensitive(true);
            request.metadata_mut().insert(SECRET_KEY, value);
        }
    }
}

impl fmt::Debug for NodeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeSecret(..)")
    }
}

/// Checks that a call is from the launcher of `node`.
///
/// # Errors
/// The call does not carry the node's secret.
pub fn check_sender(metadata: &MetadataMap, node: &NodeId) -> Result<(), Status> {
    let shown = metadata.get(SECRET_KEY).map(MetadataValue::as_encoded_bytes);
    // The id is public, so the comparison need not take constant time.
    if shown.is_some_and(|shown| id_of(shown) == *node) {
        return Ok(());
    }
    Err(Status::permission_denied(format!(
        "this call for node id {node} does not carry the secret of that node's launcher; only the launcher itself may act \
         for its node"
    )))
}

fn id_of(secret: &[u8]) -> NodeId {
    let digest = digest(&SHA256, &[b"dlrover node ", secret].concat());
    NodeId(hexadecimal(digest.as_ref().get(..ID_BYTES).unwrap_or_default()))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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

/// How peers are authenticated.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// `None`: calls need no token.
    pub token: Option<Token>,
    /// All empty: no TLS.
    pub tls: TlsFiles,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_token_is_accepted() {
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
    fn only_calls_with_its_secret_act_for_a_node() {
        let secret = NodeSecret::new("b3a1");
        let node = secret.node_id();
        let mut request = Request::new(());
        assert!(check_sender(request.metadata(), &node).is_err());
        for wrong in ["b3a2", &node.0] {
            NodeSecret::new(wrong).put_on(&mut request);
            assert!(check_sender(request.metadata(), &node).is_err(), "{wrong}");
        }
        secret.put_on(&mut request);
        assert!(check_sender(request.metadata(), &node).is_ok());
        assert_eq!(format!("{secret:?}"), "NodeSecret(..)");
        assert_eq!(node.0.len(), 2 * ID_BYTES);
    }

    #[test]
    fn a_token_that_no_header_carries_is_refused() {
        assert_eq!(Token::new(" \n").unwrap_err(), TokenError::Empty);
        assert_eq!(Token::new("a b").unwrap_err(), TokenError::NotAscii);
        assert_eq!(Token::new("pässword").unwrap_err(), TokenError::NotAscii);
    }
}
