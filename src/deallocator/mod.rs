//! Deallocation: services and networks that are marked for deletion go once nothing uses them, and not before (INV-7).
//!
//! [`index`] is what was seen in etcd, at one revision; [`plan`] decides from it; [`act`] makes transactions of what was
//! decided; [`controller`] drives them under the term. Level-triggered: any change of a service, a network, a task or a
//! node is taken in, and whatever may go then, goes.
//!
//! Why a network may go: whatever writes a service compares each network that it newly refers to, unmarked, in the same
//! transaction. So from the mark on, its references only get fewer, and an index at or past the revision of the mark
//! that shows none is proof. The index is fed by one watch over all four kinds: whatever shows the mark has shown every
//! service as it was then.

pub mod act;
pub mod controller;
mod desk;
pub mod index;
pub mod plan;
