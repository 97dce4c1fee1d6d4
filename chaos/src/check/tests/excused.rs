//! What is added to the sound history and is no fault, although it looks like one.

use quorate::etcd::MemberId;
use quorate::gate::status::State as StatusState;
use quorate::proto::publication_status::State;
use quorate::proto::{Registration, VolumeStatus, removal};

use super::sound::{created, list, member, publication, put_status, status, unreadable, volume};
use super::story::{Story, compare_all, delete, name, process, put};
use crate::history::{
    Change, Event, Is, Life, Poll, Process, Role as ProcessRole, Signal, Target, Verb, What,
};

type Doctor = fn(&mut Story);

/// What is no fault, although it looks like one.
pub const EXCUSED: [(&str, Doctor); 16] = [
    (
        "a call of a process that was stopped between its decision and the call",
        |story| {
            let by = process("replica-c#1");
            story.signal(&by, Signal::Stop);
            story.silently_after(9_000);
            story.signal(&by, Signal::Continue);
            story.silently_after(5);
            story.kubernetes(Verb::Patch, "base");
        },
    ),
    (
        "a change that was decided before a voter's death was known",
        |story| {
            let third = etcd(story, "etcd-3");
            list(story, &[(1, true), (2, true), (3, true)]);
            story.life(&third, Life::Exited { code: None });
            story.after(2_000);
            let stalled = member("n1", "u1", Some(removal::Cause::Stalled), false);
            story.leads(Vec::new(), vec![put(story.keys.member(MemberId(1)), &stalled)]);
            list(story, &[(1, true), (2, true), (3, false)]);
        },
    ),
    (
        "a call that the harness saw late, since it did not run",
        |story| {
            let until = story.now.plus_millis(9_000);
            story.happens(What::Stalled { until });
            story.silently_after(9_000);
            let fence = story.fence();
            let json = put(story.keys.status_json(), &Registration::default());
            story.is_refused(&process("replica-c#1"), vec![fence], vec![json]);
        },
    ),
    (
        "a plugin that ends a call long after the leader gave it up",
        |story| {
            story.csi("ControllerExpandVolume", "vol-k", None, 60_000);
            story.after(15_100);
            story.csi("ControllerExpandVolume", "vol-k", None, 20);
        },
    ),
    ("a call that ended with the plugin", |story| {
        let plugin = story.starts(
            "plugin#1",
            ProcessRole::Plugin {
                plugin: "csi".to_owned(),
            },
        );
        story.csi("ControllerExpandVolume", "vol-k", None, 10_000);
        story.unended();
        story.life(&plugin, Life::Exited { code: None });
        story.csi("ControllerExpandVolume", "vol-k", None, 20);
    }),
    ("a call that the next leader repeats", |story| {
        story.csi("ControllerExpandVolume", "vol-k", None, 10_000);
        let d = story.replica("d", "1.1.0");
        story.steps_down();
        story.elected(&d, 5);
        story.csi("ControllerExpandVolume", "vol-k", None, 20);
    }),
    (
        "a write of a leader that knew sooner than the watch that it leads",
        |story| {
            let d = story.replica("d", "1.1.0");
            let before = story.leader.as_ref().unwrap().key.clone();
            story.steps_down();
            let is_end = |event: &Event| match &event.what {
                What::Changed(changed) => changed.key.0 == before && changed.change == Change::Deleted,
                _ => false,
            };
            let end = story.events.iter().position(is_end).unwrap();
            let mut end = story.events.remove(end);
            story.elected(&d, 5);
            let done = put_status(story, &status(StatusState::Done, "1.1.0", "1.1.0"));
            story.leads(Vec::new(), vec![done]);
            end.at = story.now;
            story.events.push(end);
        },
    ),
    (
        "a write of a leader that the watch knew late, since the harness did not run",
        |story| {
            let d = story.replica("d", "1.1.0");
            story.steps_down();
            let until = story.now.plus_millis(20_000);
            story.happens(What::Stalled { until });
            story.late(until, |story| {
                story.elected(&d, 5);
                let key = story.keys.status_json();
                story.leads(Vec::new(), vec![put(key, &Registration::default())]);
            });
            story.after(20_000);
        },
    ),
    (
        "an intent that the watch brings late, since etcd has lost its quorum",
        |story| {
            for is_answered in [true, false] {
                let key = story.keys.volume(&name("x"));
                let intended = VolumeStatus {
                    delete_attempted: true,
                    ..created("x1")
                };
                story.operator(key.clone(), &volume("x1", VolumeStatus::default()));
                story.late(story.now.plus_millis(20_000), |story| {
                    story.leads(Vec::new(), vec![put(key.clone(), &volume("x1", intended))]);
                });
                if !is_answered {
                    story.without_an_answer();
                }
                story.csi("CreateVolume", "vol-x1", None, 20);
                story.csi("DeleteVolume", "vol-x1", None, 20);
                story.after(20_000);
                story.leads(Vec::new(), vec![delete(key)]);
            }
        },
    ),
    ("something unreadable that who wrote it deletes", |story| {
        for key in [story.keys.service(&name("bad")), story.keys.network(&name("bad"))] {
            story.outside(vec![unreadable(key.clone())]);
            story.outside(vec![delete(key)]);
        }
    }),
    ("a replica that is asked to end as soon as it starts", |story| {
        let d = story.replica("d", "1.1.0");
        story.signal(&d, Signal::Terminate);
        story.after(10);
        story.life(&d, Life::Exited { code: None });
    }),
    (
        "a restriction beside a replica that waits, since the status excluded it before",
        |story| {
            story.replica("d", "1.0.0");
            let seen = story.revision.revision;
            let unwritten = compare_all(&story.keys.nodes(), Target::Modified(seen + 1), Is::Less);
            let working = put_status(story, &status(StatusState::Working, "1.0.0", "1.1.0"));
            story.leads(vec![unwritten], vec![working]);
        },
    ),
    ("a poll that the restriction overtook", |story| {
        let lax = put_status(story, &status(StatusState::Working, "1.1.0", "0.1.0"));
        story.leads(Vec::new(), vec![lax]);
        let d = story.replica("d", "1.0.0");
        story.after(200);
        story.happens(What::Poll(Poll {
            of: d,
            answered: story.now.plus_millis(300),
            ready: true,
        }));
        story.outside(vec![delete(story.keys.registration(&name("d")))]);
        let seen = story.revision.revision;
        let unwritten = compare_all(&story.keys.nodes(), Target::Modified(seen + 1), Is::Less);
        let working = put_status(story, &status(StatusState::Working, "1.1.0", "1.1.0"));
        story.leads(vec![unwritten], vec![working]);
    }),
    (
        "a deletion of a volume that was published after the snapshot that etcd is restored from",
        |story| {
            let d = story.replica("d", "1.1.0");
            let (volume_key, key) = (
                story.keys.volume(&name("w")),
                story.keys.publication(&name("w"), &name("n1")),
            );
            story.operator(volume_key.clone(), &volume("w", created("w")));
            let snapshot = story.revision.revision;
            let published = publication("w", "u1", State::PendingPublish, "csi-n1");
            story.leads(Vec::new(), vec![put(key, &published)]);
            story.csi("ControllerPublishVolume", "vol-w", Some("csi-n1"), 20);
            led_after_restore(story, &d, snapshot);
            let attempted = VolumeStatus {
                delete_attempted: true,
                ..created("w")
            };
            story.leads(Vec::new(), vec![put(volume_key, &volume("w", attempted))]);
            story.csi("DeleteVolume", "vol-w", None, 20);
        },
    ),
    (
        "a volume at the backend that was made after the snapshot that etcd is restored from",
        |story| {
            let d = story.replica("d", "1.1.0");
            let key = story.keys.volume(&name("w"));
            story.operator(key.clone(), &volume("w", VolumeStatus::default()));
            let snapshot = story.revision.revision;
            story.leads(Vec::new(), vec![put(key.clone(), &volume("w", created("w")))]);
            story.csi("CreateVolume", "vol-w", None, 20);
            led_after_restore(story, &d, snapshot);
            story.leads(Vec::new(), vec![delete(key)]);
            story.end(&[], &["vol-k", "vol-w"]);
        },
    ),
    ("a replica that ends when it finds the store restored", |story| {
        let d = story.replica("d", "1.1.0");
        restored(story, 3);
        let key = story.keys.registration(&name("d"));
        story.is_refused(&d, Vec::new(), vec![put(key, &Registration::default())]);
        story.after(100);
        story.life(&d, Life::Exited { code: Some(1) });
    }),
];

/// Replica `d` leads once etcd was restored from a snapshot of this revision, and the lease of the former leader has ended.
pub fn led_after_restore(story: &mut Story, d: &Process, revision: i64) {
    let key = story.leader.as_ref().unwrap().key.clone();
    restored(story, revision);
    story.outside(vec![delete(key)]);
    story.elected(d, 5);
}

/// A member of this name starts.
pub fn etcd(story: &mut Story, name: &str) -> Process {
    let member = name.to_owned();
    story.starts(&format!("{name}#1"), ProcessRole::Etcd { member })
}

/// The replicas but `d` are killed, and etcd is restored from a snapshot of this revision.
pub fn restored(story: &mut Story, revision: i64) {
    let c = process("replica-c#1");
    story.signal(&c, Signal::Kill);
    story.life(&c, Life::Exited { code: None });
    story.leader = None;
    story.after(500);
    story.revision.epoch += 1;
    story.revision.revision = revision;
    story.happens(What::Restored {
        epoch: story.revision.epoch,
        revision,
    });
}
