//! The keys of volumes, and of what they need.

use super::{Keys, Name};
use crate::etcd::KeyRange;

impl Keys {
    /// `/volumes/<name>`: a `Volume`.
    pub fn volume(&self, name: &Name) -> Vec<u8> {
        self.below(format_args!("/volumes/{name}"))
    }

    /// All volumes.
    pub fn volumes(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/volumes/")))
    }

    /// The name in a key of [`Keys::volumes`].
    pub fn parse_volume<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        self.parse_below(key, "/volumes/")
    }

    /// `/publications/<volume>/<node>`: a `Publication`.
    pub fn publication(&self, volume: &Name, node: &Name) -> Vec<u8> {
        self.below(format_args!("/publications/{volume}/{node}"))
    }

    /// All publications of a volume: the range that the deletion of the volume proves empty (INV-6).
    pub fn publications_of(&self, volume: &Name) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/publications/{volume}/")))
    }

    /// All publications.
    pub fn publications(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/publications/")))
    }

    /// `<volume>/<node>` in a key of [`Keys::publications`].
    pub fn parse_publication<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        self.parse_below(key, "/publications/")
            .filter(|id| id.contains('/'))
    }

    /// `/plugins/<name>`: a `Plugin`.
    pub fn plugin(&self, name: &Name) -> Vec<u8> {
        self.below(format_args!("/plugins/{name}"))
    }

    /// All plugins.
    pub fn plugins(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/plugins/")))
    }

    /// The name in a key of [`Keys::plugins`].
    pub fn parse_plugin<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        self.parse_below(key, "/plugins/")
    }

    /// `/secrets/<name>`: a `Secret`.
    pub fn secret(&self, name: &Name) -> Vec<u8> {
        self.below(format_args!("/secrets/{name}"))
    }

    /// All secrets.
    pub fn secrets(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/secrets/")))
    }

    /// The name in a key of [`Keys::secrets`].
    pub fn parse_secret<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        self.parse_below(key, "/secrets/")
    }

    /// `/tombstones/<uid of the volume>`: a `Tombstone`.
    pub fn tombstone(&self, uid: &Name) -> Vec<u8> {
        self.below(format_args!("/tombstones/{uid}"))
    }

    /// All tombstones.
    pub fn tombstones(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/tombstones/")))
    }

    /// The uid in a key of [`Keys::tombstones`].
    pub fn parse_tombstone<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        self.parse_below(key, "/tombstones/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(keys.parse_secret(&keys.secret(&volume)), Some("data"));
        assert_eq!(keys.parse_tombstone(&keys.tombstone(&volume)), Some("data"));
        assert_eq!(keys.parse_volume(&publication), None);
    }
}
