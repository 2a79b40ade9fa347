//! The head of a slot: 4096 bytes of numbers. They say where the description of the state is (see [`crate::format::meta`]),
//! and where its bytes are. Both are written by the training process: nothing of them is used before it is checked against
//! the size of the slot.

mod error;
mod fields;
#[cfg(test)]
mod tests;

pub use error::HeaderError;
pub use fields::{HEADER_LEN, Header, MAGIC, VERSION};
