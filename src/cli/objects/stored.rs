//! Reading the one object that a command is about to change.

use super::kinds::registry::by_kind;
use crate::cli::exit::{Exit, Failure};
use crate::etcd::Revision;
use crate::store::Store;
use crate::store::object::{Malformed, Object, decode};

/// An object as it is stored.
#[derive(Clone, Debug)]
pub struct Stored<O> {
    /// What it says.
    pub object: O,
    /// Where.
    pub key: Vec<u8>,
    /// When it was last written.
    pub revision: Revision,
}

impl<O: Object> Stored<O> {
    /// Reads the object with this name and key; `None` if it is not there.
    ///
    /// # Errors
    /// 4 if it cannot be read.
    pub async fn find(store: &Store, name: &str, key: Vec<u8>) -> Result<Option<Self>, Failure> {
        let (stored, _) = store.etcd.get(&key).await.map_err(Failure::failed)?;
        let Some(stored) = stored else { return Ok(None) };
        let object = decode(name, &stored.value).map_err(|why| malformed::<O>(name, &why))?;
        Ok(Some(Self {
            object,
            key,
            revision: stored.mod_revision,
        }))
    }

    /// Reads the object with this name and key.
    ///
    /// # Errors
    /// 3 if it is not there, 4 if it cannot be read.
    pub async fn read(store: &Store, name: &str, key: Vec<u8>) -> Result<Self, Failure> {
        Self::find(store, name, key).await?.ok_or_else(|| {
            let kind = O::KIND.to_lowercase();
            Failure::new(Exit::NotFound, format!("{kind}/{name} not found")).hint(format!(
                "quorate get {kind}s lists what there is below {}",
                store.keys.prefix()
            ))
        })
    }
}

/// The failure of an object whose stored value cannot be read.
pub fn malformed<O: Object>(name: &str, why: &Malformed) -> Failure {
    let kind = O::KIND.to_lowercase();
    let message = format!("refused by rule Malformed: {kind}/{name} cannot be read: {why}");
    Failure::new(Exit::Refused, message)
        .hint(by_kind(O::KIND).map_or("only its writer can mend it", |kind| kind.mending()))
}
