//! Digests that are compared instead of what they are made from. Pure.

use std::hash::{DefaultHasher, Hash, Hasher};

/// The digest of a value, the same in all processes of one build.
pub fn digest(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}
