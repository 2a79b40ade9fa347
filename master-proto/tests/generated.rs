//! The code of the wire in `src/generated` is what `proto/master.proto` says. It is part of the tree because its
//! generator added 20 s to a first build on 2 cores. `DLROVER_RENEW_WIRE=1 cargo test -p master-proto` writes it anew.

use std::{env, fs, path::Path};

const FILE: &str = "dlrover.master.v1.rs";

#[test]
fn the_generated_code_is_that_of_the_proto_file() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = protox::compile([here.join("proto/master.proto")], [here.join("proto")])
        .expect("master.proto is valid");
    let made = tempfile::tempdir().expect("a temporary directory");
    tonic_prost_build::configure()
        .codec_path("crate::codec::MessageCodec")
        .out_dir(made.path())
        .compile_fds(files)
        .expect("code is generated");
    let made = fs::read_to_string(made.path().join(FILE)).expect("the generated code");
    let kept = here.join("src/generated").join(FILE);
    if env::var_os("DLROVER_RENEW_WIRE").is_some() {
        fs::write(&kept, &made).expect("the code is written");
    }
    let kept = fs::read_to_string(kept).expect("the code of the tree");
    let differs = made.lines().zip(kept.lines()).find(|(made, kept)| made != kept);
    assert!(
        made == kept,
        "src/generated/{FILE} is not what proto/master.proto says (first difference: {differs:?}); \
         run DLROVER_RENEW_WIRE=1 cargo test -p master-proto"
    );
}
