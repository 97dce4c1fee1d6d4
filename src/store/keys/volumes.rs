//! The keys of volumes, and of what they need.

use super::space::key_space;

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
key_space!(PLUGINS, "/plugins/", "Plugin", plugin, plugins, parse_plugin);
key_space!(SECRETS, "/secrets/", "Secret", secret, secrets, parse_secret);
key_space!(
    TOMBSTONES,
    "/tombstones/",
    "Tombstone",
    tombstone,
    tombstones,
    parse_tombstone
);

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
        assert_eq!(keys.parse_secret(&keys.secret(&volume)), Some("data"));
        assert_eq!(keys.parse_tombstone(&keys.tombstone(&volume)), Some("data"));
        assert_eq!(keys.parse_volume(&publication), None);
    }
}
