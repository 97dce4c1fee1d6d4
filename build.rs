//! Compiles the messages of `proto/` to Rust. Needs `protoc` with its includes (Debian: protobuf-compiler,
//! libprotobuf-dev); `$PROTOC` may name another compiler.

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-env-changed=QUORATE_GIT_COMMIT");
    prost_build::Config::new()
        // These maps iterate in key order, so that each message has one encoding.
        .btree_map(["."])
        // It holds secret values. Its `Debug` is written by hand and hides them.
        .skip_debug(["quorate.v1.Secret"])
        .compile_protos(
            &[
                "proto/quorate/v1/version.proto",
                "proto/quorate/v1/reconciler.proto",
                "proto/quorate/v1/object.proto",
                "proto/quorate/v1/node.proto",
                "proto/quorate/v1/member.proto",
                "proto/quorate/v1/identity.proto",
                "proto/quorate/v1/service.proto",
                "proto/quorate/v1/volume.proto",
            ],
            &["proto"],
        )?;
    tonic_prost_build::configure()
        .build_server(false)
        .btree_map(".")
        // Without `Debug` a message with secret values cannot be printed.
        .skip_debug(SECRET_BEARERS.map(|message| format!("csi.v1.{message}")))
        .compile_protos(&["proto/csi/v1/csi.proto"], &["proto"])
}

/// The messages of `proto/csi/v1/csi.proto` with a field `secrets`.
const SECRET_BEARERS: [&str; 5] = [
    "CreateVolumeRequest",
    "DeleteVolumeRequest",
    "ControllerPublishVolumeRequest",
    "ControllerUnpublishVolumeRequest",
    "ControllerExpandVolumeRequest",
];
