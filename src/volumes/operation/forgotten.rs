//! What may be under way at the backend for a volume that is taken in, or that takes its name as its id, from a record of it that was
//! forgotten by force.

use std::borrow::Cow;
use std::collections::BTreeSet;

use prost::Message;

use super::{Failure, Interrupted, Run};
use crate::etcd::Stop;
use crate::proto::{Plugin, Tombstone, Volume};
use crate::store::object::plugin::may_share_backend;
use crate::store::object::publication::{stored_node_id, undecided_node_id};
use crate::store::object::tombstone::left_node_ids;
use crate::store::object::volume::{backend_id, driver, made_at};
use crate::store::object::{Object, decode};
use crate::store::writer::Unit;
use crate::store::{Keys, Name};
use crate::volumes::record;

/// The volume that was forgotten. `None` where that is not known.
fn forgotten<'a>(keys: &Keys, tombstone: &'a Tombstone) -> Option<Cow<'a, Volume>> {
    if let Some(volume) = &tombstone.volume {
        return Some(Cow::Borrowed(volume));
    }
    let mut unreadable = tombstone.unreadable.iter();
    unreadable.find_map(|(key, value)| {
        keys.parse_volume(key.as_bytes())?;
        // One that is faulty still says which volume it is.
        Volume::decode(&**value).ok().map(Cow::Owned)
    })
}

/// Whether both are records of the same volume at the backend. Where it is not known, they may be (INV-12).
fn is_same(forgotten: &Volume, taken_in: &Volume, plugin: Option<&Plugin>) -> bool {
    let may_share = |plugin| may_share_backend(plugin, made_at(forgotten), made_at(taken_in));
    driver(forgotten) == driver(taken_in)
        && backend_id(forgotten) == backend_id(taken_in)
        && plugin.is_none_or(may_share)
}

/// Adds the node ids of which a call may be under way by the tombstone, and takes out those that a node may use the volume under. With
/// the tombstones in the order in which they were made, what an earlier one says is decided by the later ones.
fn take_over(left: &mut BTreeSet<String>, tombstone: &Tombstone) {
    let publications = &tombstone.publications;
    let called = publications.iter().filter_map(undecided_node_id);
    let strays = left_node_ids(tombstone).iter().map(String::as_str);
    left.extend(called.chain(strays).map(str::to_owned));
    for publication in publications {
        if undecided_node_id(publication).is_none() {
            left.remove(stored_node_id(publication));
        }
    }
}

impl Run<'_> {
    /// The volume with the node ids that it is unpublished from before anything else: calls of a record that was forgotten by force may
    /// be under way, whether or not a leader waited for their answers (INV-3, INV-6).
    ///
    /// # Errors
    /// Fails if such a call may delete the volume, or if a tombstone cannot be read that may be one of the volume.
    pub(super) async fn leaving_forgotten(&self, taken_in: Volume) -> Result<Volume, Interrupted> {
        let (keys, etcd) = (&self.env.store.keys, &self.env.store.etcd);
        let (mut tombstones, _) = etcd.list(&keys.tombstones()).await?;
        if tombstones.is_empty() {
            return Ok(taken_in);
        }
        tombstones.sort_by_key(|kv| kv.create_revision);
        let driver = &self.operation.driver;
        let (plugin, _) = etcd.get(&keys.plugin(driver)).await?;
        let plugin = plugin.and_then(|kv| decode::<Plugin>(driver.as_str(), &kv.value).ok());
        let (mut left, mut overtaken) = (BTreeSet::new(), Vec::new());
        for kv in tombstones {
            let name = keys.parse_tombstone(&kv.key).unwrap_or_default();
            let unreadable = || Failure::unreadable_tombstone(name).until_changed(keys, &kv);
            let mut tombstone = decode::<Tombstone>(name, &kv.value).map_err(|_| unreadable())?;
            if tombstone.keeps_volume {
                // The record of the volume has what is left.
                continue;
            }
            let volume = forgotten(keys, &tombstone).ok_or_else(unreadable)?;
            if !is_same(&volume, &taken_in, plugin.as_ref()) {
                continue;
            }
            if !tombstone.unreadable.is_empty() {
                return Err(unreadable().into());
            }
            let status = volume.status.as_ref();
            if status.is_some_and(|status| status.delete_attempted) {
                let begun = Failure::deletion_begun(taken_in.name(), name);
                return Err(begun.until_changed(keys, &kv).into());
            }
            take_over(&mut left, &tombstone);
            if !std::mem::take(&mut tombstone.undoing).is_empty() {
                let uid = name.parse::<Name>().map_err(|_| unreadable())?;
                overtaken.push((uid, kv.mod_revision, tombstone.encode_to_vec()));
            }
        }
        // The record that takes the volume in says from now on what is undone. A later leader that did it by the tombstone would not
        // know what has become of the volume since (INV-12).
        for (uid, read_at, tombstone) in overtaken {
            let unit = Unit::new().put(keys.tombstone(&uid), read_at, tombstone);
            self.env.writer.write(unit).await.map_err(Stop::from)?;
        }
        let leaving = |volume: Volume, id: &String| record::with_stray(&volume, id);
        Ok(left.iter().fold(taken_in, leaving))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::publication_status::State;
    use crate::proto::volume_spec::Driver;
    use crate::proto::{Backend, PluginSpec, Publication, PublicationStatus, VolumeSpec, VolumeStatus};

    fn volume(id: &str, endpoint: &str) -> Volume {
        Volume {
            metadata: None,
            spec: Some(VolumeSpec {
                driver: Some(Driver {
                    name: "p".to_owned(),
                    ..Driver::default()
                }),
                ..VolumeSpec::default()
            }),
            status: Some(VolumeStatus {
                volume_id: id.to_owned(),
                backend: Some(Backend {
                    endpoint: endpoint.to_owned(),
                    ..Backend::default()
                }),
                detach_node_ids: vec!["csi-n9".to_owned()],
                ..VolumeStatus::default()
            }),
        }
    }

    fn publication(state: State, id: &str) -> Publication {
        Publication {
            status: Some(PublicationStatus {
                state: state.into(),
                csi_node_id: id.to_owned(),
                ..PublicationStatus::default()
            }),
            ..Publication::default()
        }
    }

    /// INV-12
    #[test]
    fn a_tombstone_names_the_node_ids_of_calls_and_none_that_a_node_may_use_the_volume_under() {
        let tombstone = Tombstone {
            volume: Some(volume("vol-1", "unix:///s")),
            publications: vec![
                publication(State::PendingPublish, ""),
                publication(State::PendingPublish, "csi-n1"),
                publication(State::PendingUnpublish, "csi-n2"),
                publication(State::Published, "csi-n3"),
                publication(State::PendingNodeUnpublish, "csi-n4"),
            ],
            ..Tombstone::default()
        };
        let mut ids = BTreeSet::new();
        take_over(&mut ids, &tombstone);
        assert_eq!(Vec::from_iter(ids), ["csi-n1", "csi-n2", "csi-n9"]);
    }

    /// INV-6, INV-12: no call takes the volume from a node that may use it by the later record.
    #[test]
    fn what_a_later_tombstone_says_that_a_node_may_use_outweighs_the_call_of_an_earlier_one() {
        let tombstone = |state, ids: &[&str]| Tombstone {
            publications: ids.iter().map(|id| publication(state, id)).collect(),
            ..Tombstone::default()
        };
        let called = tombstone(State::PendingUnpublish, &["csi-n1", "csi-n2", "csi-n3"]);
        let used = tombstone(State::Published, &["csi-n1"]);
        let leaving = tombstone(State::PendingNodeUnpublish, &["csi-n2"]);
        let left_by = |tombstones: &[&Tombstone]| {
            let mut left = BTreeSet::new();
            for tombstone in tombstones {
                take_over(&mut left, tombstone);
            }
            Vec::from_iter(left)
        };
        assert_eq!(left_by(&[&called, &used, &leaving]), ["csi-n3"]);
        assert_eq!(
            left_by(&[&used, &leaving, &called]),
            ["csi-n1", "csi-n2", "csi-n3"],
            "the calls came after the uses"
        );
        let mut asked = used.clone();
        asked.volume = Some(volume("vol-1", "unix:///s"));
        let strays = &mut asked
            .volume
            .as_mut()
            .unwrap()
            .status
            .as_mut()
            .unwrap()
            .detach_node_ids;
        strays.push("csi-n1".to_owned());
        assert_eq!(
            left_by(&[&asked]),
            ["csi-n9"],
            "the publication outweighs what was asked for beside it"
        );
    }

    /// INV-12: a record that cannot be read is not taken for one of another volume, and one that is faulty says which it is.
    #[test]
    fn a_tombstone_of_what_cannot_be_read_says_which_volume_it_is_where_the_bytes_do() {
        let keys = Keys::new("/quorate".parse().unwrap());
        let of = |key: &[u8], value: Vec<u8>| Tombstone {
            unreadable: [(String::from_utf8_lossy(key).into_owned(), value)].into(),
            ..Tombstone::default()
        };
        let key = keys.volume(&"data".parse().unwrap());
        let faulty = volume("vol-1", "unix:///s");
        let known = of(&key, faulty.encode_to_vec());
        assert_eq!(forgotten(&keys, &known).as_deref(), Some(&faulty));
        assert_eq!(forgotten(&keys, &of(&key, vec![0xff])), None);
        let publication = keys.publication(&"data".parse().unwrap(), &"n1".parse().unwrap());
        assert_eq!(forgotten(&keys, &of(&publication, faulty.encode_to_vec())), None);
    }

    /// INV-6
    #[test]
    fn a_forgotten_record_is_that_of_the_volume_with_the_same_id_at_what_may_be_the_same_backend() {
        let data = volume("vol-1", "unix:///s");
        let plugin = Plugin {
            spec: Some(PluginSpec {
                endpoint: "unix:///s".to_owned(),
                ..PluginSpec::default()
            }),
            ..Plugin::default()
        };
        assert!(is_same(&data, &volume("vol-1", "unix:///s"), Some(&plugin)));
        assert!(!is_same(&data, &volume("vol-2", "unix:///s"), Some(&plugin)));
        let elsewhere = volume("vol-1", "unix:///other");
        assert!(!is_same(&data, &elsewhere, Some(&plugin)));
        assert!(is_same(&data, &elsewhere, None), "not known");
    }
}
