//! Compiles the messages of `proto/` to Rust. Needs `protoc` with its includes (Debian: protobuf-compiler,
//! libprotobuf-dev); `$PROTOC` may name another compiler.

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-env-changed=QUORATE_GIT_COMMIT");
    take_guards_out();
    if std::env::var_os("CARGO_FEATURE_CONTROLLER").is_some() {
        compile_all()
    } else {
        // What etcd holds, without services: a program that embeds the library serves none.
        prost_build::Config::new()
            .btree_map(["."])
            .skip_debug(SECRET_BEARERS)
            .compile_protos(&STORED, &["proto"])
    }
}

/// Builds what `src/mutation.rs` needs, where it is asked for: a variable rather than RUSTFLAGS, so that no dependency is built again
/// for it. Never into a release.
fn take_guards_out() {
    const ASKED: &str = "QUORATE_MUTATIONS";
    println!("cargo:rerun-if-env-changed={ASKED}");
    if std::env::var_os(ASKED).is_some() {
        match std::env::var("PROFILE").as_deref() {
            Ok("release") => println!("cargo::error={ASKED} takes guards out: no release is built with it"),
            _ => println!("cargo::rustc-cfg=quorate_mutations"),
        }
    }
}

fn compile_all() -> std::io::Result<()> {
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").ok_or(std::io::ErrorKind::NotFound)?);
    tonic_prost_build::configure()
        .file_descriptor_set_path(out.join("quorate.bin"))
        // These maps iterate in key order, so that each message has one encoding.
        .btree_map(".")
        .skip_debug(SECRET_BEARERS)
        .compile_protos(
            &[&STORED[..], &["proto/quorate/v1/control.proto"]].concat(),
            &["proto"],
        )?;
    tonic_prost_build::configure()
        .build_server(false)
        .btree_map(".")
        // Without `Debug` a message with secret values cannot be printed.
        .skip_debug(CSI_SECRET_BEARERS.map(|message| format!("csi.v1.{message}")))
        .compile_protos(&["proto/csi/v1/csi.proto"], &["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .compile_protos(&["proto/otlp/v1/trace.proto"], &["proto"])
}

/// The messages that etcd holds.
const STORED: [&str; 9] = [
    "proto/quorate/v1/version.proto",
    "proto/quorate/v1/reconciler.proto",
    "proto/quorate/v1/object.proto",
    "proto/quorate/v1/node.proto",
    "proto/quorate/v1/member.proto",
    "proto/quorate/v1/identity.proto",
    "proto/quorate/v1/service.proto",
    "proto/quorate/v1/volume.proto",
    "proto/quorate/v1/log.proto",
];

/// These hold secret values, or messages that do (tests/layers/secrets.rs). `Debug` is written by hand where it is needed, and hides them.
const SECRET_BEARERS: [&str; 6] = [
    "quorate.v1.Secret",
    "quorate.v1.SecretData",
    "quorate.v1.NodeJoinRequest",
    "quorate.v1.NodePublication",
    "quorate.v1.NodeView",
    "quorate.v1.SessionResponse",
];

/// The messages of `proto/csi/v1/csi.proto` with a field `secrets`.
const CSI_SECRET_BEARERS: [&str; 9] = [
    "CreateVolumeRequest",
    "DeleteVolumeRequest",
    "ControllerPublishVolumeRequest",
    "ControllerUnpublishVolumeRequest",
    "ControllerExpandVolumeRequest",
    "ValidateVolumeCapabilitiesRequest",
    "NodeStageVolumeRequest",
    "NodePublishVolumeRequest",
    "NodeExpandVolumeRequest",
];
