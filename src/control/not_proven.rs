//! Why a certificate proves nothing.

use crate::proto::certificate_refused::Reason;

/// Why a connection proves to be that of no node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotProven {
    /// It shows none.
    #[error("the connection shows no certificate")]
    NoCertificate,
    /// It is not valid yet.
    #[error("the certificate is not valid yet")]
    NotYetValid,
    /// Its time is over.
    #[error("the certificate has expired")]
    Expired,
    /// Another authority has signed it, or it cannot be read.
    #[error("the certificate is not one of the node authority here")]
    Foreign,
    /// The authority has signed it, and it is not written as those of nodes.
    #[error("the certificate is not one of a node")]
    NotOfNode,
    /// It is that of a node of another cluster.
    #[error("the certificate is one of another cluster")]
    OtherCluster,
}

impl NotProven {
    /// The same, as clients read it.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoCertificate => Reason::Missing,
            Self::NotYetValid => Reason::NotYetValid,
            Self::Expired => Reason::Expired,
            Self::Foreign => Reason::Foreign,
            Self::NotOfNode => Reason::NotOfNode,
            Self::OtherCluster => Reason::OtherCluster,
        }
    }
}
