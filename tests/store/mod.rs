//! What the controllers share on a real etcd.

mod writer;
