//! The rotation of the two authorities: trust both, replace every certificate, drop the former ones.
//!
//! `quorate ca rotate` asks for it, the leader records how far it is and moves on once everybody has come along, and each replica does
//! its part by the record. What an operator asks for and what a record names are digests: an authority itself comes from `--ca-dir`
//! alone, so that who writes to etcd brings in no authority of their own.

pub(super) mod act;
pub mod client;
pub(super) mod facts;
pub(super) mod observe;
pub(super) mod plan;
pub mod record;
pub mod view;
