//! The wire protocol of TCPStore as of torch 2.15.
//!
//! One TCP connection per client. It begins with VALIDATE and a magic number; after that each request is one byte for
//! the operation and then its fields, all little endian: `u64` lengths before keys and values, a `u64` count before a
//! list, `i64` numbers. Requests are not framed, so a reader must parse a request to know where it ends: [`Decoder`]
//! does that field by field and reads each byte once. SET, APPEND, MULTI_SET, QUEUE_PUSH and VALIDATE have no reply.

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
