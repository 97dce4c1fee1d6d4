//! What a request does and to what. Error messages, and the permission that a 403 names, are made of it.

use std::fmt;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reading which kinds a group version serves.
    Discover,
    /// Listing objects of a kind.
    List,
    /// Watching objects of a kind.
    Watch,
    /// Reading one object.
    Get,
    /// Server-side apply of one object.
    Apply,
    /// Deleting one object.
    Delete,
    /// Publishing an Event.
    Report,
    /// Asking whether this client has a permission.
    Review,
}

impl Action {
    /// The operation in messages and traces.
    pub fn word(self) -> &'static str {
        match self {
            Self::Discover => "discover",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Get => "get",
            Self::Apply => "apply",
            Self::Delete => "delete",
            Self::Report => "publish",
            Self::Review => "review",
        }
    }

    /// The RBAC verb that the operation needs.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Discover | Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Apply => "patch",
            Self::Delete => "delete",
            Self::Report | Self::Review => "create",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The object, kind or group version of a request.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    /// For messages: `ClusterRole a`, `configmaps in namespace n`.
    pub(super) shown: String,
    /// Plural with group, as in [`Permission::resource`].
    pub(super) resource: String,
    /// Empty if the request is not about one object.
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    /// For a binding: resource and name of the role that it refers to.
    pub(super) bound_role: Option<(String, String)>,
}

/// A missing permission in RBAC's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// `patch`, `list`, `escalate`, …
    pub verb: String,
    /// Plural with group: `clusterroles.rbac.authorization.k8s.io`.
    pub resource: String,
    /// The object's name; empty for `list` and `watch`, which take none.
    pub name: String,
    /// `None` for the cluster scope.
    pub namespace: Option<String>,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.name.is_empty() {
            write!(f, " \"{}\"", self.name)?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => Ok(()),
        }
    }
}
