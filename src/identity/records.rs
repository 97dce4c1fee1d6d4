//! The records of certificates of one kind, by the uid of the node. Pure.

use std::collections::{BTreeSet, HashMap};

use crate::etcd::{KeyValue, Revision};
use crate::proto::NodeCertificate;
use crate::proto::node_certificate::State;
use crate::store::object::message;

/// The record of a certificate.
#[derive(Clone, Debug)]
pub struct Record {
    /// What is stored, without the chain and the authorities, and without the request unless it is pending.
    pub value: NodeCertificate,
    /// The stored bytes, with what only a later release knows. Empty unless the request is pending.
    pub stored: Box<[u8]>,
    /// When it was last written.
    pub revision: Revision,
}

/// Every record of one kind.
#[derive(Debug, Default)]
pub struct Records {
    /// By uid; `None` for what cannot be read.
    all: HashMap<Box<str>, Option<Record>>,
    pending: BTreeSet<Box<str>>,
}

impl Records {
    /// Takes in a record as it is now.
    pub fn put(&mut self, uid: &str, kv: &KeyValue) {
        let record = message::<NodeCertificate>("NodeCertificate", &kv.value).ok();
        let record = record.map(|mut value| {
            // What nothing is decided by need not be held.
            value.chain = String::new();
            value.authorities = String::new();
            let stored: Box<[u8]> = if value.state() == State::Pending {
                self.pending.insert(uid.into());
                kv.value.as_slice().into()
            } else {
                self.pending.remove(uid);
                value.request = None;
                Box::default()
            };
            Record {
                value,
                stored,
                revision: kv.mod_revision,
            }
        });
        if record.is_none() {
            self.pending.remove(uid);
        }
        self.all.insert(uid.into(), record);
    }

    /// A record is gone.
    pub fn remove(&mut self, uid: &str) {
        self.all.remove(uid);
        self.pending.remove(uid);
    }

    /// The record of a uid, if it can be read.
    pub fn get(&self, uid: &str) -> Option<&Record> {
        self.all.get(uid)?.as_ref()
    }

    /// Every record that can be read, with its uid.
    pub fn readable(&self) -> impl Iterator<Item = (&str, &Record)> {
        let all = self.all.iter();
        all.filter_map(|(uid, record)| Some((&**uid, record.as_ref()?)))
    }

    /// Every uid whose record cannot be read.
    pub fn unreadable(&self) -> impl Iterator<Item = &str> {
        let all = self.all.iter();
        all.filter_map(|(uid, record)| record.is_none().then_some(&**uid))
    }

    /// Every uid that has a record, whether or not it can be read.
    pub fn uids(&self) -> impl Iterator<Item = &str> {
        self.all.keys().map(|uid| &**uid)
    }

    /// Whether a request waits for an answer.
    pub fn is_pending(&self, uid: &str) -> bool {
        self.pending.contains(uid)
    }

    /// The records whose request waits for an answer, in the order of their uids.
    pub fn pending(&self) -> impl Iterator<Item = (&str, &Record)> {
        let pending = self.pending.iter();
        pending.filter_map(|uid| Some((&**uid, self.get(uid)?)))
    }

    /// How many records have each state; those that cannot be read, and states that only a later release knows, come as `None`.
    pub fn states(&self) -> impl Iterator<Item = Option<State>> {
        let records = self.all.values();
        records.map(|record| State::try_from(record.as_ref()?.value.state).ok())
    }

    /// When the last certificate of each node ends, in seconds since 1970, where there is one that can be read.
    pub fn ends(&self) -> impl Iterator<Item = i64> {
        let records = self.all.values().flatten();
        records.filter_map(|record| Some(record.value.not_after?.seconds))
    }
}
