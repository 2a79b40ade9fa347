//! Connections to the master: its address, resolved anew for each, and the credentials.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use hyper_util::client::legacy::connect::HttpConnector;
use master_proto::trust::{NodeSecret, TlsFiles, Trust};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tonic::{
    Request,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

/// How long a host may take to accept a connection, shared by the addresses of a name. Short, because the kernel
/// retransmits only after 1, 3 and 7 s: an attempt from a network failure must not outlive it for long, and the next
/// one sends at once.
pub(super) const CONNECT: Duration = Duration::from_secs(1);

/// How long the kernel of the master's host may take to acknowledge data; then the connection is closed
/// (TCP_USER_TIMEOUT). A busy or stopped master does not matter: its kernel acknowledges.
pub(super) const ACKNOWLEDGE: Duration = Duration::from_secs(5);

/// How long an attempt may take in all: name lookup, connect, TLS handshake.
const ATTEMPT: Duration = Duration::from_secs(20);

/// How long a TCPStore or a web server may take to answer: it must be identified within a second.
const GREETING: Duration = Duration::from_millis(500);

/// How a node asks whether a peer is a TCPStore: VALIDATE with torch's magic number, then PING with a number of ours,
/// which a store answers. A job master knows a question of a node by it: it comes from no torchrun.
pub const STORE_QUESTION: [u8; 10] = [0, 0xce, 0xf7, 0x85, 0x3c, 0x0d, b'r', b'v', b'l', b'd'];

/// Where the master is.
#[derive(Debug, Clone)]
pub struct MasterAt {
    /// A name or an address, an IPv6 one without brackets. A name is looked up for each connection.
    pub host: String,
    pub port: u16,
    /// The credentials of both sides.
    pub trust: Trust,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The connection is refused, or the host is unreachable.
    #[error("cannot connect to the job master at {at}")]
    Connect {
        at: String,
        #[source]
        source: tonic::transport::Error,
    },
    /// A name server that does not answer, or a port that accepts and stays silent.
    #[error(
        "cannot connect to the job master at {at}: name resolution, connection and TLS handshake did not complete within \
         {} s", ATTEMPT.as_secs()
    )]
    Slow { at: String },
    #[error("cannot read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A certificate without its key, or a key without its certificate.
    #[error("a certificate and its key go together: give both --tls-cert and --tls-key, or neither")]
    HalfAnIdentity,
    /// The content of the TLS files cannot be used.
    #[error("cannot use the TLS files for the job master at {at}")]
    Tls {
        at: String,
        #[source]
        source: tonic::transport::Error,
    },
}

impl ConnectError {
    /// Whether another attempt would fail the same way.
    pub(super) fn is_final(&self) -> bool {
        !matches!(self, Self::Connect { .. } | Self::Slow { .. })
    }
}

/// Opens connections to the master.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    at: MasterAt,
    secret: NodeSecret,
}

impl fmt::Display for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MasterAt { host, port, .. } = &self.at;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl Connector {
    pub(crate) fn new(at: MasterAt, secret: NodeSecret) -> Self {
        Self { at, secret }
    }

    pub(crate) async fn open(&self) -> Result<Channel, ConnectError> {
        let connect = |source| ConnectError::Connect { at: self.to_string(), source };
        let tls = &self.at.trust.tls;
        let scheme = if tls.is_on() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{self}")).map_err(connect)?;
        if tls.is_on() {
            let config = client_tls(tls, &self.at.host)?;
            let unusable = |source| ConnectError::Tls { at: self.to_string(), source };
            endpoint = endpoint.tls_config(config).map_err(unusable)?;
        }
        let opened = timeout(ATTEMPT, endpoint.connect_with_connector(tcp())).await;
        opened.map_err(|_| ConnectError::Slow { at: self.to_string() })?.map_err(connect)
    }

    /// Whether the server that closed the connection or stays silent is a TCPStore: it answers [`STORE_QUESTION`].
    pub(super) async fn is_tcp_store(&self) -> bool {
        let asked = async {
            let mut stream = TcpStream::connect((self.at.host.as_str(), self.at.port)).await.ok()?;
            stream.write_all(&STORE_QUESTION).await.ok()?;
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).await.ok()?;
            Some(answer)
        };
        matches!(timeout(GREETING, asked).await, Ok(Some(answer)) if STORE_QUESTION.ends_with(&answer))
    }

    /// Whether the server that closed the connection, or answered without gRPC's status, is a web server or a proxy.
    pub(crate) async fn is_web_server(&self) -> bool {
        let asked = async {
            let mut stream = TcpStream::connect((self.at.host.as_str(), self.at.port)).await.ok()?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.ok()?;
            let mut start = [0; 5];
            stream.read_exact(&mut start).await.ok()?;
            Some(start)
        };
        matches!(timeout(GREETING, asked).await, Ok(Some(start)) if &start == b"HTTP/")
    }

    /// Whether the calls carry the job's token.
    pub(super) fn has_token(&self) -> bool {
        self.at.trust.token.is_some()
    }

    /// Adds this node's secret and the job's token, if there is one, to a request.
    pub(crate) fn signed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        self.secret.put_on(&mut request);
        if let Some(token) = &self.at.trust.token {
            token.put_on(&mut request);
        }
        request
    }
}

/// Makes connections; TLS is added on top.
fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    // `https` is allowed: TLS is added later.
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_tcp_user_timeout(Some(ACKNOWLEDGE));
    tcp
}

fn client_tls(files: &TlsFiles, host: &str) -> Result<ClientTlsConfig, ConnectError> {
    let mut config = ClientTlsConfig::new().domain_name(host);
    if let Some(ca) = &files.ca {
        config = config.ca_certificate(Certificate::from_pem(pem(ca)?));
    }
    match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => Ok(config.identity(Identity::from_pem(pem(cert)?, pem(key)?))),
        (None, None) => Ok(config),
        (Some(_), None) | (None, Some(_)) => Err(ConnectError::HalfAnIdentity),
    }
}

fn pem(path: &Path) -> Result<Vec<u8>, ConnectError> {
    fs::read(path).map_err(|source| ConnectError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connector(host: &str) -> Connector {
        let at = MasterAt { host: host.into(), port: 5, trust: Trust::default() };
        Connector::new(at, NodeSecret::new("of a node"))
    }

    #[test]
    fn an_ipv6_address_is_bracketed() {
        assert_eq!(connector("::1").to_string(), "[::1]:5");
        assert_eq!(connector("host").to_string(), "host:5");
    }

    #[test]
    fn the_question_is_validate_and_ping() {
        let mut encoded = Vec::new();
        store::Request::Validate.encode(&mut encoded);
        store::Request::Ping { nonce: u32::from_le_bytes(*b"rvld") }.encode(&mut encoded);
        assert_eq!(encoded, STORE_QUESTION);
    }

    #[test]
    fn half_an_identity_is_refused() {
        let files = TlsFiles { cert: Some("/dev/null".into()), ..TlsFiles::default() };
        assert!(matches!(client_tls(&files, "h"), Err(ConnectError::HalfAnIdentity)));
    }
}
