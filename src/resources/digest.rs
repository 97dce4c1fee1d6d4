//! Digests that are compared instead of what they are made from. Pure.

use std::hash::{DefaultHasher, Hash, Hasher};

/// The format of what is digested. Another one makes all digests others, which costs one apply of each object.
const FORMAT: u32 = 1;

/// The digest of a value: the same in all processes whose builds have this format and the same standard library, which may
/// change its hash.
pub fn digest(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    FORMAT.hash(&mut hasher);
    of.hash(&mut hasher);
    hasher.finish()
}
