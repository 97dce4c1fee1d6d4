//! The levels of the log that operators have set for all replicas, as etcd holds them.
//!
//! A level that ends by itself is on a lease, so that etcd ends it: no clock of a replica or an operator decides, and no process
//! has to live until then. A replica that is cut off from etcd keeps the levels that it knows until it reaches etcd again.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use tokio::sync::watch;
use tracing::warn;

use crate::etcd::KeyValue;
use crate::proto::LogLevel;
use crate::store::object::message;
use crate::store::{Cache, Store};

/// The levels that are set, by module.
pub type LogLevels = BTreeMap<String, Level>;

/// A level of the log: lines of this level and of the more important ones are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// No lines.
    Off,
    /// Errors alone.
    Error,
    /// And warnings.
    Warn,
    /// And what the program does.
    Info,
    /// And how it decides.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    const ALL: [Self; 6] = [
        Self::Off,
        Self::Error,
        Self::Warn,
        Self::Info,
        Self::Debug,
        Self::Trace,
    ];

    /// The word in flags and records.
    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A word that is no level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a level: expected off, error, warn, info, debug or trace")]
pub struct NoLevel(String);

impl FromStr for Level {
    type Err = NoLevel;

    fn from_str(text: &str) -> Result<Self, NoLevel> {
        let mut all = Self::ALL.into_iter();
        all.find(|level| level.word() == text)
            .ok_or_else(|| NoLevel(text.to_owned()))
    }
}

/// Whether this is the path of a module: `quorate::roles::plan`. Replicas of several releases have several modules, so that it
/// need not exist here.
pub fn is_module(text: &str) -> bool {
    let is_word = |word: &str| {
        let mut characters = word.chars();
        let begins = characters.next().is_some_and(|first| first.is_ascii_lowercase());
        begins && characters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    text.split("::").all(is_word)
}

/// The level under a key of [`Keys::log_levels`](crate::store::Keys::log_levels), with its module.
///
/// # Errors
/// Why it cannot be read, in words.
pub fn read(module: &str, value: &[u8]) -> Result<Level, String> {
    if !is_module(module) {
        return Err(format!("{module:?} is no path of a module"));
    }
    let record: LogLevel = message("LogLevel", value).map_err(|malformed| malformed.to_string())?;
    record.level.parse().map_err(|error: NoLevel| error.to_string())
}

/// Publishes the levels that are set whenever they change. Names what it cannot read, and goes on without it. Never ends.
pub(super) async fn follow(store: &Store, set: &watch::Sender<LogLevels>) {
    let keys = store.keys.clone();
    let decode = move |kv: &KeyValue| {
        let module = keys.parse_log_level(&kv.key).unwrap_or_default();
        read(module, &kv.value).map(|level| (module.to_owned(), level))
    };
    let mut cache = Cache::new(&store.etcd, store.keys.log_levels(), decode);
    loop {
        cache
            .next(|change| {
                let Some(Err(why)) = change.after else { return };
                // A list after an interruption shows again what is known.
                if change.before.as_ref() != change.after {
                    let key = String::from_utf8_lossy(change.key);
                    warn!("{key} cannot be read, and is ignored: {why}");
                }
            })
            .await;
        if !cache.is_complete() {
            continue;
        }
        let read = cache.iter().filter_map(|(_, read)| read.as_ref().ok());
        let levels: LogLevels = read.cloned().collect();
        set.send_if_modified(|known| {
            let is_other = *known != levels;
            *known = levels;
            is_other
        });
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn a_record_holds_the_word_of_a_level_and_its_key_a_module() {
        let value = |level: &str| {
            let level = level.to_owned();
            LogLevel { level }.encode_to_vec()
        };
        for level in Level::ALL {
            assert_eq!(read("quorate::roles", &value(level.word())), Ok(level));
        }
        for (module, stored, why) in [
            ("quorate", value("loud"), "\"loud\" is not a level"),
            ("quorate", value(""), "\"\" is not a level"),
            ("quorate", value("DEBUG"), "\"DEBUG\" is not a level"),
            ("quorate", vec![0xff], "LogLevel"),
            ("", value("info"), "no path of a module"),
            ("quorate::", value("info"), "no path of a module"),
            ("quorate[x]=trace,", value("info"), "no path of a module"),
        ] {
            let error = read(module, &stored).unwrap_err();
            assert!(error.contains(why), "{module} {stored:?}: {error}");
        }
    }
}
