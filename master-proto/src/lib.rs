//! The protocol between agents and the job master.
//!
//! [`pb`] is generated from `proto/master.proto`; its types stay in [`convert`], the master's `service.rs` and the
//! agent's `master_link.rs`. [`convert`] validates and converts to the types of `rules`. [`question`] is what launchers
//! ask each other. [`codec`] is used by the generated code; [`trust`] has tokens, nodes' secrets and certificates.

pub mod codec;
pub mod convert;
pub mod question;
pub mod trust;

/// Generated messages, client and server.
pub mod pb {
    tonic::include_proto!("dlrover.master.v1");
}

/// The version of this build. An agent and a master of different versions refuse each other.
pub const PROTOCOL_VERSION: u32 = 11;

/// The largest message that the master accepts, in bytes.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;
