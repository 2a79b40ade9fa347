//! PyTorch's TCPStore, served by the launcher instead of by rank 0.
//!
//! Every `torch.distributed` job meets at a key-value store. When the launcher serves it, no rank has to win a race
//! for a port, the store outlives the ranks, and a restart finds a fresh key space.
//!
//! Read in this order:
//! 1. [`codec`]: bytes to [`Request`] and [`Reply`] to bytes, with no socket. It documents the protocol.
//! 2. [`table`]: what a request does to the keys, and the replies. No socket, no clock.
//! 3. [`server`]: the shell, one thread that moves bytes between sockets and the two above.

pub mod codec;
mod limits;
pub mod server;
pub mod table;

pub use codec::{DecodeError, Decoder, Key, Reply, Request, Value};
pub use limits::Limits;
pub use server::{Allowed, StoreServer, bind_any, bind_at, bind_loopback};
pub use table::{ClientId, Refused, Table};
