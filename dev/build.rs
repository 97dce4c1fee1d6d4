//! Compiles the server's side of `proto/csi/` and `proto/otlp/` to Rust. Needs `protoc`, as the product does.

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=../proto/csi");
    println!("cargo:rerun-if-changed=../proto/otlp");
    tonic_prost_build::configure()
        .build_client(false)
        .btree_map(".")
        .compile_protos(&["../proto/csi/v1/csi.proto"], &["../proto"])?;
    tonic_prost_build::configure()
        .build_client(false)
        .compile_protos(&["../proto/otlp/v1/trace.proto"], &["../proto"])
}
