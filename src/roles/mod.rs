//! Node roles: the etcd cluster's own member list follows the nodes' desired roles, and quorum is never lost because of
//! it (INV-5).
//!
//! Three things are kept apart. The *desired* role is the operator's; the *observed* role is the leader's; *membership*
//! is etcd's own list, tied to nodes by the records below `/members/`. Commands write requests (a desired role, a join)
//! and wait; the leader alone changes membership, one change at a time.
//!
//! [`quorum`] counts; [`checks`] says which requests are refused, for commands and for the leader alike; [`reason`] has
//! the words for why something does not go on.

pub mod checks;
pub mod controller;
pub mod index;
pub mod plan;
pub mod quorum;
pub mod reason;
pub mod transitions;
mod writes;
