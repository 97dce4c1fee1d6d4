//! Deallocation: services and networks that are marked for deletion are deleted once nothing uses them, and not before
//! (INV-7). Unfinished tasks of nodes that do not exist become orphans.
//!
//! [`index`] is a copy of what etcd holds at one revision; [`plan`] decides from it; [`act`] carries out what was decided;
//! [`controller`] drives them under the term. Level-triggered: the index takes in every change of a service, a network, a
//! task or a node, and whatever can be deleted then is deleted.
//!
//! Why a network may be deleted: every write of a service compares, in the same transaction, each network that it newly
//! refers to: unmarked. So from the mark on, the references to a network only get fewer, and an index at or past the
//! revision of the mark that shows none is proof. One watch over all four kinds feeds the index: when it has shown the
//! mark, it has shown every service as it was then.

pub mod act;
pub mod controller;
pub mod index;
pub mod plan;
pub mod summary;
