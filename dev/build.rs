//! Compiles the server's side of `proto/csi/` to Rust. Needs `protoc`, as the product does.

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=../proto/csi");
    tonic_prost_build::configure()
        .build_client(false)
        .btree_map(".")
        .compile_protos(&["../proto/csi/v1/csi.proto"], &["../proto"])
}
