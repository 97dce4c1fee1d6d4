//! The part of the controller that carries a rotation of the authorities on.

use jiff::Timestamp;

use super::{About, Done, TermState};
use crate::identity::rotation::act;
use crate::identity::rotation::view::Looks;
use crate::identity::rotator::Task;

impl TermState<'_> {
    /// Has those sign that the record of a rotation says.
    pub(super) fn choose_authorities(&mut self) {
        let chosen = self.found.choose(self.index.rotation());
        self.authorities.take_in(chosen);
    }

    /// Begins a look at what a rotation depends on, if there is something to rotate.
    pub(super) fn look_for_rotation(&mut self) {
        if self.rotation_looks.is_empty() && self.index.synced().is_complete() {
            let store = &self.certifier.store;
            let look = self
                .rotator
                .look(&self.index, &self.found, store, Timestamp::now());
            self.rotation_looks.extend(look);
        }
    }

    /// Carries a rotation on, by what was looked at and what is on record now.
    pub(super) fn rotate(&mut self, looks: &Looks) {
        let synced = self.index.synced();
        if !synced.is_complete() {
            return;
        }
        self.acts.seen(|revision| synced.shows(revision));
        let certifier = self.certifier;
        let notify = |severity, reason, note| certifier.notify(severity, reason, note);
        let tasks = self
            .rotator
            .plan(&self.index, &self.found, looks, Timestamp::now(), notify);
        for task in tasks {
            self.begin_task(task);
        }
    }

    fn begin_task(&mut self, task: Task) {
        let (certifier, writer) = (self.certifier, self.writer.clone());
        let store = &certifier.store;
        match task {
            Task::Record {
                found,
                next,
                moved,
                permitted_at,
            } if self.acts.is_free(&About::Rotation) => {
                let acting = async move {
                    let written = act::record(store, &writer, found, &next, permitted_at).await;
                    written.map(|written| (written, Done::Moved(moved)))
                };
                self.acts.begin(About::Rotation, acting);
            }
            Task::Ask(kind, uid) if self.acts.is_free(&About::Ask(kind, uid.clone())) => {
                let about = About::Ask(kind, uid.clone());
                let acting = async move {
                    let written = act::ask(store, &writer, kind, &uid).await;
                    written.map(|written| (written, Done::Asked))
                };
                self.acts.begin(about, acting);
            }
            Task::Forget(replica, found) if self.acts.is_free(&About::Report(replica.clone())) => {
                let about = About::Report(replica.clone());
                let acting = async move {
                    let written = act::forget(store, &writer, &replica, found).await;
                    written.map(|written| (written, Done::Asked))
                };
                self.acts.begin(about, acting);
            }
            // It is under way, or rests after a failure.
            Task::Record { .. } | Task::Ask(..) | Task::Forget(..) => {}
        }
    }
}
