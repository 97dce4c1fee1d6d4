//! Node roles: etcd's own member list follows the nodes' desired roles, and never loses its quorum because of that
//! (INV-5).
//!
//! The operator sets the *desired* role, and the leader writes the *observed* role. *Membership* is etcd's own list; the
//! records below `/members/` tie its members to nodes. Commands write requests (a desired role, a join) and wait. Only
//! the leader changes membership, one change at a time.
//!
//! [`membership`] is the model that decisions are made from; [`quorum`] counts voters; [`checks`] has the rules by which
//! commands and the leader refuse requests; [`reason`] has their stable words.

pub mod blocked;
pub mod checks;
pub mod controller;
pub mod facts;
pub mod faulty_releases;
pub mod index;
pub mod join_request;
pub mod membership;
pub mod node_update;
pub mod owner;
pub mod plan;
pub mod quorum;
pub mod reason;
pub mod settings;
pub mod summary;
pub mod transitions;
