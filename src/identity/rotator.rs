//! Carries a rotation of the authorities on: what the leader looks at for it, and what follows from that.

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::Timestamp;
use tracing::{info, warn};

use super::authorities::Found;
use super::authority::AuthorityKind;
use super::index::Index;
use super::rotation::facts::Facts;
use super::rotation::observe::{Probes, look};
use super::rotation::plan::plan;
use super::rotation::record::{Asked, OnRecord, Phase, Rotation};
use super::rotation::view::{Looks, NodesOfMembers};
use crate::etcd::Revision;
use crate::kube::events::Severity;
use crate::metrics::Metrics;
use crate::proto::HeldUp;
use crate::store::Store;
use crate::term::TermGauges;

/// What is done next for a rotation.
pub(super) enum Task {
    /// Record this in place of what was found.
    Record {
        found: Revision,
        next: Box<Rotation>,
        moved: Moved,
        /// When the members were looked at by which an etcd is permitted to start again; `None` where none is from now on.
        permitted_at: Option<Revision>,
    },
    /// Ask the node of this uid for another certificate of this authority.
    Ask(AuthorityKind, Box<str>),
    /// Delete what this replica has reported at this revision.
    Forget(Box<str>, Revision),
}

/// Whether a record permits an etcd to start again that the one before it did not.
fn permits_another(before: Option<&Rotation>, next: &Rotation) -> bool {
    let number = |rotation: &Rotation| rotation.value.restart.as_ref().map(|restart| restart.number);
    number(next).is_some() && before.and_then(number) != number(next)
}

/// What a record says that the one before did not.
pub(super) struct Moved {
    /// The phase, where it is another one.
    phase: Option<Phase>,
    /// The member whose etcd is started again from now on.
    restart: Option<String>,
}

impl Moved {
    fn between(before: Option<&Rotation>, next: &Rotation) -> Self {
        let is_new = permits_another(before, next);
        let restart = next.value.restart.as_ref().filter(|_| is_new);
        Self {
            phase: before
                .is_none_or(|before| before.phase != next.phase)
                .then_some(next.phase),
            restart: restart.map(|restart| match restart.node.is_empty() {
                true => format!("{:x}", restart.member_id),
                false => restart.node.clone(),
            }),
        }
    }

    /// Reports it once it is on record.
    pub(super) fn report(&self, notify: impl Fn(Severity, &'static str, String)) {
        if let Some(phase) = self.phase {
            let note = match phase {
                Phase::Trust => "the authorities are rotated: every replica comes to trust both".to_owned(),
                Phase::Reissue => {
                    "every replica trusts both authorities: the new ones sign from now on".to_owned()
                }
                Phase::Drop => {
                    "every certificate is one of the new authorities: the former ones are dropped".to_owned()
                }
                Phase::Done => "the authorities are rotated: nothing trusts the former ones".to_owned(),
            };
            info!("{note}");
            notify(Severity::Normal, "AuthoritiesRotated", note);
        }
        if let Some(member) = &self.restart {
            let note = format!("the etcd of {member} is started again, to trust the new authority alone");
            info!("{note}");
            notify(Severity::Normal, "EtcdRestarted", note);
        }
    }
}

/// What a leader remembers of a rotation from one look to the next.
pub(super) struct Rotator {
    metrics: Metrics,
    /// When the record was written that the authorities were chosen by.
    chosen_at: Revision,
    /// What was reported to hold the rotation up.
    said: Option<String>,
    _ends_with_the_term: TermGauges,
}

impl Rotator {
    /// Gauges read 0 until a rotation is under way.
    pub(super) fn new(metrics: &Metrics) -> Self {
        let gauges = [
            metrics.authority_rotation_phase.clone(),
            metrics.authority_rotation_held_up.clone(),
        ];
        Self {
            _ends_with_the_term: TermGauges::new(gauges),
            metrics: metrics.clone(),
            chosen_at: Revision::ABSENT,
            said: None,
        }
    }

    /// Whether the record is another one than the last time this was asked.
    pub(super) fn is_news(&mut self, on_record: &OnRecord) -> bool {
        let before = std::mem::replace(&mut self.chosen_at, on_record.revision());
        before != self.chosen_at
    }

    /// The look that a rotation needs now; `None` if there is nothing to rotate.
    pub(super) fn look(
        &self,
        index: &Index,
        found: &Found,
        store: &Store,
        now: Timestamp,
    ) -> Option<BoxFuture<'static, Looks>> {
        let rotation = index.rotation().rotation();
        let is_under_way = rotation.is_some_and(|rotation| rotation.phase != Phase::Done);
        if !is_under_way && wanted(index).is_none() && index.reports().next().is_none() {
            return None;
        }
        let rotation = rotation.filter(|rotation| matches!(rotation.phase, Phase::Reissue | Phase::Drop));
        let probes = rotation.and_then(|rotation| {
            let kind = AuthorityKind::Etcd;
            let new = found.find(kind, rotation.after.etcd)?;
            let old = found.find(kind, rotation.before.etcd);
            // Unless it has ended, nothing else proves that a member refuses it.
            if rotation.phase == Phase::Drop && old.is_none() && !found.has_ended(kind) {
                return None;
            }
            let made = Probes::make(rotation.phase, Arc::clone(new), old.map(|old| &**old), now);
            made.inspect_err(|error| warn!("members cannot be looked at: {error}"))
                .ok()
        });
        // Before the members are listed: what is written later may not be seen.
        let since = index.synced().revision();
        Some(Box::pin(look(store.clone(), probes, since)))
    }

    /// What there is to do, by what is on record and what was looked at.
    pub(super) fn plan(
        &mut self,
        index: &Index,
        found: &Found,
        looks: &Looks,
        now: Timestamp,
        notify: impl Fn(Severity, &'static str, String),
    ) -> Vec<Task> {
        let on_record = index.rotation();
        self.show(on_record, &notify);
        let record = |next: Rotation, before: Option<&Rotation>| Task::Record {
            found: on_record.revision(),
            permitted_at: permits_another(before, &next).then_some(looks.since),
            moved: Moved::between(before, &next),
            next: Box::new(next),
        };
        match (on_record, wanted(index)) {
            (OnRecord::Unreadable(_), _) => Vec::new(),
            (OnRecord::Is(rotation, _), _) if rotation.phase != Phase::Done => {
                go_on(rotation, index, found, looks, now, record)
            }
            (OnRecord::Absent | OnRecord::Is(..), Some(asked)) => {
                let before = on_record.rotation();
                let last = before.map_or(0, |rotation| rotation.value.last_restart);
                // Those that sign: in the place of what a rotation has left, others may be in current/ by now.
                let Some(present) = found.signing(on_record) else {
                    return self.wait("the present authorities cannot be read", &notify);
                };
                match found.hinders(present, asked.roots) {
                    None if present != asked.roots => {
                        vec![record(Rotation::begun(present, asked.roots, last, now), before)]
                    }
                    None => Vec::new(),
                    Some(why) => self.wait(&why, &notify),
                }
            }
            (OnRecord::Absent | OnRecord::Is(..), None) => {
                let over = index.reports();
                over.map(|(replica, at)| Task::Forget(replica.into(), at))
                    .collect()
            }
        }
    }

    /// The rotation that an operator asks for cannot begin.
    fn wait(&mut self, why: &str, notify: impl Fn(Severity, &'static str, String)) -> Vec<Task> {
        self.say(Some(format!("the authorities cannot be rotated: {why}")), notify);
        Vec::new()
    }

    /// Sets the gauges, and reports the first thing that holds the rotation up, once as long as it does.
    fn show(&mut self, on_record: &OnRecord, notify: impl Fn(Severity, &'static str, String)) {
        let under_way = on_record
            .rotation()
            .filter(|rotation| rotation.phase != Phase::Done);
        let phase = under_way.map_or(0, |rotation| match rotation.phase {
            Phase::Trust => 1,
            Phase::Reissue => 2,
            Phase::Drop => 3,
            Phase::Done => 0,
        });
        self.metrics.authority_rotation_phase.set(phase);
        let held_up = under_way.map_or(0, |rotation| rotation.value.held_up);
        self.metrics.authority_rotation_held_up.set(i64::from(held_up));
        if let Some(rotation) = under_way {
            // What passes by itself is no news.
            let passes = |hold: &&HeldUp| {
                ![
                    "Behind",
                    "OldCertificate",
                    "OldEtcdCertificate",
                    "ShowsOldCertificate",
                    "Restarts",
                    "MembersChange",
                ]
                .contains(&hold.reason.as_str())
            };
            let first = rotation.value.waits.iter().find(passes);
            let said = first.map(|hold| {
                let HeldUp {
                    kind, name, message, ..
                } = hold;
                format!("the rotation of the authorities waits for {kind} {name}: {message}")
            });
            self.say(said, notify);
        }
    }

    fn say(&mut self, said: Option<String>, notify: impl Fn(Severity, &'static str, String)) {
        if said == self.said {
            return;
        }
        if let Some(note) = &said {
            warn!("{note}");
            notify(Severity::Warning, "RotationWaits", note.clone());
        }
        self.said = said;
    }
}

/// The next step of a rotation that is under way.
fn go_on(
    rotation: &Rotation,
    index: &Index,
    found: &Found,
    looks: &Looks,
    now: Timestamp,
    record: impl Fn(Rotation, Option<&Rotation>) -> Task,
) -> Vec<Task> {
    let certified: Vec<_> = index.certified().collect();
    let replicas: Vec<_> = index.replicas().collect();
    let nodes: NodesOfMembers = index
        .nodes_of_members()
        .map(|(id, node, uid)| (id, (node.into(), uid.into())))
        .collect();
    let kept: HashSet<Box<str>> = index.records(AuthorityKind::Etcd).uids().map(Box::from).collect();
    let members = looks.members(rotation, &nodes, &index.intents(), &kept);
    let unreadable: Vec<Box<str>> = index.uncertain().map(Box::from).collect();
    let new = found.find(AuthorityKind::Etcd, rotation.after.etcd);
    let asked = index.asked().filter(|asked| asked.roots == rotation.after);
    let facts = Facts {
        certified: &certified,
        unreadable: &unreadable,
        sessions: &looks.sessions,
        replicas: &replicas,
        members: members.as_deref(),
        may_drop: asked.is_some_and(|asked| asked.drop_old),
    };
    let authorities = new.map_or("", |new| new.certificates_pem());
    let planned = plan(rotation, &facts, authorities, now);
    let asks = planned.asked.into_iter().map(|(kind, uid)| Task::Ask(kind, uid));
    let next = planned.next.map(|next| record(next, Some(rotation)));
    asks.chain(next).collect()
}

/// What an operator asks for, and no rotation has carried out or is carrying out.
fn wanted(index: &Index) -> Option<&Asked> {
    let rotation = index.rotation().rotation();
    index.asked().filter(|asked| asked.is_to_begin(rotation))
}

#[cfg(test)]
mod tests {
    use super::super::authority::AuthorityDigest;
    use super::super::rotation::record::Roots;
    use super::*;
    use crate::proto::EtcdRestart;

    #[test]
    fn a_record_permits_another_restart_where_its_number_is_another_one() {
        let roots = |byte| Roots {
            node: AuthorityDigest([byte; 32]),
            etcd: AuthorityDigest([byte; 32]),
        };
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        let none = Rotation::begun(roots(1), roots(2), 0, now).moved_to(Phase::Drop, now);
        let permits = |number| {
            let mut rotation = none.clone();
            rotation.value.restart = Some(EtcdRestart {
                number,
                ..EtcdRestart::default()
            });
            rotation
        };
        assert!(permits_another(Some(&none), &permits(5)) && permits_another(Some(&permits(5)), &permits(6)));
        assert!(!permits_another(Some(&permits(5)), &permits(5)), "it is the same");
        assert!(!permits_another(Some(&permits(5)), &none), "it is taken back");
        assert!(!permits_another(None, &none));
    }
}
