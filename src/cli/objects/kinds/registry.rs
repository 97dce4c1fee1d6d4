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
    use super::*;

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
}
