//! The wire protocol of TCPStore as torch 2.15 speaks it.
//!
//! One TCP connection a client. It begins with VALIDATE and a magic number; after that each request is one
//! byte that names the operation and then its fields, all little endian: `u64` lengths before keys and values,
//! a `u64` count before a list, `i64` numbers. Nothing frames a request, so a reader must understand it to know
//! where it ends: [`Decoder`] does that field by field and never looks at a byte twice, however the bytes are
//! cut. SET, APPEND, MULTI_SET, QUEUE_PUSH and VALIDATE have no reply.

#[cfg(test)]
mod cuts;
mod decoder;
mod key;
mod op;
mod reply;
mod request;

pub use decoder::{DecodeError, Decoder};
pub use key::{Key, Value};
pub use op::Op;
pub use reply::{Reply, ReplySink};
pub use request::Request;
