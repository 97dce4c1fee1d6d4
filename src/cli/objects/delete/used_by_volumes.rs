//! Deleting what volumes use: plugins and secrets. At once, and not while a volume uses it, unless by force.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Deletable, Deletion};
use crate::cli::exit::{Exit, Failure};
use crate::cli::objects::pending;
use crate::etcd::Txn;
use crate::proto::Volume;
use crate::store::object::decode;
use crate::store::{Id, Keys, Name, Store};

/// A kind that volumes use, as `delete` sees it.
pub struct DeleteUsed {
    /// `plugin`
    pub singular: &'static str,
    /// The key of an object.
    pub key: fn(&Keys, &Name) -> Vec<u8>,
    /// Whether a volume uses it.
    pub uses: fn(&Volume, &str) -> bool,
}

impl Deletable for DeleteUsed {
    fn plan<'a>(
        &'a self,
        store: &'a Store,
        id: &'a Id,
        force: bool,
    ) -> BoxFuture<'a, Result<Deletion, Failure>> {
        async move {
            let key = (self.key)(&store.keys, &id.name);
            let stored = super::read(store, &key).await?;
            let (volumes, _) = store
                .etcd
                .list(&store.keys.volumes())
                .await
                .map_err(Failure::failed)?;
            let users: Vec<String> = volumes
                .iter()
                .filter_map(|kv| {
                    let name = store.keys.parse_volume(&kv.key)?;
                    let volume = decode::<Volume>(name, &kv.value).ok()?;
                    (self.uses)(&volume, id.name.as_str()).then(|| format!("volume {name}"))
                })
                .collect();
            let singular = self.singular;
            if !users.is_empty() && !force {
                let why = format!(
                    "refused by rule InUse: {singular} {id} is used by {}",
                    pending::cell(&users)
                );
                return Err(Failure::new(Exit::Refused, why).hint(
                    "nothing can be done to these volumes without it; --force deletes it all the same, and they wait \
                     until it is there again",
                ));
            }
            let consequence = match users.len() {
                0 => String::new(),
                1 => ": 1 volume waits until it is there again".to_owned(),
                many => format!(": {many} volumes wait until it is there again"),
            };
            Ok(Deletion {
                statement: format!("{singular}/{id} is deleted{consequence}"),
                outcome: "deleted",
                txn: Some(Txn::new().when_unchanged(&key, stored.mod_revision).delete(&key)),
            })
        }
        .boxed()
    }
}
