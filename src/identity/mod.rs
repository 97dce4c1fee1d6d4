//! The two authorities of a cluster, the certificates that they issue without a server, and the tokens to join with.
//!
//! The *node authority* signs what agents and the control port show, the *etcd authority* what etcd and its clients show. They
//! are two, so that a certificate of a node never passes at etcd. What the latter has signed for nodes that are no managers any more
//! stands in a list, which etcd reads.

mod answer;
pub mod authorities;
pub mod authority;
pub mod certificate;
pub mod chain;
pub mod control;
pub mod controller;
pub mod crl;
mod digest;
pub mod directory;
pub mod ends;
pub mod etcd;
mod gauges;
pub mod index;
pub mod issue;
mod issuers;
pub mod leaf;
mod new_nodes;
pub mod node;
pub mod node_key;
mod plan;
pub mod reached;
pub mod record;
mod recorded_node;
mod records;
pub mod request;
mod revocation;
mod revoke;
pub mod rotation;
mod rotator;
pub mod token;
pub mod validity;
mod waits;

pub use authority::{Authority, AuthorityCertificate, AuthorityDigest, AuthorityKind};
pub use chain::NodeChain;
#[cfg(test)]
pub(crate) use issuers::tests::namesake;
pub use issuers::{Unusable, is_signed_by};
pub use node_key::NodeKey;
pub use token::Token;

/// A key or a certificate could not be made: the machine's source of random bits failed, or a name does not fit.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a certificate: {0}")]
pub struct NotMade(#[from] rcgen::Error);
