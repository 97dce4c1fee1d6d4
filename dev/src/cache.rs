//! The programs that the scripts of `.ci` leave in the user's cache.

use std::env;
use std::path::PathBuf;

/// The folder of the cache: `$QUORATE_CACHE`, or `quorate` in the user's cache.
pub fn folder() -> Option<PathBuf> {
    path_of("QUORATE_CACHE").or_else(|| {
        let caches = path_of("XDG_CACHE_HOME").or_else(|| Some(path_of("HOME")?.join(".cache")))?;
        Some(caches.join("quorate"))
    })
}

/// The path in a variable that is set.
pub fn path_of(variable: &str) -> Option<PathBuf> {
    let value = env::var_os(variable).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}
