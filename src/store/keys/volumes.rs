//! The keys of volumes, and of what they need.

use super::space::key_space;
use super::{KeySpace, Keys, Name};
use crate::etcd::KeyRange;

key_space!(VOLUMES, "/volumes/", "Volume", volume, volumes, parse_volume);
key_space!(
    PUBLICATIONS,
    "/publications/",
    "Publication",
    publication,
    publications,
    parse_publication,
    publications_of
);
key_space!(SECRETS, "/secrets/", "Secret", secret, secrets, parse_secret);
key_space!(
    TOMBSTONES,
    "/tombstones/",
    "Tombstone",
    tombstone,
    tombstones,
    parse_tombstone
);

impl KeySpace {
    /// The keys of every `Plugin`.
    pub const PLUGINS: Self = Self {
        folder: "/plugins/",
        suffix: "",
        takes: |name| !name.contains('/'),
    };

    /// The keys of every `PluginStatus`, in the range of plugins.
    pub const PLUGIN_STATUSES: Self = Self {
        suffix: "/status",
        ..Self::PLUGINS
    };
}

impl Keys {
    /// `/encryption/key`: an `EncryptionKey`.
    pub fn encryption_key(&self) -> Vec<u8> {
        self.below(format_args!("/encryption/key"))
    }

    /// `/history/volumes`: a `StoreHistory`.
    pub fn volume_history(&self) -> Vec<u8> {
        self.below(format_args!("/history/volumes"))
    }

    /// `/plugins/<name>`: a `Plugin`.
    pub fn plugin(&self, name: &Name) -> Vec<u8> {
        self.below(format_args!("/plugins/{name}"))
    }

    /// `/plugins/<name>/status`: a `PluginStatus`.
    pub fn plugin_status(&self, name: &Name) -> Vec<u8> {
        self.below(format_args!("/plugins/{name}/status"))
    }

    /// The range of every `Plugin` and `PluginStatus`.
    pub fn plugins(&self) -> KeyRange {
        KeySpace::PLUGINS.all(self)
    }

    /// The name in the key of a `Plugin`.
    pub fn parse_plugin<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        KeySpace::PLUGINS.name(self, key)
    }

    /// The name of the plugin in the key of a `PluginStatus`.
    pub fn parse_plugin_status<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        KeySpace::PLUGIN_STATUSES.name(self, key)
    }
}

#[cfg(test)]
mod tests {
    use crate::store::{Keys, Name};

    #[test]
    fn the_keys_of_volumes_are_those_of_the_contract_and_parse_back() {
        let (volume, node): (Name, Name) = ("data".parse().unwrap(), "n1".parse().unwrap());
        let keys = Keys::new("/team/quorate".parse().unwrap());
        let publication = keys.publication(&volume, &node);
        assert_eq!(publication, b"/team/quorate/publications/data/n1");
        assert_eq!(keys.parse_publication(&publication), Some("data/n1"));
        assert!(publication.starts_with(keys.publications_of(&volume).start()));
        assert_eq!(keys.parse_publication(b"/team/quorate/publications/data"), None);
        assert_eq!(keys.volume(&volume), b"/team/quorate/volumes/data");
        assert_eq!(keys.parse_volume(&keys.volume(&volume)), Some("data"));
        assert_eq!(keys.parse_plugin(&keys.plugin(&volume)), Some("data"));
        assert_eq!(keys.parse_plugin_status(&keys.plugin(&volume)), None);
        let status = keys.plugin_status(&volume);
        assert_eq!(status, b"/team/quorate/plugins/data/status");
        assert_eq!(keys.parse_plugin_status(&status), Some("data"));
        assert_eq!(keys.parse_plugin(&status), None);
        assert_eq!(keys.parse_secret(&keys.secret(&volume)), Some("data"));
        assert_eq!(keys.parse_tombstone(&keys.tombstone(&volume)), Some("data"));
        assert_eq!(keys.parse_volume(&publication), None);
        assert_eq!(keys.encryption_key(), b"/team/quorate/encryption/key");
        assert_eq!(keys.volume_history(), b"/team/quorate/history/volumes");
    }
}
