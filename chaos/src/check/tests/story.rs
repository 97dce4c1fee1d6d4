//! Tells a history: a small etcd in memory, a clock, and one event for each thing that happens.

use std::collections::BTreeMap;

use prost::Message;
use quorate::etcd::KeyRange;
use quorate::store::{Keys, Name};

use crate::history::{
    Applied, At, Bytes, Change, Changed, Compare, CsiCall, CsiOutcome, Event, Fault, History, Is,
    KubernetesWrite, LeaseCall, LeaseOp, Life, Lived, MemberCall, MemberChange, Op, Outcome, Poll, Process,
    ReplicaRelease, Revision, Role, Run, Settings, Signal, StoreCall, Target, Verb, What,
};

/// How often a leader renews its lease, in milliseconds.
const RENEWAL: u64 = 2_000;

pub struct Story {
    pub keys: Keys,
    pub now: At,
    pub revision: Revision,
    pub events: Vec<Event>,
    store: BTreeMap<Vec<u8>, i64>,
    /// The leader: its process, its key, its term and its lease.
    pub leader: Option<Leader>,
    renewed: At,
}

#[derive(Clone)]
pub struct Leader {
    pub process: Process,
    pub key: Vec<u8>,
    pub term: i64,
    pub lease: i64,
}

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub fn process(text: &str) -> Process {
    Process(text.to_owned())
}

pub fn put(key: Vec<u8>, message: &impl Message) -> Op {
    Op::Put {
        key: key.into(),
        value: message.encode_to_vec().into(),
        lease: 0,
        keep_lease: false,
    }
}

pub fn delete(key: Vec<u8>) -> Op {
    Op::Delete {
        key: key.into(),
        end: Bytes::default(),
    }
}

pub fn compare(key: Vec<u8>, target: Target) -> Compare {
    Compare {
        key: key.into(),
        end: Bytes::default(),
        target,
        is: Is::Equal,
    }
}

/// A compare over a range.
pub fn compare_all(range: &KeyRange, target: Target, is: Is) -> Compare {
    Compare {
        key: range.start().into(),
        end: "end of the range".as_bytes().into(),
        target,
        is,
    }
}

impl Story {
    pub fn new() -> Self {
        Self {
            keys: Keys::new("/quorate".parse().unwrap()),
            now: At::millis(1000),
            revision: Revision {
                epoch: 0,
                revision: 1,
            },
            events: Vec::new(),
            store: BTreeMap::new(),
            leader: None,
            renewed: At(0),
        }
    }

    /// The history, with its end.
    pub fn finish(mut self) -> History {
        if !self
            .events
            .iter()
            .any(|event| matches!(event.what, What::End { .. }))
        {
            self.end(&[], &[]);
        }
        let release = |release: &str, min_apiserver: &str| ReplicaRelease {
            release: release.to_owned(),
            min_reconciler: "0.1.0".to_owned(),
            min_apiserver: min_apiserver.to_owned(),
        };
        let run = Run {
            seed: 1,
            faults: 0,
            prefix: "/quorate".to_owned(),
            releases: vec![release("1.0.0", "0.1.0"), release("1.1.0", "1.1.0")],
            settings: Settings {
                lease_ttl: 10_000,
                slack: 200,
                watch_slack: 100,
                csi_timeout: 15_000,
            },
            mutation: String::new(),
        };
        self.events.sort_by_key(|event| event.at);
        History {
            run,
            events: self.events,
        }
    }

    pub fn end(&mut self, unsettled: &[&str], backend_volumes: &[&str]) {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        self.after(1000);
        self.happens(What::Calm);
        self.happens(What::End {
            unsettled: owned(unsettled),
            backend_volumes: owned(backend_volumes),
        });
    }

    pub fn happens(&mut self, what: What) {
        self.events.push(Event { at: self.now, what });
    }

    /// Time passes. The leader renews its lease.
    pub fn after(&mut self, millis: u64) {
        let until = self.now.plus_millis(millis);
        while let Some(leader) = self.leader.clone() {
            let due = self.renewed.plus_millis(RENEWAL);
            if due > until {
                break;
            }
            self.now = self.now.max(due);
            self.renewed = self.now;
            self.lease(&leader.process, leader.lease, LeaseOp::KeepAlive);
        }
        self.now = until;
    }

    /// Time passes, and no lease is renewed.
    pub fn silently_after(&mut self, millis: u64) {
        self.now = self.now.plus_millis(millis);
        self.renewed = self.now;
    }

    pub fn lease(&mut self, by: &Process, lease: i64, op: LeaseOp) {
        let call = LeaseCall {
            by: by.clone(),
            lease,
            op,
            answered: Some(self.now.plus_millis(1)),
            outcome: Outcome::Done(10),
        };
        self.happens(What::Lease(call));
    }

    pub fn starts(&mut self, text: &str, role: Role) -> Process {
        let started = process(text);
        self.life(&started, Life::Started(role));
        started
    }

    pub fn life(&mut self, process: &Process, life: Life) {
        self.happens(What::Life(Lived {
            process: process.clone(),
            life,
        }));
    }

    pub fn signal(&mut self, process: &Process, signal: Signal) {
        self.life(process, Life::Signalled(signal));
    }

    pub fn fault(&mut self, of: &str, millis: u64) {
        self.happens(What::Fault(Fault {
            number: 1,
            kind: "partition".to_owned(),
            of: vec![of.to_owned()],
            ended: self.now.plus_millis(millis),
        }));
    }

    /// A replica of this release starts and registers.
    pub fn replica(&mut self, node_id: &str, release: &str) -> Process {
        let role = Role::Replica {
            node_id: node_id.to_owned(),
            release: release.to_owned(),
        };
        let process = self.starts(&format!("replica-{node_id}#1"), role);
        let release: quorate::release::Release = release.parse().unwrap();
        let registration = quorate::proto::Registration {
            version: Some(quorate::proto::Version {
                release: Some(release.to_proto()),
                git_information: None,
            }),
            ..Default::default()
        };
        let key = self.keys.registration(&name(node_id));
        self.writes(
            &process,
            vec![compare(key.clone(), Target::Created(0))],
            vec![put(key, &registration)],
        );
        process
    }

    /// The replica wins the election.
    pub fn elected(&mut self, process: &Process, lease: i64) {
        self.lease(process, lease, LeaseOp::Grant);
        let key = self.candidate(lease);
        let candidacy = Op::Put {
            key: key.clone().into(),
            value: process.name().into(),
            lease,
            keep_lease: false,
        };
        let compares = vec![compare(key.clone(), Target::Created(0))];
        self.writes(process, compares, vec![candidacy]);
        self.renewed = self.now;
        self.leader = Some(Leader {
            process: process.clone(),
            key,
            term: self.revision.revision,
            lease,
        });
        self.after(200);
    }

    /// The watch brings only at this instant what etcd stores meanwhile.
    pub fn late(&mut self, until: At, happens: impl FnOnce(&mut Self)) {
        let first = self.events.len();
        happens(self);
        let changed = |event: &&mut Event| matches!(event.what, What::Changed(_));
        for event in self.events[first..].iter_mut().filter(changed) {
            event.at = until;
        }
    }

    pub fn candidate(&self, lease: i64) -> Vec<u8> {
        format!("{}/{lease:x}", self.keys.election()).into_bytes()
    }

    /// The leader ends as it was asked to.
    pub fn steps_down(&mut self) {
        let Leader {
            process, key, lease, ..
        } = self.leader.clone().unwrap();
        self.signal(&process, Signal::Terminate);
        self.after(300);
        self.lease(&process, lease, LeaseOp::Revoke);
        self.leader = None;
        self.outside(vec![delete(key)]);
        let registration = process.name().trim_start_matches("replica-").to_owned();
        self.outside(vec![delete(self.keys.registration(&name(&registration)))]);
        self.after(100);
        self.life(&process, Life::Exited { code: Some(0) });
    }

    /// The fence of the leader.
    pub fn fence(&self) -> Compare {
        let leader = self.leader.as_ref().unwrap();
        compare(leader.key.clone(), Target::Created(leader.term))
    }

    pub fn modified(&self, key: Vec<u8>) -> Compare {
        let at = self.store.get(&key).map_or(0, |_| self.last_change(&key));
        compare(key, Target::Modified(at))
    }

    fn last_change(&self, key: &[u8]) -> i64 {
        let changed = self.events.iter().filter_map(|event| match &event.what {
            What::Changed(changed) if changed.key.0 == key => Some(changed.revision.revision),
            _ => None,
        });
        changed.max().unwrap_or(0)
    }

    /// The leader writes, fenced.
    pub fn leads(&mut self, compares: Vec<Compare>, ops: Vec<Op>) {
        let by = self.leader.as_ref().unwrap().process.clone();
        let compares = std::iter::once(self.fence()).chain(compares).collect();
        self.writes(&by, compares, ops);
    }

    /// The transaction of a process holds.
    pub fn writes(&mut self, by: &Process, compares: Vec<Compare>, ops: Vec<Op>) {
        self.after(10);
        let revision = Revision {
            revision: self.revision.revision + 1,
            ..self.revision
        };
        let call = StoreCall {
            by: by.clone(),
            compares,
            then: ops.clone(),
            otherwise: Vec::new(),
            answered: Some(self.now.plus_millis(2)),
            outcome: Outcome::Done(Applied {
                succeeded: true,
                revision,
                raft_term: 2,
            }),
        };
        self.happens(What::Store(call));
        self.outside(ops);
    }

    /// The last transaction of a process has no answer that a proxy saw.
    pub fn without_an_answer(&mut self) {
        let mut calls = self.events.iter_mut().rev();
        let last = calls.find_map(|event| match &mut event.what {
            What::Store(call) => Some(call),
            _ => None,
        });
        let call = last.unwrap();
        (call.answered, call.outcome) = (None, Outcome::Unknown);
    }

    /// The transaction of a process does not hold.
    pub fn is_refused(&mut self, by: &Process, compares: Vec<Compare>, ops: Vec<Op>) {
        let applied = Applied {
            succeeded: false,
            revision: self.revision,
            raft_term: 2,
        };
        let call = StoreCall {
            by: by.clone(),
            compares,
            then: ops,
            otherwise: Vec::new(),
            answered: Some(self.now.plus_millis(2)),
            outcome: Outcome::Done(applied),
        };
        self.happens(What::Store(call));
    }

    /// A process writes whose requests are not recorded.
    pub fn outside(&mut self, ops: Vec<Op>) {
        self.after(1);
        self.revision.revision += 1;
        for op in ops {
            let (key, change) = match op {
                Op::Put {
                    key, value, lease, ..
                } => {
                    let revision = self.revision.revision;
                    let created = *self.store.entry(key.0.clone()).or_insert(revision);
                    (
                        key,
                        Change::Put {
                            value,
                            created,
                            lease,
                        },
                    )
                }
                Op::Delete { key, .. } => {
                    self.store.remove(&key.0);
                    (key, Change::Deleted)
                }
                Op::Get { .. } => continue,
            };
            let revision = self.revision;
            self.happens(What::Changed(Changed {
                cluster: 7,
                revision,
                key,
                change,
            }));
        }
    }

    /// An operator writes one message.
    pub fn operator(&mut self, key: Vec<u8>, message: &impl Message) {
        self.after(20);
        self.outside(vec![put(key, message)]);
    }

    pub fn csi(&mut self, rpc: &str, volume: &str, node_id: Option<&str>, millis: u64) {
        self.csi_by(None, rpc, volume, node_id, millis);
    }

    /// A plugin is called by this process; none: it is not known.
    pub fn csi_by(
        &mut self,
        by: Option<&Process>,
        rpc: &str,
        volume: &str,
        node_id: Option<&str>,
        millis: u64,
    ) {
        self.after(150);
        self.happens(What::Csi(CsiCall {
            by: by.cloned(),
            plugin: "csi".to_owned(),
            rpc: rpc.to_owned(),
            volume: volume.to_owned(),
            node_id: node_id.map(str::to_owned),
            read_only: false,
            ended: Some(self.now.plus_millis(millis)),
            outcome: CsiOutcome::Code(0),
        }));
        self.after(millis.min(20) + 1);
    }

    /// The last call of a plugin never ends: the plugin dies first.
    pub fn unended(&mut self) {
        let mut calls = self.events.iter_mut().rev();
        let last = calls.find_map(|event| match &mut event.what {
            What::Csi(call) => Some(call),
            _ => None,
        });
        let call = last.unwrap();
        call.ended = None;
        call.outcome = CsiOutcome::Unknown;
    }

    /// Etcd refuses the last change of its members.
    pub fn refused(&mut self) {
        self.last_change_of_members().outcome = Outcome::Failed {
            code: 14,
            message: "unhealthy cluster".to_owned(),
        };
    }

    /// The last change of members is never answered: it is given up when it would have been answered.
    pub fn unanswered(&mut self) {
        let call = self.last_change_of_members();
        call.given_up = call.answered.take();
        call.outcome = Outcome::Unknown;
    }

    /// The last change of members was of this one.
    pub fn answered_with(&mut self, id: u64) {
        self.last_change_of_members().outcome = Outcome::Done(id);
    }

    fn last_change_of_members(&mut self) -> &mut MemberCall {
        let mut calls = self.events.iter_mut().rev();
        let last = calls.find_map(|event| match &mut event.what {
            What::Member(call) => Some(call),
            _ => None,
        });
        last.unwrap()
    }

    pub fn kubernetes(&mut self, verb: Verb, object: &str) {
        let by = self.leader.as_ref().unwrap().process.clone();
        self.kubernetes_by(&by, verb, object, 200);
    }

    pub fn kubernetes_by(&mut self, by: &Process, verb: Verb, object: &str, code: u16) {
        self.happens(What::Kubernetes(KubernetesWrite {
            by: by.clone(),
            verb,
            resource: "configmaps".to_owned(),
            namespace: "default".to_owned(),
            name: object.to_owned(),
            dry_run: false,
            code: Some(code),
        }));
    }

    pub fn poll(&mut self, of: &Process, ready: bool) {
        self.after(200);
        self.happens(What::Poll(Poll {
            of: of.clone(),
            answered: self.now.plus_millis(3),
            ready,
        }));
        self.after(200);
    }

    pub fn member(&mut self, change: MemberChange, millis: u64) {
        let by = self.leader.as_ref().map(|leader| leader.process.clone());
        self.member_by(by, change, millis);
    }

    /// Members change by a call of this process; none: it is not known.
    pub fn member_by(&mut self, by: Option<Process>, change: MemberChange, millis: u64) {
        self.after(150);
        let of = match change {
            MemberChange::Add { .. } => 9,
            MemberChange::Promote(id) | MemberChange::Remove(id) | MemberChange::Update { id, .. } => id,
        };
        self.happens(What::Member(MemberCall {
            by,
            change,
            answered: Some(self.now.plus_millis(millis)),
            given_up: None,
            outcome: Outcome::Done(of),
        }));
    }
}
