//! The protocol between agents and the job master.
//!
//! [`pb`] is generated from `proto/master.proto`; [`convert`] validates its types and converts them to those of
//! `rules`, which is what everything behind the two ends of the wire uses. [`question`] is what launchers
//! ask each other. [`codec`] is used by the generated code; [`trust`] has tokens, nodes' secrets and certificates.

pub mod codec;
pub mod convert;
pub mod question;
pub mod trust;

/// Generated messages, client and server. `tests/generated.rs` holds them against the `.proto` file and renews them.
pub mod pb {
    include!("generated/dlrover.master.v1.rs");
}

/// The version of this build. An agent and a master of different versions refuse each other.
pub const PROTOCOL_VERSION: u32 = 14;

/// The largest message that the master accepts, in bytes.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;

/// The largest message that a node accepts, in bytes: the manifest of a checkpoint of 65,536 shards.
pub const MAX_PUSH_BYTES: usize = 32 << 20;
