//! The codec of all messages: tonic's, with smaller buffers.
//!
//! Each open stream keeps its buffer. A message to a node has about 100 bytes, so tonic's 8 KiB for each of thousands
//! of nodes would be a good part of the master's memory.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// Initial size; grows for larger messages.
const BUFFER: usize = 512;

/// Messages that are ready are sent together up to so many bytes: tonic's default.
const YIELD: usize = 32 << 10;

/// The codec of every call.
#[derive(Debug)]
pub struct MessageCodec<T, U> {
    types: PhantomData<(T, U)>,
}

impl<T, U> Default for MessageCodec<T, U> {
    fn default() -> Self {
        Self { types: PhantomData }
    }
}

impl<T, U> Codec for MessageCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(BUFFER, YIELD))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::new(BUFFER, YIELD))
    }
}
