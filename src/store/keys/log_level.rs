//! The keys of levels of the log.

use super::Keys;
use crate::etcd::KeyRange;

impl Keys {
    /// `/log-levels/<module>`: a `LogLevel`.
    pub fn log_level(&self, module: &str) -> Vec<u8> {
        self.below(format_args!("/log-levels/{module}"))
    }

    /// The range of all levels.
    pub fn log_levels(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/log-levels/")))
    }

    /// The module in a key of [`Keys::log_levels`].
    pub fn parse_log_level<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        self.parse_below(key, "/log-levels/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_level_names_its_module_and_lies_in_the_range() {
        let keys = Keys::new("/team/quorate".parse().unwrap());
        let key = keys.log_level("quorate::roles");
        assert_eq!(key, b"/team/quorate/log-levels/quorate::roles");
        assert_eq!(keys.parse_log_level(&key), Some("quorate::roles"));
        assert!(keys.log_levels().contains(&key));
        assert_eq!(keys.parse_log_level(&keys.roles_pause()), None);
    }
}
