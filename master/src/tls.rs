//! The master's side of TLS, from PEM files.

use std::{fs, io, path::PathBuf};

use master_proto::trust::TlsFiles;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::admission::SILENCE;

/// What keeps the master from using TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// One without the other.
    #[error("TLS needs the master's certificate and its key: give both --tls-cert and --tls-key")]
    Half,
    /// A file.
    #[error("cannot read {option} {}", path.display())]
    Read {
        /// What it was given by.
        option: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// What is in the files.
    #[error(
        "--tls-cert, --tls-key and --tls-client-ca cannot be used; they must be PEM, and the key must belong to the \
         certificate"
    )]
    Unusable(#[source] tonic::transport::Error),
}

/// The server's TLS; `None` when it is not switched on.
pub(crate) fn of(files: &TlsFiles) -> Result<Option<ServerTlsConfig>, TlsError> {
    if !files.is_on() {
        return Ok(None);
    }
    let (Some(cert), Some(key)) = (&files.cert, &files.key) else { return Err(TlsError::Half) };
    let identity = Identity::from_pem(read("--tls-cert", cert)?, read("--tls-key", key)?);
    let mut tls = ServerTlsConfig::new().identity(identity).timeout(SILENCE);
    if let Some(ca) = &files.ca {
        tls = tls.client_ca_root(Certificate::from_pem(read("--tls-client-ca", ca)?));
    }
    Ok(Some(tls))
}

fn read(option: &'static str, path: &PathBuf) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read { option, path: path.clone(), source })
}
