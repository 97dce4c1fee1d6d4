//! `quorate tombstone`: takes back what a forced deletion left at the backend, or has it removed there.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use prost::Message;

use super::REQUESTED;
use crate::cli::commit::{self, Decision};
use crate::cli::confirm;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::objects::stored::{Versioned, malformed};
use crate::cli::output::print;
use crate::etcd::{KeyValue, Revision, Txn};
use crate::proto::publication_status::State;
use crate::proto::volume_spec::ReclaimPolicy;
use crate::proto::{Plugin, Publication, Tombstone, Volume};
use crate::store::object::plugin::may_share_backend;
use crate::store::object::publication::stored_node_id;
use crate::store::object::volume::{backend_id, driver, made_at, may_exist};
use crate::store::object::{Object, decode, time};
use crate::store::{Name, Store};

/// Arguments of `quorate tombstone`.
#[derive(Args, Debug)]
#[command(after_help = "\
A tombstone is what a forced deletion leaves: the records as they were. adopt puts them back, and the volume goes on where it \
was. clean puts them back marked for deletion: the leader unpublishes the volume from the nodes that the records name, \
deletes it at the backend, and then the records are gone.

Examples:
  quorate tombstone adopt 5f0c…
  quorate tombstone clean 5f0c… --as data-old --yes")]
pub struct TombstoneArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Put the volume's records back as they were
    Adopt(Which),
    /// Have what is left of the volume removed at the backend
    Clean {
        #[command(flatten)]
        which: Which,

        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Args, Debug)]
struct Which {
    /// The tombstone
    #[arg(value_name = "NAME")]
    name: Name,

    /// The name of the volume, where another volume has its name by now
    #[arg(long = "as", value_name = "VOLUME")]
    new_name: Option<Name>,
}

/// Runs the command.
///
/// # Errors
/// 3 for a tombstone that does not exist, 4 for one whose records cannot be put back, 64 without a terminal to ask for
/// confirmation.
pub async fn run(args: TombstoneArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let (which, cleans, is_agreed) = match &args.what {
        What::Adopt(which) => (which, false, true),
        What::Clean { which, yes } => (which, true, *yes),
    };
    let name = &which.name;
    confirm::require(is_agreed, &format!("remove what tombstone {name} names"))?;
    let store = connect(etcd).await?;
    let first = plan(&store, which, cleans).await?;
    if !is_agreed {
        confirm::ask(&[&first.statement], "nothing was changed")?;
    }
    let said = commit::settle(&store, REQUESTED, async || {
        plan(&store, which, cleans).await?.decide(&store).await
    });
    print(&format!("tombstone/{name} {}\n", said.await?)).map(drop)
}

/// Publications that are put back in one transaction. etcd takes 128 writes by default, of which two are the volume's and the
/// tombstone's.
const MOST_PUBLICATIONS: usize = 126;

/// The records that take a tombstone's place.
struct PutBack {
    tombstone: Versioned<Tombstone>,
    name: Name,
    volume: Volume,
    /// When the other volumes were read.
    read_at: Revision,
    /// By key.
    publications: BTreeMap<Vec<u8>, Vec<u8>>,
    statement: String,
    said: String,
}

/// Decides what is put back.
async fn plan(store: &Store, which: &Which, cleans: bool) -> Result<PutBack, Failure> {
    let Which { name, new_name } = which;
    let key = store.keys.tombstone(name);
    let stored: Versioned<Tombstone> = Versioned::read(store, name.as_str(), key).await?;
    let left = &stored.object;
    if !left.unreadable.is_empty() {
        let why = format!("tombstone/{name} has records that cannot be read");
        let hint = format!(
            "quorate get tombstones {name} -o yaml shows them; remove at the backend by hand what they name, then \
             quorate delete tombstone {name}"
        );
        return Err(Failure::refused("Malformed", why).hint(hint));
    }
    let Some(mut volume) = left.volume.clone().filter(|_| !left.keeps_volume) else {
        let why = format!("tombstone/{name} is that of a publication");
        let hint =
            "quorate unpublish VOLUME --node-id ID unpublishes the volume from the node id that it names";
        return Err(Failure::refused("NoVolume", why).hint(hint));
    };
    let is_half_deleted = volume
        .status
        .as_ref()
        .is_some_and(|status| status.delete_attempted);
    if is_half_deleted && !cleans {
        let why = format!("the deletion of the volume of tombstone/{name} at the backend may have begun");
        let hint = format!("quorate tombstone clean {name} completes it");
        return Err(Failure::refused("DeletionBegun", why).hint(hint));
    }
    let volume_name = match new_name {
        Some(new_name) => new_name.clone(),
        None => volume.name().parse::<Name>().map_err(|bad| {
            Failure::failed(bad.to_string()).hint("--as NAME gives the records another name")
        })?,
    };
    let of_volume = store.keys.volume(&volume_name);
    let volumes = store.keys.volumes();
    let (recorded, read_at) = store.etcd.list(&volumes).await?;
    let plugin = plugin_of(store, &volume).await?;
    check_recorded(store, &recorded, &of_volume, &volume, &plugin)?;
    put_back(&mut volume, &volume_name, cleans);
    let publications = left.publications.iter();
    let publications = publications.filter_map(|publication| {
        let node = publication.name().parse::<Name>().ok()?;
        // No call was made for one without a node id.
        let is_needed = !cleans || !stored_node_id(publication).is_empty();
        let publication = is_needed.then(|| publication_of(publication, &volume_name, cleans))?;
        let key = store.keys.publication(&volume_name, &node);
        Some((key, publication.encode_to_vec()))
    });
    let said = match cleans {
        true => format!("is removed at the backend: volume/{volume_name} is marked for deletion until then"),
        false => format!("is adopted as volume/{volume_name}"),
    };
    Ok(PutBack {
        publications: publications.collect(),
        tombstone: stored,
        name: volume_name,
        statement: format!("tombstone/{name}: {}", removal(&volume)),
        volume,
        read_at,
        said,
    })
}

/// What becomes of a volume at the backend that is put back to be removed.
fn removal(volume: &Volume) -> &'static str {
    let is_static = volume.status.as_ref().is_some_and(|status| status.r#static);
    match may_exist(volume) && !is_static {
        true => "what is left at the backend is deleted there, with its data",
        false => "nothing is deleted at the backend; the volume is unpublished where it may be published",
    }
}

/// The plugin of the volume; an empty one where the plugin does not exist or cannot be read.
async fn plugin_of(store: &Store, volume: &Volume) -> Result<Plugin, Failure> {
    let Ok(name) = driver(volume).parse::<Name>() else {
        return Ok(Plugin::default());
    };
    let (stored, _) = store.etcd.get(&store.keys.plugin(&name)).await?;
    let plugin = stored.and_then(|kv| decode::<Plugin>(name.as_str(), &kv.value).ok());
    Ok(plugin.unwrap_or_default())
}

/// Checks that no volume has the key of the one that is put back, or its id at the plugin: one would be detached and deleted
/// under the other (INV-6).
fn check_recorded(
    store: &Store,
    recorded: &[KeyValue],
    of_volume: &[u8],
    volume: &Volume,
    plugin: &Plugin,
) -> Result<(), Failure> {
    for kv in recorded {
        let name = store.keys.parse_volume(&kv.key).unwrap_or_default();
        if kv.key == of_volume {
            let why = format!("a volume has the name {name}");
            return Err(Failure::refused("NameInUse", why).hint("--as NAME gives the records another name"));
        }
        let id = backend_id(volume);
        if id.is_empty() {
            continue;
        }
        // Nothing says that it has another id (INV-12).
        let other = decode::<Volume>(name, &kv.value).map_err(|why| malformed::<Volume>(name, &why))?;
        let is_same = driver(&other) == driver(volume) && backend_id(&other) == id;
        if is_same && may_share_backend(plugin, made_at(&other), made_at(volume)) {
            let why = format!("volume {name} has the same id at the plugin, {id}");
            let hint = format!("quorate describe volume {name} says what it has of it");
            return Err(Failure::refused("SharedVolumeID", why).hint(hint));
        }
    }
    Ok(())
}

impl PutBack {
    /// Puts back publications until the others fit into the transaction that puts back the volume and deletes the tombstone.
    /// A publication without its volume is left alone, so that nothing is done for the volume before all of them are there
    /// (INV-6). Those of an interrupted command are there already, as that one put them back.
    async fn decide(self, store: &Store) -> Result<Decision<String>, Failure> {
        self.delete_elsewhere(store).await?;
        let (range, of_volume) = (
            store.keys.publications_of(&self.name),
            store.keys.volume(&self.name),
        );
        loop {
            let (there, read_at) = store.etcd.list(&range).await?;
            if let Some(other) = there.iter().find(|kv| !self.is_of_this(store, kv)) {
                let id = store.keys.parse_publication(&other.key).unwrap_or_default();
                let why = format!("publication/{id} is there, and not of this tombstone");
                let hint = "quorate unpublish VOLUME NODE --force forgets it; --as NAME gives the records another name";
                return Err(Failure::refused("NameInUse", why).hint(hint));
            }
            let there: BTreeMap<_, _> = there.iter().map(|kv| (&kv.key, &kv.value)).collect();
            let missing = self.publications.iter();
            let missing: Vec<_> = missing
                .filter(|(key, value)| there.get(key) != Some(value))
                .collect();
            let txn = Txn::new()
                .when_unchanged(&self.tombstone.key, self.tombstone.revision)
                .when_absent(&of_volume)
                .when_range_unwritten_since(&range, read_at);
            let page = missing.iter().take(MOST_PUBLICATIONS);
            let txn = page.fold(txn, |txn, (key, value)| txn.put(key, value.as_slice()));
            if missing.len() <= MOST_PUBLICATIONS {
                // No other volume has the id by then, either.
                let txn = txn.when_none_created_since(&store.keys.volumes(), self.read_at);
                let txn = txn.delete(&self.tombstone.key);
                let txn = txn.put(&of_volume, self.volume.encode_to_vec());
                return Ok(Decision::Write(txn, self.said));
            }
            self.commit_page(store, txn).await?;
        }
    }

    /// Deletes the publications that an interrupted command has put back where this one puts none: under another name, or for what
    /// was to be adopted. Their volume is not there.
    async fn delete_elsewhere(&self, store: &Store) -> Result<(), Failure> {
        let left = &self.tombstone.object.publications;
        if left.len() <= MOST_PUBLICATIONS {
            // They are put back with their volume, or not at all.
            return Ok(());
        }
        let uids: BTreeSet<&str> = left.iter().map(Publication::uid).collect();
        let (there, _) = store.etcd.list(&store.keys.publications()).await?;
        let elsewhere = there.iter().filter(|kv| {
            let uid = uid_of(store, &kv.key, &kv.value);
            !self.publications.contains_key(&kv.key) && uid.is_some_and(|uid| uids.contains(uid.as_str()))
        });
        let elsewhere: Vec<&KeyValue> = elsewhere.collect();
        for page in elsewhere.chunks(MOST_PUBLICATIONS) {
            let txn = Txn::new().when_unchanged(&self.tombstone.key, self.tombstone.revision);
            let txn = page.iter().fold(txn, |txn, kv| {
                txn.when_unchanged(&kv.key, kv.mod_revision).delete(&kv.key)
            });
            self.commit_page(store, txn).await?;
        }
        Ok(())
    }

    async fn commit_page(&self, store: &Store, txn: Txn) -> Result<(), Failure> {
        match commit::commit(&store.etcd, txn, REQUESTED).await? {
            Some(_) => Ok(()),
            None => Err(Failure::conflict(
                "others changed the records at the same moment; try again",
            )),
        }
    }

    /// Whether the stored publication is one of the tombstone, perhaps as another command put it back.
    fn is_of_this(&self, store: &Store, stored: &KeyValue) -> bool {
        let own = self.publications.get(&stored.key);
        let own = own.and_then(|value| uid_of(store, &stored.key, value));
        own.is_some() && own == uid_of(store, &stored.key, &stored.value)
    }
}

/// The uid of a stored publication, if that can be read and it has one: no two are one for the lack of it.
fn uid_of(store: &Store, key: &[u8], value: &[u8]) -> Option<String> {
    let id = store.keys.parse_publication(key)?;
    let publication = decode::<Publication>(id, value).ok()?;
    Some(publication.uid().to_owned()).filter(|uid| !uid.is_empty())
}

fn publication_of(left: &Publication, volume: &Name, cleans: bool) -> Publication {
    let mut publication = left.clone();
    volume
        .as_str()
        .clone_into(&mut publication.spec.get_or_insert_default().volume);
    if cleans {
        publication
            .status
            .get_or_insert_default()
            .set_state(State::PendingUnpublish);
    }
    publication
}

fn put_back(volume: &mut Volume, name: &Name, cleans: bool) {
    name.as_str().clone_into(&mut volume.metadata_mut().name);
    let status = volume.status.get_or_insert_default();
    status.delete_requested = cleans.then(|| time::to_proto(Timestamp::now()));
    if cleans {
        // A reclaim policy of `retain` does not count: the operator asks for the removal.
        let spec = volume.spec.get_or_insert_default();
        spec.set_reclaim_policy(ReclaimPolicy::Delete);
    }
    volume.next_generation();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{CreateIntent, VolumeStatus};

    #[test]
    fn only_a_volume_that_the_plugin_made_or_that_was_taken_in_is_said_to_be_deleted() {
        let said = |status: VolumeStatus| {
            let volume = Volume {
                status: Some(status),
                ..Volume::default()
            };
            removal(&volume).starts_with("what is left")
        };
        let with_id = |r#static: bool| VolumeStatus {
            volume_id: "vol-1".to_owned(),
            r#static,
            ..VolumeStatus::default()
        };
        let attempted = |refused: bool| VolumeStatus {
            create: Some(CreateIntent {
                refused,
                ..CreateIntent::default()
            }),
            ..VolumeStatus::default()
        };
        assert!(said(with_id(false)) && said(attempted(false)));
        assert!(!said(with_id(true)) && !said(attempted(true)) && !said(VolumeStatus::default()));
    }
}
