//! Generates the wire code with a protobuf compiler written in Rust: no build needs `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/master.proto");
    let files = protox::compile(["proto/master.proto"], ["proto"])?;
    tonic_prost_build::configure().codec_path("crate::codec::MessageCodec").compile_fds(files)?;
    Ok(())
}
