//! Volumes on a real etcd, through a real CSI plugin: with the real program, and leader by leader with the library.

mod backends;
mod codes;
mod commands;
mod crashes;
mod delays;
mod deletion;
mod events;
mod expansion;
mod forced;
mod forgotten;
mod history;
mod imports;
mod lanes;
mod leaders;
mod leftovers;
mod life;
mod lost_answers;
mod lost_nodes;
mod metrics;
mod plugin_status;
mod plugins;
mod promises;
mod put_back;
mod random;
mod refusals;
mod restored;
mod secrets;
mod stale;
mod tls;
mod unreadable;
mod wakes;
pub mod world;

use std::time::Duration;

use prost::Message;
use quorate::etcd::Txn;
use quorate::proto::{Condition, Publication, Volume};
use quorate_dev::csi_plugin::faults::Happening;
use quorate_dev::csi_plugin::log::Call;

use crate::support::csi::{DRIVER, TestPlugin, answer};
use crate::support::quorate::Launch;
use crate::support::wait::{QUIET, SOON, eventually, same, stays};
use world::{World, document, parsed, secret, shared_volume, volume};
