//! Stored values that cannot be read, and keys that outlive their process. Pure.

use std::borrow::Cow;

use jiff::Timestamp;

use super::checklist::Checklist;
use crate::cli::doctor::finding::Finding;
use crate::cli::doctor::reason::Reason;
use crate::cli::doctor::seen::{Seen, StoreSeen};
use crate::cli::objects::kinds::Kind;
use crate::cli::objects::kinds::registry::KINDS;
use crate::cli::objects::view::View;
use crate::etcd::KeyValue;
use crate::gate::status::Status;
use crate::proto::{
    Join, JoinToken, NodeCertificate, NodeSession, PluginStatus, RemovedNode, RevocationList, Rotation,
};
use crate::replica::read_log_level;
use crate::store::Keys;
use crate::store::keys::{CertificationKey, NodeKey, RoleKey};
use crate::store::object::{Malformed, message};

/// Checks every record.
pub fn check(seen: &Seen, list: &mut Checklist) {
    let Ok(store) = &seen.store else {
        return;
    };
    check_objects(&seen.keys, store, seen.now, list);
    list.check_each(store.keys(), |kv| other_malformed(&seen.keys, kv));
    list.check_each(store.keys(), |kv| without_lease(&seen.keys, kv));
}

/// The objects that `get` lists.
fn check_objects(keys: &Keys, store: &StoreSeen, now: Timestamp, list: &mut Checklist) {
    let mut view = View::new(keys.clone());
    for kv in store.keys() {
        view.set(&kv.key, Some(kv));
    }
    for kind in KINDS {
        let (items, _) = kind.select(&view, &[], now);
        list.check_each(items, |item| {
            let why = kind.show(&item).malformed?;
            let subject = kind.full_name(item.name);
            Some(malformed(subject, &why, consequence(kind), kind.repair()))
        });
    }
}

fn malformed(subject: String, why: &str, matters: &str, repair: &str) -> Finding {
    Finding::fault(
        Reason::MalformedRecord,
        subject,
        format!("its record cannot be read: {why}"),
    )
    .matters(matters)
    .remedy(repair)
}

/// What an unreadable object of a kind holds up.
fn consequence(kind: &Kind) -> &'static str {
    match kind.words.kind {
        "Node" | "Replica" => {
            "it may be a controller of any release, so it blocks every restriction of the status, and every upgrade"
        }
        "Service" => "it may use any network, so it holds every network that is marked for deletion",
        "Member" => "it might tie the member to any node, so no manager without a member becomes a worker",
        "Volume" | "Publication" => {
            "nothing is done with the volume, and what exists of it at the backend is not known"
        }
        "Plugin" => "no volume of its driver is worked on",
        _ => "it is left as it is, and the others are worked on",
    }
}

/// Records beside the objects.
fn other_malformed(keys: &Keys, kv: &KeyValue) -> Option<Finding> {
    let by_hand = "only its writer can repair it; a later request of that writer replaces it";
    let found = |why: String, matters, repair| Some(malformed(shown(kv).into_owned(), &why, matters, repair));
    if kv.key == keys.status() {
        let why = Status::decode(&kv.value).err()?.to_string();
        let matters =
            "it counts as no status: no replica becomes ready before the leader has written another";
        return found(
            why,
            matters,
            "the leader replaces it with its next pass; quorate status shows whether there is a leader",
        );
    }
    if let Some(module) = keys.parse_log_level(&kv.key) {
        let why = read_log_level(module, &kv.value).err()?;
        let matters = "the replicas ignore it, and write to their logs as without it";
        return found(
            why,
            matters,
            "quorate log-level --reset removes it, with the other levels",
        );
    }
    let (why, matters) = if let RoleKey::Join(_) = keys.parse_role(&kv.key) {
        (fault::<Join>("Join", kv)?, "the node does not join")
    } else if let RoleKey::Removed(_) = keys.parse_role(&kv.key) {
        (fault::<RemovedNode>("RemovedNode", kv)?, "it never expires")
    } else if keys.parse_join_token(&kv.key).is_some() {
        (
            fault::<JoinToken>("JoinToken", kv)?,
            "no node joins with this token; quorate token rotate makes another",
        )
    } else if let CertificationKey::EtcdCertificate(_) = keys.parse_certification(&kv.key) {
        (
            fault::<NodeCertificate>("NodeCertificate", kv)?,
            "the etcd of the node of this uid gets no other certificate while the record is there, and those that it \
             has cannot be revoked",
        )
    } else if kv.key == keys.revocation_list() {
        (
            fault::<RevocationList>("RevocationList", kv)?,
            "no certificate of etcd is revoked any more; the leader makes another list once this one is deleted",
        )
    } else if keys.parse_alive(&kv.key).is_some() {
        (
            fault::<NodeSession>("NodeSession", kv)?,
            "its node counts as down",
        )
    } else if kv.key == keys.rotation() {
        (
            fault::<Rotation>("Rotation", kv)?,
            "no certificate is signed; etcdctl del of the key has the authorities of current/ sign again",
        )
    } else if keys.parse_plugin_status(&kv.key).is_some() {
        (
            fault::<PluginStatus>("PluginStatus", kv)?,
            "the state of the plugin is not shown",
        )
    } else {
        return None;
    };
    found(why.to_string(), matters, by_hand)
}

fn fault<M: prost::Message + Default>(kind: &'static str, kv: &KeyValue) -> Option<Malformed> {
    message::<M>(kind, &kv.value).err()
}

/// The key as a subject.
fn shown(kv: &KeyValue) -> Cow<'_, str> {
    String::from_utf8_lossy(&kv.key)
}

/// A key that must end with its process, and does not: a plain put takes a key off its lease.
fn without_lease(keys: &Keys, kv: &KeyValue) -> Option<Finding> {
    if kv.lease.is_some() {
        return None;
    }
    let key = shown(kv);
    let matters = if keys.candidates().contains(&kv.key) {
        "it outlives its replica, and while it is the oldest no other replica can lead"
    } else if let NodeKey::Registration(_) = keys.parse_node(&kv.key) {
        "it outlives its replica, which counts as running with that release for ever: it can block every upgrade"
    } else if keys.parse_alive(&kv.key).is_some() {
        "the node counts as ready for ever, also when it is down"
    } else {
        return None;
    };
    Some(
        Finding::fault(Reason::KeyWithoutLease, &key, "the key is on no lease")
            .matters(matters)
            .remedy(format!(
                "delete it, and its owner, if it runs, writes it again: etcdctl del {key}"
            )),
    )
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::cli::doctor::fixtures::{keys, kv, store};
    use crate::etcd::LeaseId;

    #[test]
    fn each_object_that_cannot_be_read_is_found_and_a_sound_one_is_not() {
        let name = "n1".parse().unwrap();
        let garbage = b"\xff\xff";
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        let sound = crate::proto::Node {
            metadata: Some(crate::proto::Metadata::new("n1", "u", now)),
            ..crate::proto::Node::default()
        };
        let mut list = Checklist::default();
        let stored = vec![
            kv(keys().node(&name), sound.encode_to_vec()),
            kv(keys().registration(&name), garbage),
            kv(keys().volume(&name), garbage),
            kv(keys().network(&name), garbage),
        ];
        check_objects(&keys(), &store(stored), now, &mut list);
        let subjects: Vec<&str> = list.findings.iter().map(|found| &*found.subjects[0]).collect();
        assert_eq!(subjects, ["replica/n1", "network/n1", "volume/n1"]);
        assert_eq!(list.made, 4);
    }

    #[test]
    fn records_that_are_no_objects_are_read_as_well() {
        let name = "n1".parse().unwrap();
        for key in [
            keys().status(),
            keys().join(&name),
            keys().removed("u"),
            keys().etcd_certificate("u"),
            keys().revocation_list(),
            keys().alive(&name),
            keys().plugin_status(&name),
            keys().log_level("quorate"),
            keys().join_token(&crate::store::keys::Joiner::Worker),
        ] {
            let found = other_malformed(&keys(), &kv(key.clone(), b"\xff\xff"));
            assert_eq!(found.unwrap().subjects[0].as_bytes(), key);
        }
        assert!(other_malformed(&keys(), &kv(b"/q/later".to_vec(), b"\xff")).is_none());
    }

    #[test]
    fn a_key_that_belongs_to_a_process_needs_a_lease_and_others_need_none() {
        let name = "n1".parse().unwrap();
        let candidate = format!("{}/1f", keys().election()).into_bytes();
        for key in [candidate, keys().registration(&name), keys().alive(&name)] {
            let mut stored = kv(key, b"");
            let found = without_lease(&keys(), &stored).unwrap();
            assert!(found.remedy.contains("etcdctl del /q/"), "{found:?}");
            stored.lease = Some(LeaseId(1));
            assert!(without_lease(&keys(), &stored).is_none());
        }
        for key in [keys().node(&name), keys().status(), keys().volume(&name)] {
            assert!(without_lease(&keys(), &kv(key, b"")).is_none());
        }
    }
}
