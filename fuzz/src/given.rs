//! What the targets of stored values are given beside their input.

use std::sync::LazyLock;

use jiff::Timestamp;
use quorate::store::{Keys, Prefix};

/// The keys of the values.
pub static KEYS: LazyLock<Keys> = LazyLock::new(|| match "/q".parse::<Prefix>() {
    Ok(prefix) => Keys::new(prefix),
    Err(bad) => panic!("{bad}"),
});

/// The uid of a node.
pub const UID: &str = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff";

/// A moment after the times of the corpus.
pub const NOW: Timestamp = Timestamp::constant(1_780_000_000, 0);
