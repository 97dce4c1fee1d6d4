//! Reading and replacing the one object that a command changes.

use super::kinds::registry::by_kind;
use crate::cli::exit::Failure;
use crate::etcd::{Revision, Txn};
use crate::store::Store;
use crate::store::object::{Malformed, Object, decode};
use crate::wire::updated;

/// An object with its key and the revision that it was read at.
#[derive(Clone, Debug)]
pub struct Versioned<O> {
    /// The object.
    pub object: O,
    /// Its key.
    pub key: Vec<u8>,
    /// The revision of its last write.
    pub revision: Revision,
    value: Vec<u8>,
}

impl<O: Object> Versioned<O> {
    /// Reads the object with this name and key; `None` if it does not exist.
    ///
    /// # Errors
    /// 4 if it is malformed.
    pub async fn find(store: &Store, name: &str, key: Vec<u8>) -> Result<Option<Self>, Failure> {
        let (stored, _) = store.etcd.get(&key).await?;
        let Some(stored) = stored else { return Ok(None) };
        let object = decode(name, &stored.value).map_err(|why| malformed::<O>(name, &why))?;
        Ok(Some(Self {
            object,
            key,
            revision: stored.mod_revision,
            value: stored.value,
        }))
    }

    /// Reads the object with this name and key.
    ///
    /// # Errors
    /// 3 if it does not exist, 4 if it is malformed.
    pub async fn read(store: &Store, name: &str, key: Vec<u8>) -> Result<Self, Failure> {
        Self::find(store, name, key).await?.ok_or_else(|| {
            let kind = O::KIND.to_lowercase();
            Failure::not_found(format!("{kind}/{name} not found")).hint(format!(
                "quorate get {kind}s lists what there is below {}",
                store.keys.prefix()
            ))
        })
    }

    /// Replaces the object, if it is unchanged, and keeps what only a later release knows of it.
    pub fn put(&self, after: &O) -> Txn {
        let before = self.object.encode_to_vec();
        Txn::new()
            .when_unchanged(&self.key, self.revision)
            .put(&self.key, updated(&self.value, &before, after))
    }
}

/// The failure of an object whose stored value cannot be read.
pub fn malformed<O: Object>(name: &str, why: &Malformed) -> Failure {
    let kind = O::KIND.to_lowercase();
    Failure::refused("Malformed", format!("{kind}/{name} cannot be read: {why}"))
        .hint(by_kind(O::KIND).map_or("only its writer can repair it", |kind| kind.repair()))
}
