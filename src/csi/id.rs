//! Ids that the specification forbids to be empty, as types that cannot be empty.

use std::fmt;

use crate::mutation::{self, Guard};

/// An id was empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {0} cannot be empty")]
pub struct Empty(&'static str);

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// # Errors
            /// [`Empty`], for an empty one.
            pub fn new(id: impl Into<String>) -> Result<Self, Empty> {
                let id = id.into();
                let is_missing = id.is_empty() && !mutation::without(Guard::NodeId);
                if is_missing { Err(Empty($what)) } else { Ok(Self(id)) }
            }

            /// The id as the plugin writes it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }
    };
}

id! {
    /// A plugin's id of a volume.
    VolumeId, "volume id"
}

id! {
    /// A plugin's id of a node. Never empty: to a plugin, unpublishing from the node "" means from every node (INV-6).
    CsiNodeId, "CSI node id"
}

id! {
    /// The name that a volume is created under. A repeated call under the same name finds the volume.
    VolumeName, "name of a volume"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_empty_node_id_can_be_made() {
        assert_eq!(
            CsiNodeId::new("").unwrap_err().to_string(),
            "a CSI node id cannot be empty"
        );
        assert_eq!(CsiNodeId::new("n1").unwrap().as_str(), "n1");
        assert!(VolumeId::new(String::new()).is_err() && VolumeName::new("").is_err());
    }
}
