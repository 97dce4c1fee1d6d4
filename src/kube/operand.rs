//! What a request does, and to what: the words of errors, and the permission that a refusal names.

use std::fmt;

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Asking which kinds are served.
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
}

impl Action {
    /// The RBAC verb that it needs.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Discover | Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Apply => "patch",
            Self::Delete => "delete",
            Self::Report => "create",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Discover => "discovering",
            Self::List => "listing",
            Self::Watch => "watching",
            Self::Get => "reading",
            Self::Apply => "applying",
            Self::Delete => "deleting",
            Self::Report => "publishing",
        })
    }
}

/// What a request was about, for the permission that a 403 means.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    pub(super) shown: String,
    pub(super) resource: String,
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    /// Resource and name of the role that a binding refers to.
    pub(super) bound_role: Option<(String, String)>,
}

/// A permission that is missing, as RBAC names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// `patch`, `list`, `escalate`, …
    pub verb: String,
    /// Plural, with its group: `clusterroles.rbac.authorization.k8s.io`.
    pub resource: String,
    /// Empty where the verb takes no name.
    pub name: String,
    /// `None` at the cluster scope.
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
