//! The wire between agents and the job master.
//!
//! [`pb`] is generated from `proto/master.proto`; its types stay in [`convert`], the master's `service.rs`
//! and the agent's `master_link.rs`. [`convert`] is the only gate to the types of `rules`: it validates.
//! [`question`] is what launchers ask each other. [`codec`] is what the generated code writes and reads with; [`trust`] is what both sides know of tokens, of
//! nodes' secrets and of certificates.

pub mod codec;
pub mod convert;
pub mod question;
pub mod trust;

/// Generated messages, client and server.
pub mod pb {
    tonic::include_proto!("dlrover.master.v1");
}

/// Spoken by this build. An agent and a master of different versions refuse each other by name.
pub const PROTOCOL_VERSION: u32 = 9;

/// The largest message the master takes, in bytes.
pub const MOST_REQUEST_BYTES: usize = 64 << 10;
