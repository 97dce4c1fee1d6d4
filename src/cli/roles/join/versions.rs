//! Which version of etcd a new member starts with. Pure.

use std::collections::BTreeSet;

/// What to start beside members of these versions; `None` if none is known.
pub fn advice<'a>(versions: impl Iterator<Item = &'a str>) -> Option<String> {
    let versions: BTreeSet<&str> = versions.collect();
    let minors: BTreeSet<&str> = versions.iter().map(|version| minor(version)).collect();
    let run: Vec<&str> = versions.into_iter().collect();
    let run = run.join(" and ");
    match minors.len() {
        0 => None,
        1 => Some(format!(
            "the members run etcd {run}; start the same minor version"
        )),
        // A member of the later version, which has no data, could end an upgrade that is yet to be finished.
        _ => Some(format!(
            "the members run etcd {run}: start the lower minor version, or finish the upgrade first"
        )),
    }
}

/// `3.5` of `3.5.16`.
fn minor(version: &str) -> &str {
    let end = version
        .match_indices('.')
        .nth(1)
        .map_or(version.len(), |(at, _)| at);
    &version[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_member_starts_with_the_minor_version_of_the_others() {
        let advice = |versions: &[&str]| advice(versions.iter().copied());
        assert_eq!(advice(&[]), None);
        let same = "the members run etcd 3.5.16 and 3.5.9; start the same minor version";
        assert_eq!(advice(&["3.5.9", "3.5.16", "3.5.9"]).as_deref(), Some(same));
        let mixed = "the members run etcd 3.4.23 and 3.5.16: start the lower minor version, or finish the upgrade first";
        assert_eq!(advice(&["3.5.16", "3.4.23", "3.4.23"]).as_deref(), Some(mixed));
    }
}
