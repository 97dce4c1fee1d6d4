//! The replicas and the controllers that run, with their releases, for people. Pure.

use serde::Serialize;

use super::plan::BundleVersions;
use super::releases::Reported;
use crate::release::Release;
use crate::store::keys::NodeKey;
use crate::summary::Rows;

/// The releases that run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleasesSummary {
    /// The registered replicas, by name.
    pub replicas: Rows<ReplicaRow>,
    /// The nodes that run a controller: first those that the bundle of this replica excludes.
    pub controllers: Rows<ControllerRow>,
}

/// What the registration of a replica says to people.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Registered {
    /// Its node id.
    pub name: String,
    /// The version that it runs; `None` where its registration cannot be read.
    pub version: Option<String>,
    /// The address of its status page; `None` where it has none.
    pub page: Option<String>,
}

/// A registered replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaRow {
    /// Its node id.
    pub name: String,
    /// The version that it runs; `None` where its registration cannot be read.
    pub version: Option<String>,
    /// The address of its status page; `None` where it has none.
    pub page: Option<String>,
    /// Whether the bundle of this replica excludes the release: no status is restricted to the bundle meanwhile (INV-4).
    pub excluded: bool,
}

/// A node that runs a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControllerRow {
    /// Its name.
    pub node: String,
    /// The release that it reports; `None` where its record cannot be read, so that it may run any.
    pub release: Option<String>,
    /// Whether the bundle of this replica excludes the release: no status is restricted to the bundle meanwhile (INV-4).
    pub excluded: bool,
}

impl ReleasesSummary {
    /// Of these replicas with what they report, and of what each key below `/nodes/` reports.
    pub fn of<'a>(
        replicas: impl Iterator<Item = (&'a Registered, &'a Reported)>,
        reports: impl Iterator<Item = (NodeKey<'a>, &'a Reported)>,
        bundle: &BundleVersions,
    ) -> Self {
        let (least, most) = (bundle.min_apiserver, bundle.version.release);
        let is_admitted = |reported: &Reported| match reported {
            Reported::Release(release) => (least..=most).contains(release),
            Reported::Nothing => true,
            Reported::Unreadable => false,
        };
        let replicas = replicas.map(|(registered, reported)| (registered, is_admitted(reported)));
        let replica = |(registered, is_admitted): (&Registered, bool)| ReplicaRow {
            name: registered.name.clone(),
            version: registered.version.clone(),
            page: registered.page.clone(),
            excluded: !is_admitted,
        };
        // The excluded ones first: false is less than true.
        let controllers = reports.filter_map(|(key, reported)| {
            let release = match reported {
                Reported::Release(release) => Some(*release),
                Reported::Unreadable => None,
                Reported::Nothing => return None,
            };
            match key {
                NodeKey::Node(name) => Some((is_admitted(reported), release, name)),
                NodeKey::Registration(_) | NodeKey::Other => None,
            }
        });
        let row = |(is_admitted, release, name): (bool, Option<Release>, &str)| ControllerRow {
            node: name.to_owned(),
            release: release.map(|release| release.to_string()),
            excluded: !is_admitted,
        };
        Self {
            replicas: Rows::least(replicas).map(replica),
            controllers: Rows::least(controllers).map(row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::ROWS;

    fn bundle() -> BundleVersions {
        BundleVersions {
            version: Release::new(1, 5, 0).into(),
            min_reconciler: Release::default(),
            min_apiserver: Release::new(1, 3, 0),
        }
    }

    #[test]
    fn of_many_controllers_those_that_are_excluded_come_first() {
        let names: Vec<String> = (0..2000).map(|number| format!("n{number:04}")).collect();
        let current = Reported::Release(Release::new(1, 4, 0));
        let mut reports: Vec<(NodeKey<'_>, &Reported)> =
            names.iter().map(|name| (NodeKey::Node(name), &current)).collect();
        let (old, new) = (
            Reported::Release(Release::new(1, 2, 9)),
            Reported::Release(Release::new(1, 5, 1)),
        );
        reports[1999].1 = &old;
        reports[1998].1 = &new;
        reports[1997].1 = &Reported::Unreadable;
        reports[1996].1 = &Reported::Nothing;
        // The key of a replica is no node.
        reports.push((NodeKey::Registration("r"), &old));
        let summary = ReleasesSummary::of(std::iter::empty(), reports.into_iter(), &bundle());
        assert_eq!(
            (summary.controllers.total, summary.controllers.first.len()),
            (1999, ROWS)
        );
        let first: Vec<(&str, Option<&str>, bool)> = summary
            .controllers
            .first
            .iter()
            .map(|row| (row.node.as_str(), row.release.as_deref(), row.excluded))
            .take(4)
            .collect();
        assert_eq!(
            first,
            [
                ("n1997", None, true),
                ("n1999", Some("1.2.9"), true),
                ("n1998", Some("1.5.1"), true),
                ("n0000", Some("1.4.0"), false),
            ]
        );
    }

    #[test]
    fn a_replica_that_the_bundle_excludes_is_marked() {
        let registered = |name: &str| Registered {
            name: name.to_owned(),
            version: None,
            page: None,
        };
        let replicas = ["current", "old", "unreadable"].map(registered);
        let reports = [
            Reported::Release(Release::new(1, 3, 0)),
            Reported::Release(Release::new(1, 2, 9)),
            Reported::Unreadable,
        ];
        let summary = ReleasesSummary::of(replicas.iter().zip(&reports), std::iter::empty(), &bundle());
        let rows = summary.replicas.first.iter();
        let rows: Vec<(&str, bool)> = rows.map(|row| (row.name.as_str(), row.excluded)).collect();
        assert_eq!(rows, [("current", false), ("old", true), ("unreadable", true)]);
    }
}
