//! After objects are marked: what holds them back, reported once or until they are gone.

use super::{Blockers, Ending};
use crate::cli::exit::Failure;
use crate::cli::objects::kinds::Kind;
use crate::cli::objects::pending;
use crate::cli::objects::view::View;
use crate::cli::output::{Reader, one_line, print};
use crate::cli::wait::{WaitArgs, until_all};
use crate::etcd::Revision;
use crate::store::{Id, Store};

/// Marked objects of one kind.
pub struct Following<'a> {
    /// Where they are stored.
    pub store: &'a Store,
    /// Their kind.
    pub kind: &'a Kind,
    /// How they end.
    pub ending: &'a Ending,
    /// Their names.
    pub ids: Vec<Id>,
}

impl Following<'_> {
    fn created(&self, view: &View, id: &Id) -> Option<Revision> {
        (self.ending.created)(view, &self.kind.space.key(&view.keys, id), id)
    }

    fn line(&self, view: &View, id: &Id) -> String {
        let nothing = || "nothing holds it back".to_owned();
        let held = match self.ending.blockers {
            Blockers::Objects(blockers) => match &blockers(view, id)[..] {
                [] => nothing(),
                [only] => format!("held back by {only}"),
                many => format!("held back by {} objects: {}", many.len(), pending::cell(many)),
            },
            Blockers::Sentences(blockers) => match &blockers(view, id)[..] {
                [] => nothing(),
                sentences => sentences.join("; "),
            },
        };
        format!("{}/{id}: {held}", self.kind.words.singular)
    }

    /// Prints what holds each of them back at this moment; or, with `--wait`, each as it goes, until all are gone.
    ///
    /// # Errors
    /// 1 if etcd did not answer, 2 if the time is over.
    pub async fn follow(&self, wait: &WaitArgs) -> Result<(), Failure> {
        let ranges = self.kind.ranges_to_follow(self.store, &self.ids).await;
        let view = View::read(self.store, &ranges).await?;
        if !wait.wait {
            for id in &self.ids {
                if self.created(&view, id).is_some() {
                    let _: Reader = print(&format!("  {}\n", one_line(&self.line(&view, id))))?;
                }
            }
            return Ok(());
        }
        let marked: Vec<(&Id, Option<Revision>)> =
            self.ids.iter().map(|id| (id, self.created(&view, id))).collect();
        let hint = "nothing is undone: the leader deletes what is left once nothing holds it back";
        until_all(
            self.store,
            ranges,
            wait.timeout,
            hint,
            &marked,
            |view, (id, created), explain| {
                // An object of the same name that is created later is another one.
                if created.is_some() && self.created(view, id) == created {
                    let line = explain.then(|| self.line(view, id));
                    return Ok(Some(line.unwrap_or_default()));
                }
                let (kind, outcome) = (self.kind.words.singular, self.ending.outcome);
                let _: Reader = print(&format!("{kind}/{id} {outcome}\n"))?;
                Ok(None)
            },
        )
        .await
    }
}
