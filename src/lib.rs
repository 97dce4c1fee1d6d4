//! Quorate, an etcd-backed, leader-elected cluster controller.
//!
//! # Layers
//!
//! A lower layer never names a higher one:
//!
//! | layer | modules | may name |
//! | --- | --- | --- |
//! | vocabulary | [`release`], [`proto`], [`retry`], [`metrics`], [`causes`], [`failpoint`], [`grpc_code`] | |
//! | etcd | [`etcd`]: connection, session, election, fence, watch | `etcd_client`, alone |
//! | CSI | [`csi`]: connections to plugins, capabilities, calls | clients of `tonic`, alone |
//! | store | [`store`]: keys, objects, followers, caches | |
//! | Kubernetes | [`kube`]: client, discovery, apply, events | `kube`, alone |
//! | subjects | [`gate`], [`resources`], [`roles`], [`volumes`], [`deallocator`]: a pure `plan` each, a controller around it | |
//! | a process | [`term`], [`replica`], [`serve`] | |
//! | people | [`cli`] | |

pub mod causes;
pub mod cli;
pub mod csi;
pub mod deallocator;
pub mod etcd;
pub mod failpoint;
pub mod gate;
pub mod grpc_code;
pub mod kube;
pub mod metrics;
pub mod release;
pub mod replica;
pub mod resources;
pub mod retry;
pub mod roles;
pub mod serve;
pub mod store;
pub mod term;
pub mod volumes;

/// The messages of `proto/quorate/v1`, as etcd stores them.
#[allow(
    missing_docs,
    clippy::all,
    reason = "generated; the .proto files hold the documentation"
)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/quorate.v1.rs"));
}
