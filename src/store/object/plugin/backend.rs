//! Whether volumes of a plugin are at the backend that the plugin leads to: by the identities that plugins report, or else by their
//! endpoints.

use super::endpoint;
use crate::csi::Endpoint;
use crate::proto::{Backend, Plugin};

/// Whether the plugin's backend is the one that a volume was made at. `reported` is the identity that the plugin reports now;
/// empty if it reports none. A volume whose record names no backend was made by an earlier release: it is taken for one of this
/// backend.
pub fn is_backend_of(plugin: &Plugin, reported: &str, made_at: Option<&Backend>) -> bool {
    let Some(made_at) = made_at else { return true };
    if !reported.is_empty() && !made_at.id.is_empty() {
        return reported == made_at.id;
    }
    let before = plugin.spec.iter().flat_map(|spec| &spec.same_backend_as);
    let mut listed = before.map(String::as_str).chain([endpoint(plugin)]);
    listed.any(|listed| is_same_endpoint(listed, &made_at.endpoint))
}

/// Whether volumes of the plugin that were made at these backends may be at the same one. A volume that names none is at the one
/// that the plugin leads to, whose identity is not known here.
pub fn may_share_backend(plugin: &Plugin, one: Option<&Backend>, other: Option<&Backend>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) if !one.id.is_empty() && !other.id.is_empty() => one.id == other.id,
        (Some(one), Some(other)) if is_same_endpoint(&one.endpoint, &other.endpoint) => true,
        // A backend that reports no identity may be any of them.
        (one, other) => {
            let mut without = [one, other]
                .into_iter()
                .flatten()
                .filter(|made_at| made_at.id.is_empty());
            without.all(|made_at| is_backend_of(plugin, "", Some(made_at)))
        }
    }
}

/// Whether two texts are one endpoint: a document may end one in a slash, and records do not.
fn is_same_endpoint(one: &str, other: &str) -> bool {
    let parsed = |text: &str| text.parse::<Endpoint>().ok();
    one == other || parsed(one).is_some_and(|one| parsed(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::PluginSpec;

    fn plugin(endpoint: &str, before: &str) -> Plugin {
        let spec = PluginSpec {
            endpoint: endpoint.to_owned(),
            same_backend_as: vec![before.to_owned()],
            ..PluginSpec::default()
        };
        Plugin {
            metadata: None,
            spec: Some(spec),
        }
    }

    fn made_at(endpoint: &str, id: &str) -> Backend {
        Backend {
            endpoint: endpoint.to_owned(),
            id: id.to_owned(),
            ..Backend::default()
        }
    }

    /// INV-6
    #[test]
    fn a_backend_is_known_by_what_the_plugin_reports_or_else_by_its_endpoints() {
        let moved = plugin("unix:///new", "unix:///old");
        for (reported, endpoint, id, expected) in [
            ("", "unix:///new", "", true),
            ("", "unix:///old", "", true),
            ("", "unix:///other", "", false),
            ("pool-1", "unix:///other", "pool-1", true),
            ("pool-1", "unix:///new", "pool-2", false),
            // One of them reports nothing.
            ("pool-1", "unix:///new", "", true),
            ("", "unix:///other", "pool-1", false),
        ] {
            let is_same = is_backend_of(&moved, reported, Some(&made_at(endpoint, id)));
            assert_eq!(is_same, expected, "{reported:?} {endpoint} {id:?}");
        }
        assert!(is_backend_of(&moved, "", None), "made by an earlier release");
        for (endpoint, before) in [("http://h:1/", "http://h:2"), ("http://h:2", "http://h:1/")] {
            let with_slash = plugin(endpoint, before);
            let made_at = made_at("http://h:1", "");
            assert!(
                is_backend_of(&with_slash, "", Some(&made_at)),
                "{endpoint} {before}"
            );
        }
    }

    /// INV-6: where it is not known, it may be.
    #[test]
    fn volumes_share_a_backend_unless_their_records_say_that_they_do_not() {
        let plugin = plugin("unix:///new", "unix:///old");
        for (one, other, expected) in [
            (None, None, true),
            (Some(("unix:///new", "")), None, true),
            (Some(("unix:///other", "")), None, false),
            (Some(("unix:///other", "pool-1")), None, true),
            (Some(("unix:///new", "")), Some(("unix:///old", "")), true),
            (Some(("unix:///new", "")), Some(("unix:///other", "")), false),
            (Some(("unix:///other", "")), Some(("unix:///other", "")), true),
            (Some(("unix:///new", "")), Some(("unix:///other", "pool-1")), true),
            (
                Some(("unix:///other", "")),
                Some(("unix:///new", "pool-1")),
                false,
            ),
            (
                Some(("unix:///new", "pool-1")),
                Some(("unix:///other", "pool-1")),
                true,
            ),
            (
                Some(("unix:///new", "pool-1")),
                Some(("unix:///new", "pool-2")),
                false,
            ),
        ] {
            let backend = |given: Option<(&str, &str)>| given.map(|(endpoint, id)| made_at(endpoint, id));
            for (one, other) in [(one, other), (other, one)] {
                let shared = may_share_backend(&plugin, backend(one).as_ref(), backend(other).as_ref());
                assert_eq!(shared, expected, "{one:?} {other:?}");
            }
        }
    }
}
