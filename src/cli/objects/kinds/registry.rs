//! All kinds, and the words that a person may use for them.

use super::{
    Kind, Words, certificates, members, networks, nodes, plugins, publications, replicas, resources, secrets,
    services, tasks, tombstones, volumes,
};
use crate::store::object::words::did_you_mean;

/// Every kind, in the order of help and messages.
pub static KINDS: &[&Kind] = &[
    &nodes::NODES,
    &members::MEMBERS,
    &certificates::CERTIFICATES,
    &replicas::REPLICAS,
    &services::SERVICES,
    &networks::NETWORKS,
    &tasks::TASKS,
    &volumes::VOLUMES,
    &publications::PUBLICATIONS,
    &plugins::PLUGINS,
    &secrets::SECRETS,
    &tombstones::TOMBSTONES,
    &resources::RESOURCES,
];

/// The kind that a person calls so: `node`, `nodes`, `Node`, `no`.
///
/// # Errors
/// A sentence that names all kinds.
pub fn find(word: &str) -> Result<&'static Kind, String> {
    let lower = word.to_lowercase();
    let called = |words: &Words| {
        [words.singular, words.plural].contains(&lower.as_str()) || words.short.contains(&lower.as_str())
    };
    if let Some(kind) = KINDS.iter().find(|kind| called(&kind.words)) {
        return Ok(*kind);
    }
    let plurals = || KINDS.iter().map(|kind| kind.words.plural);
    let meant = did_you_mean(word, plurals());
    let all: Vec<&str> = plurals().collect();
    Err(format!(
        "\"{}\" is not a kind of object{meant}; the kinds are {}",
        word.escape_debug(),
        all.join(", ")
    ))
}

/// The kind of documents with this `kind`.
pub fn by_kind(kind: &str) -> Option<&'static Kind> {
    KINDS.iter().copied().find(|known| known.words.kind == kind)
}

#[cfg(test)]
mod tests {
    use super::super::is_worthwhile;
    use super::*;
    use crate::etcd::KeyRange;
    use crate::store::{Id, Keys, Name};

    #[test]
    fn a_kind_is_found_by_each_of_its_words() {
        for word in ["node", "nodes", "Node", "no", "NODES"] {
            assert_eq!(find(word).unwrap().words.kind, "Node", "{word}");
        }
        assert_eq!(find("rep").unwrap().words.kind, "Replica");
        let error = find("noeds").unwrap_err();
        assert_eq!(
            error,
            "\"noeds\" is not a kind of object (did you mean nodes?); the kinds are nodes, members, certificates, replicas, services, networks, tasks, \
             volumes, publications, plugins, secrets, tombstones, resources"
        );
    }

    #[test]
    fn no_word_means_two_kinds() {
        let mut words: Vec<&str> = KINDS
            .iter()
            .flat_map(|kind| {
                let words = &kind.words;
                [words.singular, words.plural]
                    .into_iter()
                    .chain(words.short.iter().copied())
            })
            .collect();
        words.sort_unstable();
        let all = words.len();
        words.dedup();
        assert_eq!(words.len(), all);
    }

    /// Otherwise a command that waits for 500 volumes has a thousand watches.
    #[test]
    fn however_many_objects_are_named_a_few_ranges_cover_those_of_each() {
        let keys = Keys::new("/q".parse().unwrap());
        // Of the keys of publications, those of `v-1` come before those of `v`.
        let many = (0..500).map(|number| format!("v{number}"));
        let names = ["v", "v-1", "w", "u"].map(str::to_owned).into_iter().chain(many);
        let names: Vec<Name> = names.map(|name| name.parse().unwrap()).collect();
        let ids: Vec<Id> = names.iter().cloned().map(Id::from).collect();
        let kind = find("volume").unwrap();
        let covering = kind.covering_ranges(&keys, &ids);
        assert_eq!(covering.len(), kind.ranges(&keys, &ids[..1]).len());
        let node = "zz".parse::<Name>().unwrap();
        for name in &names {
            for key in [keys.volume(name), keys.publication(name, &node)] {
                assert!(covering.iter().any(|range| range.contains(&key)), "{name}");
            }
        }
        let (before, after) = ("t".parse::<Name>().unwrap(), "x".parse::<Name>().unwrap());
        for key in [keys.volume(&before), keys.publication(&after, &node)] {
            assert!(!covering.iter().any(|range| range.contains(&key)));
        }
    }

    /// The registrations of nodes lie between the nodes, and the status of a plugin behind it.
    #[test]
    fn no_key_is_covered_by_two_ranges() {
        let keys = Keys::new("/q".parse().unwrap());
        let names = ["n1", "n2", "n3"].map(|name| name.parse::<Name>().unwrap());
        let ids = names.clone().map(Id::from);
        for word in ["node", "plugin", "volume", "service", "network"] {
            let kind = find(word).unwrap();
            let covering = kind.covering_ranges(&keys, &ids);
            for each in kind.ranges(&keys, &ids) {
                let covers = |range: &&KeyRange| range.contains(each.start());
                assert_eq!(covering.iter().filter(covers).count(), 1, "{word} {each:?}");
            }
        }
        let covering = find("node").unwrap().covering_ranges(&keys, &ids);
        for name in &names {
            let key = keys.registration(name);
            assert!(covering.iter().any(|range| range.contains(&key)), "{name}");
        }
    }

    /// Otherwise 17 of 100,000 volumes, the first and the last among them, would be all of them.
    #[test]
    fn one_range_is_followed_for_many_objects_if_not_many_more_lie_in_it() {
        assert!(is_worthwhile(500, 500) && is_worthwhile(20_000, 500));
        assert!(!is_worthwhile(100_000, 17) && !is_worthwhile(100_000, 500));
    }
}
