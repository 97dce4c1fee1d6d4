//! A Plugin that is applied with another endpoint leaves the volumes behind that were made at the former one.

use prost::Message;

use super::input::Manifest;
use crate::cli::exit::Failure;
use crate::etcd::{KeyValue, Revision, Txn};
use crate::proto::{Backend, Plugin, PluginStatus};
use crate::store::Store;
use crate::store::object::change::{Rejection, Step};
use crate::store::object::{Object, decode, plugin, volume};

/// A Plugin that is applied with another endpoint, and the volumes that this leaves behind. A plugin that tells the identity of
/// its backend is trusted to tell the same at its new endpoint: what it tells is seen by the leader alone.
pub struct Moved {
    name: String,
    /// The endpoint so far; empty where it is not known.
    former: String,
    /// How many volumes were made at another endpoint.
    left_behind: u64,
    /// How many records do not say where the volume was made: an earlier release wrote them. The leader adds it, as soon as it
    /// has a session of the plugin.
    unknown: u64,
    /// A volume of which nothing can be read: it may be one of these (INV-12).
    unreadable: Option<String>,
    read_at: Revision,
}

/// Counts the volumes that a new endpoint leaves behind, if `step` gives the plugin one.
///
/// # Errors
/// 1 if etcd did not answer.
pub async fn look_up(
    store: &Store,
    manifest: &Manifest,
    stored: Option<&KeyValue>,
    step: &Step,
) -> Result<Option<Moved>, Failure> {
    let name = manifest.name.name.as_str();
    let Some((former, after)) = moved(store, manifest, stored, step).await? else {
        return Ok(None);
    };
    let by_then = Backend {
        endpoint: former.clone(),
        ..Backend::default()
    };
    let made_unknown_at = made_unknown_at(&by_then, &after);
    let (volumes, read_at) = store.etcd.list(&store.keys.volumes()).await?;
    let mut moved = Moved {
        name: name.to_owned(),
        former,
        left_behind: 0,
        unknown: 0,
        unreadable: None,
        read_at,
    };
    for kv in volumes {
        let Some(volume) = volume::legible(&kv.value) else {
            let id = store.keys.parse_volume(&kv.key).unwrap_or_default();
            // Where nothing is known of the plugin, a record that another client wrote keeps no new one from being created (INV-8).
            if made_unknown_at == Place::Elsewhere {
                moved.unreadable = Some(id.to_owned());
            }
            continue;
        };
        let made_at = volume::made_at(&volume);
        let count = match made_at {
            Some(_) => &mut moved.left_behind,
            None => &mut moved.unknown,
        };
        let is_same = made_at.map_or(made_unknown_at == Place::Same, |backend| {
            !backend.id.is_empty() || plugin::is_backend_of(&after, "", Some(backend))
        });
        *count += u64::from(volume::driver(&volume) == name && volume::may_exist(&volume) && !is_same);
    }
    Ok(Some(moved))
}

/// Where the volumes were made that name no backend.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At the backend of the new endpoint, by the operator's word.
    Same,
    /// At the former endpoint, which is not said to lead to the same backend.
    Elsewhere,
    /// At an endpoint that nothing records any more.
    Unknown,
}

fn made_unknown_at(by_then: &Backend, after: &Plugin) -> Place {
    let lists_any = after
        .spec
        .as_ref()
        .is_some_and(|spec| !spec.same_backend_as.is_empty());
    match by_then.endpoint.is_empty() {
        true if lists_any => Place::Same,
        true => Place::Unknown,
        false if plugin::is_backend_of(after, "", Some(by_then)) => Place::Same,
        false => Place::Elsewhere,
    }
}

/// The endpoint of the plugin so far, and the plugin as it will be, where the endpoints differ. That of a plugin that is created is
/// empty, unless its status says where it was.
async fn moved(
    store: &Store,
    manifest: &Manifest,
    stored: Option<&KeyValue>,
    step: &Step,
) -> Result<Option<(String, Plugin)>, Failure> {
    let name = &manifest.name.name;
    let (Step::Create(after) | Step::Configure(after)) = step else {
        return Ok(None);
    };
    if manifest.kind.words.kind != Plugin::KIND {
        return Ok(None);
    }
    let read = |value: &[u8]| decode::<Plugin>(name.as_str(), value).ok();
    let former = match stored {
        Some(stored) => read(&stored.value).map(|before| plugin::endpoint(&before).to_owned()),
        // It may have been deleted by force: the leader keeps its status as long as volumes use it.
        None => {
            let (status, _) = store.etcd.get(&store.keys.plugin_status(name)).await?;
            let status = status.and_then(|kv| PluginStatus::decode(&*kv.value).ok());
            let endpoint = status.and_then(|status| Some(status.backend?.endpoint));
            Some(endpoint.unwrap_or_default())
        }
    };
    let moved = former.zip(read(after));
    Ok(moved.filter(|(former, after)| former != plugin::endpoint(after)))
}

fn were(count: u64) -> String {
    match count {
        1 => "1 volume was".to_owned(),
        many => format!("{many} volumes were"),
    }
}

impl Moved {
    /// Why the plugin may not move: the leader would record the new endpoint for volumes that were made elsewhere (INV-6).
    pub fn rejection(&self) -> Option<Rejection> {
        let Self { former, .. } = self;
        let refused = |message| Rejection::Refused {
            rule: "BackendUnknown",
            message,
        };
        if let Some(volume) = &self.unreadable {
            return Some(refused(format!(
                "volume {volume} cannot be read: nothing says that it was not made at {former}; quorate delete volume {volume} \
                 --force forgets it"
            )));
        }
        if self.unknown > 0 && former.is_empty() {
            return Some(refused(format!(
                "{} made by an earlier release, and neither their records nor a status of the plugin say where; if they were made at \
                 the backend that answers at the new endpoint, list an endpoint of it in sameBackendAs; if that backend is gone, \
                 quorate delete volume NAME --force forgets them",
                were(self.unknown)
            )));
        }
        (self.unknown > 0).then(|| {
            refused(format!(
                "{} made by an earlier release, and their records do not say where; the leader adds that as soon as the plugin \
                 answers at {former}; if the same backend answers at the new endpoint, list {former} in sameBackendAs; if \
                 that backend is gone, quorate delete volume NAME --force forgets them",
                were(self.unknown)
            ))
        })
    }

    /// Adds the compare of the volumes that were counted: one that was put back since may name no backend. Those that are there
    /// change all the time. A plugin that is created, with its volumes in the same document maybe, has none yet.
    pub fn compare(&self, txn: Txn, store: &Store) -> Txn {
        match self.former.is_empty() {
            true => txn,
            false => txn.when_none_created_since(&store.keys.volumes(), self.read_at),
        }
    }

    /// Says for how many volumes the leader calls the plugin no more, if there are any.
    pub fn warning(&self) -> Option<String> {
        let Self { name, former, .. } = self;
        let last = match former.as_str() {
            "" => String::new(),
            former => format!(" (the last one was {former})"),
        };
        (self.left_behind > 0).then(|| {
            format!(
                "plugin/{name}: {} made at another endpoint; no call for them goes to this one, unless the plugin's \
                 sameBackendAs lists theirs{last}",
                were(self.left_behind)
            )
        })
    }
}
