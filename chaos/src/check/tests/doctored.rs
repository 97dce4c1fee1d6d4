//! What is added to the sound history for each check.

use quorate::gate::status::State as StatusState;
use quorate::proto::publication_status::State;
use quorate::proto::{Join, Registration, Role, VolumeStatus, node_certificate};

use super::excused::{led_after_restore, restored};
use super::sound::{
    certificate, created, network, node, publication, put_status, service, status, task, unreadable, volume,
};
use super::story::{Story, compare, compare_all, delete, name, process, put};
use crate::history::{Bytes, Is, LeaseOp, Life, Op, Signal, Target, Verb};

mod members;

type Doctor = fn(&mut Story);

/// For each check, what it alone finds.
pub fn all() -> impl Iterator<Item = (&'static str, Doctor)> {
    OTHERS.into_iter().chain(members::MEMBERS)
}

const OTHERS: [(&str, Doctor); 44] = [
    ("replicas write unfenced only what they own", |story| {
        let by = process("replica-c#1");
        let json = story.keys.status_json();
        story.writes(&by, Vec::new(), vec![put(json, &Join::default())]);
    }),
    ("replicas write unfenced only what they own", |story| {
        // A part of a record that replicas write for nodes, but not this part.
        let by = process("replica-c#1");
        let key = story.keys.node(&name("n1"));
        story.writes(&by, Vec::new(), vec![put(key, &node("u1", Role::Manager))]);
    }),
    ("a fenced write is of the present leader", |story| {
        // A second key of the same process: its window is open, and it is not the first.
        let by = story.leader.clone().unwrap();
        let key = story.candidate(4);
        story.writes(
            &by.process,
            vec![compare(key.clone(), Target::Created(0))],
            vec![Op::Put {
                key: key.clone().into(),
                value: Bytes::default(),
                lease: 4,
                keep_lease: false,
            }],
        );
        let fence = compare(key, Target::Created(story.revision.revision));
        let json = story.keys.status_json();
        story.writes(&by.process, vec![fence], vec![put(json, &Join::default())]);
    }),
    ("a leader writes within its window", |story| {
        story.silently_after(9_000);
        let json = story.keys.status_json();
        let fence = story.fence();
        story.is_refused(
            &process("replica-c#1"),
            vec![fence],
            vec![put(json, &Join::default())],
        );
    }),
    ("calls start within the window", |story| {
        story.silently_after(9_000);
        story.kubernetes(Verb::Patch, "base");
    }),
    ("a leader writes within its window", |story| {
        // Its proxy takes what it sends, whatever the network does with it then.
        story.fault("replica-c", 9_000);
        story.silently_after(9_100);
        let json = story.keys.status_json();
        let fence = story.fence();
        story.is_refused(
            &process("replica-c#1"),
            vec![fence],
            vec![put(json, &Join::default())],
        );
    }),
    ("calls start within the window", |story| {
        // No fault of the network is between a replica and the apiserver.
        story.fault("replica-c", 9_000);
        story.silently_after(9_100);
        story.kubernetes(Verb::Patch, "base");
    }),
    ("calls start within the window", |story| {
        // Its successor leads.
        let (by, d) = (process("replica-c#1"), story.replica("d", "1.1.0"));
        let key = story.leader.as_ref().unwrap().key.clone();
        story.leader = None;
        story.outside(vec![delete(key)]);
        story.elected(&d, 5);
        story.after(500);
        story.csi_by(Some(&by), "ControllerExpandVolume", "vol-k", None, 20);
    }),
    ("calls start within the window", |story| {
        let d = story.replica("d", "1.1.0");
        story.kubernetes_by(&d, Verb::Patch, "base", 200);
    }),
    ("an intent stands before its call", |story| {
        story.operator(
            story.keys.volume(&name("x")),
            &volume("x1", VolumeStatus::default()),
        );
        story.csi("CreateVolume", "vol-x1", None, 20);
    }),
    ("an intent stands before its call", |story| {
        // It follows so soon that the watch cannot tell.
        let key = story.keys.volume(&name("x"));
        story.operator(key.clone(), &volume("x1", VolumeStatus::default()));
        story.csi("CreateVolume", "vol-x1", None, 20);
        story.leads(Vec::new(), vec![put(key, &volume("x1", created("x1")))]);
    }),
    ("an intent stands before its call", |story| {
        story.kubernetes(Verb::Create, "other");
    }),
    ("no replica serves that the status excludes", |story| {
        let d = story.replica("d", "1.0.0");
        story.poll(&d, true);
    }),
    ("a restriction proves that no node changed", |story| {
        let working = put_status(story, &status(StatusState::Working, "1.0.0", "1.1.0"));
        story.leads(Vec::new(), vec![working]);
    }),
    ("a restriction proves that no node changed", |story| {
        let seen = story.revision.revision;
        story.operator(story.keys.node(&name("n1")), &node("u1", Role::Worker));
        let unwritten = compare_all(&story.keys.nodes(), Target::Modified(seen + 1), Is::Less);
        let working = put_status(story, &status(StatusState::Working, "1.0.0", "1.1.0"));
        story.leads(vec![unwritten], vec![working]);
    }),
    ("a restriction excludes no registered release", |story| {
        story.replica("d", "1.1.0");
        let seen = story.revision.revision;
        let unwritten = compare_all(&story.keys.nodes(), Target::Modified(seen + 1), Is::Less);
        let working = put_status(story, &status(StatusState::Working, "1.1.0", "1.2.0"));
        story.leads(vec![unwritten], vec![working]);
    }),
    ("the status is restricted before the objects change", |story| {
        let lax = put_status(story, &status(StatusState::Working, "1.1.0", "0.1.0"));
        story.leads(Vec::new(), vec![lax]);
        story.after(200);
        story.kubernetes(Verb::Patch, "base");
    }),
    ("one call at a time for a volume", |story| {
        // Its own call, although it lost the lead meanwhile and has it again.
        let by = process("replica-c#1");
        story.csi_by(Some(&by), "ControllerExpandVolume", "vol-k", None, 10_000);
        let key = story.leader.as_ref().unwrap().key.clone();
        story.leader = None;
        story.outside(vec![delete(key)]);
        story.elected(&by, 5);
        story.csi_by(Some(&by), "ControllerExpandVolume", "vol-k", None, 20);
    }),
    ("one call at a time for a volume", |story| {
        story.csi("ControllerExpandVolume", "vol-k", None, 5_000);
        story.csi("ControllerExpandVolume", "vol-k", None, 20);
    }),
    ("no call carries an empty node id", |story| {
        story.csi("ControllerUnpublishVolume", "vol-k", Some(""), 20);
    }),
    ("no volume is deleted while published", |story| {
        let attempted = VolumeStatus {
            delete_attempted: true,
            ..created("k")
        };
        story.leads(
            Vec::new(),
            vec![put(story.keys.volume(&name("kept")), &volume("k", attempted))],
        );
        story.csi("DeleteVolume", "vol-k", None, 20);
    }),
    ("no volume is deleted while published", |story| {
        // Etcd was restored, and the restored store holds the publication.
        let d = story.replica("d", "1.1.0");
        led_after_restore(story, &d, story.revision.revision);
        let attempted = VolumeStatus {
            delete_attempted: true,
            ..created("k")
        };
        story.leads(
            Vec::new(),
            vec![put(story.keys.volume(&name("kept")), &volume("k", attempted))],
        );
        story.csi("DeleteVolume", "vol-k", None, 20);
    }),
    ("no backend volume is forgotten", |story| {
        // Etcd was restored, and the restored store holds the creation.
        let d = story.replica("d", "1.1.0");
        let key = story.keys.volume(&name("w"));
        story.operator(key.clone(), &volume("w", created("w")));
        story.csi("CreateVolume", "vol-w", None, 20);
        led_after_restore(story, &d, story.revision.revision);
        story.leads(Vec::new(), vec![delete(key)]);
        story.end(&[], &["vol-k", "vol-w"]);
    }),
    ("no backend volume is forgotten", |story| {
        story.end(&[], &["vol-k", "vol-lost"])
    }),
    ("nothing is detached without a word", |story| {
        let key = story.keys.publication(&name("kept"), &name("n1"));
        let ending = publication("kept", "u1", State::PendingUnpublish, "csi-n1");
        story.leads(Vec::new(), vec![put(key, &ending)]);
    }),
    ("one writer has a volume of one writer", |story| {
        let key = story.keys.publication(&name("kept"), &name("n2"));
        story.operator(key, &publication("kept", "u2", State::PendingPublish, ""));
    }),
    ("services are deleted without tasks", |story| {
        let key = story.keys.service(&name("db"));
        story.operator(key.clone(), &service(&[], true));
        let no_task = compare_all(&story.keys.tasks_of(&name("db")), Target::Created(0), Is::Equal);
        story.leads(vec![no_task], vec![delete(key)]);
    }),
    ("services are deleted without tasks", |story| {
        let key = story.keys.service(&name("api"));
        story.operator(key.clone(), &service(&[], true));
        story.leads(Vec::new(), vec![delete(key)]);
    }),
    ("services are deleted without tasks", |story| {
        let key = story.keys.service(&name("api"));
        story.operator(key.clone(), &service(&[], false));
        let no_task = compare_all(&story.keys.tasks_of(&name("api")), Target::Created(0), Is::Equal);
        story.leads(vec![no_task], vec![delete(key)]);
    }),
    ("networks are deleted marked and unused", |story| {
        let key = story.keys.network(&name("bad"));
        story.outside(vec![unreadable(key.clone())]);
        story.leads(Vec::new(), vec![delete(key)]);
    }),
    ("networks are deleted marked and unused", |story| {
        let key = story.keys.network(&name("back"));
        story.operator(key.clone(), &network(false));
        story.leads(Vec::new(), vec![delete(key)]);
    }),
    ("networks are deleted marked and unused", |story| {
        let key = story.keys.network(&name("back"));
        story.operator(key.clone(), &network(true));
        story.operator(story.keys.service(&name("api")), &service(&["back"], false));
        story.leads(Vec::new(), vec![delete(key)]);
    }),
    ("one bad object delays only itself", |story| {
        story.outside(vec![unreadable(story.keys.service(&name("bad")))]);
        story.operator(story.keys.service(&name("api")), &service(&[], true));
        story.after(61_000);
    }),
    ("no retry is hot", |story| {
        let by = process("replica-c#1");
        for _ in 0..30 {
            story.after(20);
            story.kubernetes_by(&by, Verb::Patch, "base", 500);
        }
    }),
    ("nothing happens after the lease is revoked", |story| {
        // Its term is over: nothing is left that calls a plugin.
        let by = process("replica-c#1");
        story.signal(&by, Signal::Terminate);
        story.after(300);
        story.lease(&by, 3, LeaseOp::Revoke);
        story.after(300);
        story.csi_by(Some(&by), "ControllerExpandVolume", "vol-k", None, 20);
        story.after(300);
        story.life(&by, Life::Exited { code: Some(0) });
    }),
    ("nothing happens after the lease is revoked", |story| {
        let (by, fence) = (process("replica-c#1"), story.fence());
        story.lease(&by, 3, LeaseOp::Revoke);
        story.after(50);
        let json = story.keys.status_json();
        story.is_refused(&by, vec![fence], vec![put(json, &Join::default())]);
    }),
    ("a replica that is asked to ends with exit code 0", |story| {
        let d = story.replica("d", "1.1.0");
        story.after(3_000);
        story.signal(&d, Signal::Terminate);
        story.after(500);
        story.life(&d, Life::Exited { code: Some(1) });
    }),
    ("no replica goes on over a restored store", |story| {
        let d = story.replica("d", "1.1.0");
        restored(story, 3);
        let key = story.keys.registration(&name("d"));
        for _ in 0..10 {
            story.writes(&d, Vec::new(), vec![put(key.clone(), &Registration::default())]);
            story.after(1_000);
        }
    }),
    ("what ends has its record", |story| {
        let key = story.keys.task(&name("db"), &name("2"));
        story.operator(
            key.clone(),
            &task("db", "n1", quorate::proto::task_status::State::Running),
        );
        let orphaned = task("db", "n1", quorate::proto::task_status::State::Orphaned);
        story.leads(Vec::new(), vec![put(key, &orphaned)]);
    }),
    ("what ends has its record", |story| {
        story.kubernetes(Verb::Delete, "base")
    }),
    ("a certificate says the observed role", |story| {
        issue(story, "u1", Role::Manager, true)
    }),
    ("a certificate says the observed role", |story| {
        issue(story, "u1", Role::Worker, false)
    }),
    ("a certificate says the observed role", |story| {
        // Another node of that name.
        issue(story, "u0", Role::Worker, true);
    }),
    ("everything settles as desired", |story| {
        story.end(&["volume kept is not published"], &[])
    }),
];

/// A certificate of n1 is recorded under this uid, for this role.
fn issue(story: &mut Story, uid: &str, role: Role, is_compared: bool) {
    let key = story.keys.certificate(uid);
    let compares = match is_compared {
        true => vec![
            story.modified(key.clone()),
            story.modified(story.keys.node(&name("n1"))),
        ],
        false => vec![story.modified(key.clone())],
    };
    let issued = certificate("n1", role, node_certificate::State::Issued, "another chain");
    story.leads(compares, vec![put(key, &issued)]);
}
