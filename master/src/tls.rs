//! The master's side of TLS, from PEM files.

use std::{fs, io, path::PathBuf};

use master_proto::trust::TlsFiles;
use rules::chain;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::admission::FIRST_CALL_TIMEOUT;

/// The option that names the CA of the nodes, of both programs that serve a job master.
const CLIENT_CA: &str = "--tls-client-ca (dlrover-run: --tls-ca)";

/// The master cannot use TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate without a key, or a key without a certificate.
    #[error("a certificate and its key go together: give both --tls-cert and --tls-key, or neither")]
    Half,
    /// A CA of the nodes without a certificate of the master.
    #[error("{CLIENT_CA} needs a certificate of the job master: give --tls-cert and --tls-key too")]
    NoCertificate,
    /// A file cannot be read.
    #[error("cannot read {option} {}", path.display())]
    Read {
        /// The option that names it.
        option: &'static str,
        /// Its path.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The content of the files is invalid.
    #[error(
        "--tls-cert, --tls-key and {CLIENT_CA} cannot be used: {}; they must be PEM, and the key must belong to the \
         certificate",
        chain(.0)
    )]
    Unusable(tonic::transport::Error),
}

/// Returns the server's TLS configuration; `None` when TLS is off.
pub(crate) fn of(files: &TlsFiles) -> Result<Option<ServerTlsConfig>, TlsError> {
    if !files.is_on() {
        return Ok(None);
    }
    let (cert, key) = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => (cert, key),
        (None, None) => return Err(TlsError::NoCertificate),
        _ => return Err(TlsError::Half),
    };
    let identity = Identity::from_pem(read("--tls-cert", cert)?, read("--tls-key", key)?);
    let mut tls = ServerTlsConfig::new().identity(identity).timeout(FIRST_CALL_TIMEOUT);
    if let Some(ca) = &files.ca {
        tls = tls.client_ca_root(Certificate::from_pem(read(CLIENT_CA, ca)?));
    }
    Ok(Some(tls))
}

fn read(option: &'static str, path: &PathBuf) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read { option, path: path.clone(), source })
}
