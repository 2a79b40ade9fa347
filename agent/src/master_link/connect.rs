//! The way to the master: its address, tried anew with each connection, and what it wants to see.

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

/// How long a host may take to answer that it accepts a connection, shared by the addresses of a name. Short, because
/// the kernel asks again only after 1, 3 and 7 s: an attempt that began while nothing got through must not outlive that
/// for long, and the next one asks at once.
pub(super) const CONNECT: Duration = Duration::from_secs(1);

/// How long the kernel of the master's host may take to acknowledge what was sent to it; then the connection is given
/// up (TCP_USER_TIMEOUT). A master that is busy or stopped does not matter: its kernel acknowledges.
pub(super) const ACKNOWLEDGE: Duration = Duration::from_secs(5);

/// How long an attempt may take in all: the name is looked up, the host accepts, TLS is agreed upon.
const ATTEMPT: Duration = Duration::from_secs(20);

/// How long a TCPStore may take to answer a greeting: what it is shall be said within a second.
const GREETING: Duration = Duration::from_millis(500);

/// Where the master is.
#[derive(Debug, Clone)]
pub struct MasterAt {
    /// A name or an address, an IPv6 one without brackets. A name is looked up for each connection.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What it wants to see, and what we want to see of it.
    pub trust: Trust,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens, or nothing gets there.
    #[error("cannot connect to the job master at {at}")]
    Connect {
        /// `host:port`.
        at: String,
        /// What was tried last.
        #[source]
        source: tonic::transport::Error,
    },
    /// A name server that does not answer, or a port that accepts and says nothing.
    #[error(
        "cannot connect to the job master at {at}: the look-up of its name, the connection and TLS together took more \
         than {} s", ATTEMPT.as_secs()
    )]
    Slow {
        /// `host:port`.
        at: String,
    },
    /// A PEM file.
    #[error("cannot read {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A certificate without its key, or a key without its certificate.
    #[error("a certificate and its key go together: give both --tls-cert and --tls-key, or neither")]
    HalfAnIdentity,
    /// What the files hold.
    #[error("cannot use the TLS files for the job master at {at}")]
    Tls {
        /// `host:port`.
        at: String,
        /// What is wrong with them.
        #[source]
        source: tonic::transport::Error,
    },
}

impl ConnectError {
    /// Another try would end the same way.
    pub(super) fn is_final(&self) -> bool {
        !matches!(self, Self::Connect { .. } | Self::Slow { .. })
    }
}

/// The way to the master.
#[derive(Clone)]
pub(super) struct Connector {
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
    pub(super) fn new(at: MasterAt, secret: NodeSecret) -> Self {
        Self { at, secret }
    }

    pub(super) async fn open(&self) -> Result<Channel, ConnectError> {
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

    /// Whether what hung up on us is a TCPStore: it answers its greeting and a ping with the ping's number.
    pub(super) async fn is_tcp_store(&self) -> bool {
        const NONCE: u32 = 0x646c_7276;
        let mut hello = Vec::new();
        store::Request::Validate.encode(&mut hello);
        store::Request::Ping { nonce: NONCE }.encode(&mut hello);
        let asked = async {
            let mut stream = TcpStream::connect((self.at.host.as_str(), self.at.port)).await.ok()?;
            stream.write_all(&hello).await.ok()?;
            stream.read_u32_le().await.ok()
        };
        matches!(timeout(GREETING, asked).await, Ok(Some(NONCE)))
    }

    /// A request with this node's secret, and with the job's token, if there is one.
    pub(super) fn signed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        self.secret.put_on(&mut request);
        if let Some(token) = &self.at.trust.token {
            token.put_on(&mut request);
        }
        request
    }
}

/// How connections are made; TLS is put on top of it.
fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    // `https` is no mistake: TLS comes after it.
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
    fn half_an_identity_is_refused() {
        let files = TlsFiles { cert: Some("/dev/null".into()), ..TlsFiles::default() };
        assert!(matches!(client_tls(&files, "h"), Err(ConnectError::HalfAnIdentity)));
    }
}
