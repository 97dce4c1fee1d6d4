//! The names for programs that embed this library: an election on etcd, writes that a former leader cannot make, ranges
//! that are followed, and [`wait_ready`].
//!
//! With `default-features = false` the crate is only this library, without the controller and its dependencies.
//!
//! # Lead, and write as the leader
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use quorate::prelude::*;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let etcd = Etcd::builder(["http://127.0.0.1:2379"]).connect().await?;
//! let leadership = elect(&etcd, "/example/leader", "node-1", Duration::from_secs(10)).await?;
//! match etcd.fenced(leadership.fence(), Txn::new().put(b"/example/key", "value")).await {
//!     Ok(committed) => println!("written at revision {}", committed.revision),
//!     Err(FencedError::LostLeadership(term)) => println!("term {term} is over; nothing was written"),
//!     Err(FencedError::Conflict) => println!("a compare did not hold; nothing was written"),
//!     Err(FencedError::Unknown(error)) => println!("read again before deciding: {error}"),
//!     Err(FencedError::Failed(error)) => println!("etcd refused it; nothing was written: {error}"),
//! }
//! leadership.resign().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Follow a range
//!
//! ```no_run
//! # use quorate::prelude::*;
//! # async fn run(etcd: Etcd) {
//! let mut follower = Follower::new(&etcd, KeyRange::prefix("/example/"));
//! loop {
//!     match follower.next().await {
//!         Update::Page { keys, .. } => println!("{} keys", keys.len()),
//!         Update::Listed(revision) => println!("these are all keys at revision {revision}"),
//!         Update::Events(events) => println!("{} changes", events.len()),
//!     }
//! }
//! # }
//! ```
//!
//! # Serve only when the reconciled state admits this release
//!
//! ```no_run
//! # use quorate::prelude::*;
//! # async fn run(etcd: Etcd) -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::new(etcd, "/quorate".parse()?);
//! let requirements = Requirements {
//!     release: "1.4.0".parse()?,
//!     min_reconciler: "1.3.0".parse()?,
//! };
//! wait_ready(&store, requirements, |reason| println!("waiting: {reason}")).await?;
//! # Ok(())
//! # }
//! ```

pub use crate::etcd::election::{CampaignError, Leadership, elect};
pub use crate::etcd::{Etcd, Event, Fence, FencedError, KeyRange, StoreLost, Txn};
pub use crate::gate::{Requirements, WaitReady, wait_ready};
pub use crate::release::Release;
pub use crate::store::{Follower, Store, Update};
