//! Values of etcd. A value is fed to every key that its part of the system reads, as it is read there.

use std::path::Path;
use std::sync::LazyLock;

use prost::Message;
use quorate::etcd::{KeyValue, MemberId, Revision};
use quorate::gate::status::{State, Status};
use quorate::identity::AuthorityKind;
use quorate::identity::rotation::record::{Asked, OnRecord};
use quorate::identity::rotation::view;
use quorate::identity::token;
use quorate::proto::{
    EncryptionKey, JoinToken, Metadata, Node, Publication, Role, SealedData, StoreHistory, Task,
};
use quorate::release::Release;
use quorate::replica::read_log_level;
use quorate::roles::node_update;
use quorate::secrets::{Keyring, Recipient};
use quorate::store::Name;
use quorate::store::keys::Joiner;
use quorate::store::object::Object;
use quorate::wire;

use crate::given::{KEYS, NOW, UID};
use crate::{indexed, shown};

/// The name of an object whose value says none that a key could have.
static NAME: LazyLock<Name> = LazyLock::new(|| match "n1".parse::<Name>() {
    Ok(name) => name,
    Err(bad) => panic!("{bad}"),
});

/// The keys with which no value of an input has been sealed.
static KEYRING: LazyLock<Keyring> = LazyLock::new(|| {
    let file = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";
    match Keyring::parse(Path::new("a.key"), file) {
        Ok(keyring) => keyring,
        Err(bad) => panic!("{bad}"),
    }
});

/// The part that the messages of all objects share.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
}

/// The name in a value.
fn name_in(value: &[u8]) -> Name {
    let metadata = Named::decode(value).ok().and_then(|named| named.metadata);
    let name = metadata.and_then(|metadata| metadata.name.parse().ok());
    name.unwrap_or_else(|| NAME.clone())
}

/// The owner and the name in the value of an object with an owner.
fn owned_in<O: Object>(value: &[u8]) -> (Name, Name) {
    let owner = O::decode(value)
        .ok()
        .and_then(|object| object.owner()?.parse().ok());
    (owner.unwrap_or_else(|| NAME.clone()), name_in(value))
}

fn stored(key: Vec<u8>, value: &[u8]) -> KeyValue {
    KeyValue {
        key,
        value: value.to_vec(),
        create_revision: Revision(1),
        mod_revision: Revision(2),
        lease: None,
    }
}

fn at(key: Vec<u8>, value: &[u8]) {
    let kv = stored(key, value);
    shown::shown(&kv);
    indexed::indexed(&kv);
}

/// Nodes, registrations, sessions and removed nodes; and the writes of a node's status.
pub fn nodes(value: &[u8]) {
    let name = name_in(value);
    at(KEYS.node(&name), value);
    at(KEYS.registration(&name), value);
    at(KEYS.alive(&name), value);
    at(KEYS.removed(UID), value);
    if Node::decode(value).is_ok() {
        written_nodes(value);
    }
}

fn written_nodes(value: &[u8]) {
    let other_fields = |value: &[u8]| wire::fields(value, |number| number != 3);
    let manager = node_update::with_role(value, Role::Manager);
    let read = Node::decode(&*manager);
    assert!(
        read.is_ok_and(|node| node.status.is_some_and(|status| status.role() == Role::Manager)),
        "the role that was written"
    );
    assert_eq!(
        other_fields(&manager),
        other_fields(value),
        "what the role is not"
    );
    let why = Some(("Reason", "a message"));
    if let Some(blocked) = node_update::with_blocked(value, why, NOW) {
        assert_eq!(
            other_fields(&blocked),
            other_fields(value),
            "what the condition is not"
        );
        assert_eq!(
            node_update::with_blocked(&blocked, why, NOW),
            None,
            "it is so already"
        );
    }
}

/// Member records, joins and pauses.
pub fn members(value: &[u8]) {
    at(KEYS.member(MemberId(0x1234)), value);
    at(KEYS.join(&NAME), value);
    at(KEYS.roles_pause(), value);
    at(KEYS.last_roles_pause(), value);
}

/// Services, networks and tasks.
pub fn services(value: &[u8]) {
    let name = name_in(value);
    at(KEYS.service(&name), value);
    at(KEYS.network(&name), value);
    let (service, task) = owned_in::<Task>(value);
    at(KEYS.task(&service, &task), value);
}

/// Volumes, publications, tombstones and the history of the store.
pub fn volumes(value: &[u8]) {
    let name = name_in(value);
    at(KEYS.volume(&name), value);
    at(KEYS.tombstone(&name), value);
    let (volume, node) = owned_in::<Publication>(value);
    at(KEYS.publication(&volume, &node), value);
    if let Ok(history) = StoreHistory::decode(value) {
        let again = StoreHistory::decode(&*history.encode_to_vec());
        assert_eq!(again, Ok(history));
    }
}

/// Plugins and their status.
pub fn plugins(value: &[u8]) {
    let name = name_in(value);
    at(KEYS.plugin(&name), value);
    at(KEYS.plugin_status(&name), value);
}

/// Secrets, sealed values and the key that encrypts.
pub fn secrets(value: &[u8]) {
    let name = name_in(value);
    at(KEYS.secret(&name), value);
    if let Some(recipient) = Recipient::published(value) {
        let record = EncryptionKey {
            since: None,
            ..recipient.to_record(quorate::store::object::time::to_proto(NOW))
        };
        assert_eq!(Recipient::from_record(&record).as_ref(), Some(&recipient));
    }
    if let Ok(sealed) = SealedData::decode(value) {
        let opened = quorate::secrets::open(&KEYRING, &KEYS.secret(&name), &sealed);
        assert!(opened.is_err(), "no input has been sealed with this key");
    }
}

/// Records of certificates, tokens and rotations.
pub fn identity(value: &[u8]) {
    at(KEYS.certificate(UID), value);
    at(KEYS.etcd_certificate(UID), value);
    at(KEYS.revocation_list(), value);
    at(KEYS.rotation_request(), value);
    at(KEYS.rotation(), value);
    at(KEYS.replica_trust("r1"), value);
    at(KEYS.join_token(&Joiner::Worker), value);
    if let Ok(record) = JoinToken::decode(value) {
        token::authority(&record);
    }
    view::report(value);
    view::session(&stored(KEYS.alive(&NAME), value));
    if let Some(rotation) = OnRecord::of(&stored(KEYS.rotation(), value)).rotation() {
        let phase = rotation.phase;
        let same = rotation.moved_to(phase, NOW);
        assert_eq!(same.phase, phase);
        rotation.signs(AuthorityKind::Node);
    }
    Asked::read(value);
}

/// What the inventory records, the candidates of the election, the levels of the log and the reason of a degraded state.
pub fn reconciler(value: &[u8]) {
    at(KEYS.inventory("", "Secret", Some("kube-system"), "x"), value);
    at(KEYS.inventory("apps", "Deployment", None, "x"), value);
    at(
        format!("{}/694d7a5ed2b0f5a0", KEYS.election()).into_bytes(),
        value,
    );
    let level = read_log_level("quorate::roles", value);
    if let Ok(level) = level {
        assert_eq!(level.word().parse().ok(), Some(level));
    }
    if let Err(why) = read_log_level(crate::text(value), value) {
        assert!(!why.is_empty());
    }
}

/// The status key.
pub fn status(value: &[u8]) {
    match Status::decode(value) {
        Err(error) => assert!(error.to_string().contains("status"), "{error}"),
        Ok(status) => {
            assert_eq!(Status::decode(&status.encode()).as_ref(), Ok(&status));
            let later = |value: &[u8]| wire::fields(value, |number| number > 3);
            let written = status.in_state(State::Working).encode();
            assert_eq!(later(&written), later(value), "what a later release has written");
            let release = status.version.release;
            assert_eq!(release.to_string().parse::<Release>().ok(), Some(release));
        }
    }
}
