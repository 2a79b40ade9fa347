//! Tokens and certificates.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{fs, path::Path};

use common::{Master, Node, Way, run_a_job};
use master_proto::trust::{TlsFiles, Token};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rules::verdict::JobVerdict;
use tonic::{
    Code,
    transport::{Certificate, ClientTlsConfig, Identity},
};

#[tokio::test]
async fn only_calls_with_the_token_are_served() {
    let token = |text| Some(Token::new(text).unwrap());
    let master = Master::start(|config| config.trust.token = token("s3cret"));
    for wrong in [None, token("s3creT"), token("s3cret-and-more")] {
        let way = Way { token: wrong, tls: None };
        let status = Node::subscribe_by(master.address, "a", way).await.err().expect("a refusal");
        assert_eq!(status.code(), Code::Unauthenticated);
        assert!(status.message().contains("DLROVER_JOB_TOKEN"), "{status}");
    }
    assert!(master.logs("127.0.0.1: rejected a call: the job token is missing or wrong"));
    run_a_job(master.address, &Way { token: token("s3cret"), tls: None }).await;
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
}

/// A certificate authority that lives as long as its test.
struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Ca {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Certificate and key, as PEM.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.into()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    fn trusted(&self) -> ClientTlsConfig {
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.pem)).domain_name("master.test")
    }
}

fn files(dir: &Path, ca: &Ca) -> TlsFiles {
    let (cert, key) = ca.sign("master.test");
    let paths = ["cert", "key"].map(|name| dir.join(name));
    fs::write(&paths[0], cert).unwrap();
    fs::write(&paths[1], key).unwrap();
    let [cert, key] = paths.map(Some);
    TlsFiles { cert, key, ca: None }
}

#[tokio::test]
async fn a_job_runs_over_tls_and_plain_text_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    let master = Master::start(|config| config.trust.tls = files(dir.path(), &ca));
    assert!(Node::subscribe(master.address, "plain").await.is_err());
    let stranger = Way { token: None, tls: Some(Ca::new().trusted()) };
    assert!(Node::subscribe_by(master.address, "stranger", stranger).await.is_err());
    run_a_job(master.address, &Way { token: None, tls: Some(ca.trusted()) }).await;
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
}

#[tokio::test]
async fn nodes_without_a_required_certificate_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    let master = Master::start(|config| {
        let ca_file = dir.path().join("ca");
        fs::write(&ca_file, &ca.pem).unwrap();
        config.trust.tls = TlsFiles { ca: Some(ca_file), ..files(dir.path(), &ca) };
    });
    let nameless = Way { token: None, tls: Some(ca.trusted()) };
    assert!(Node::subscribe_by(master.address, "a", nameless).await.is_err());
    let (cert, key) = ca.sign("node.test");
    let tls = ca.trusted().identity(Identity::from_pem(cert, key));
    run_a_job(master.address, &Way { token: None, tls: Some(tls) }).await;
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let refused = async |tls: TlsFiles| {
        Master::start(|config| config.trust.tls = tls).ended().await.unwrap_err().to_string()
    };
    let good = files(dir.path(), &Ca::new());
    let half = refused(TlsFiles { key: None, ..good.clone() }).await;
    assert!(half.contains("give both --tls-cert and --tls-key"), "{half}");
    let only_ca = TlsFiles { cert: None, key: None, ca: Some(dir.path().join("ca")) };
    let only_ca = refused(only_ca).await;
    assert!(only_ca.contains("--tls-client-ca") && only_ca.contains("needs a certificate"), "{only_ca}");
    let none = refused(TlsFiles { key: Some(dir.path().join("none")), ..good.clone() }).await;
    assert!(none.contains("cannot read --tls-key") && none.contains("none"), "{none}");
    fs::write(dir.path().join("key"), "no key").unwrap();
    let bad = refused(good).await;
    assert!(bad.contains("they must be PEM"), "{bad}");
}
