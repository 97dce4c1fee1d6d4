//! Who led when, by the keys of the election, and how long each process could believe it.

use std::collections::BTreeMap;

use super::records::{Records, written};
use crate::history::{At, Change, LeaseOp, Process, Revision, What};

/// Every candidacy of the history.
#[derive(Default)]
pub struct Terms<'h> {
    pub all: Vec<Term<'h>>,
    /// The answered grants and renewals of each lease, by its id and its process.
    renewals: BTreeMap<(i64, &'h Process), Vec<Renewal>>,
}

/// A candidacy: from the creation of its key to the end of the key. It is a term from when its key is the first.
pub struct Term<'h> {
    pub key: &'h [u8],
    pub created: Revision,
    pub lease: i64,
    /// The process that stands behind the key, if its proxy saw it.
    pub process: Option<&'h Process>,
    /// The event that created the key.
    pub event: usize,
    /// When it was seen as the first key, and from which revision on.
    pub first: Option<(At, Revision)>,
    /// When the watch saw the end of the key, and by which event.
    pub ended: Option<(At, usize)>,
    /// The key ended with its store: the process cannot know before its first answer of the restored one.
    pub is_lost: bool,
}

struct Renewal {
    sent: At,
    answered: At,
    ttl: u64,
}

/// Why a process could not believe at an instant that it leads.
pub enum Outside {
    /// It never stood for election by then.
    NoCandidate,
    /// Another key was the first.
    NotFirst(usize),
    /// Its key had gone.
    Ended(At, usize),
    /// No renewal of its lease was recent enough: since when.
    Closed(At, usize),
}

impl Outside {
    /// In words, after "while".
    pub fn words(&self) -> String {
        match self {
            Self::NoCandidate => "it has no key in the election".to_owned(),
            Self::NotFirst(_) => "an older key of the election exists".to_owned(),
            Self::Ended(at, _) => format!("its key of the election is gone since {at}"),
            Self::Closed(at, _) => format!("its window is closed since {at}"),
        }
    }

    /// The event that shows it.
    pub fn event(&self) -> Option<usize> {
        match self {
            Self::NoCandidate => None,
            Self::NotFirst(event) | Self::Ended(_, event) | Self::Closed(_, event) => Some(*event),
        }
    }

    /// Since when it is so, where that matters to an excuse.
    pub fn since(&self) -> Option<At> {
        match self {
            Self::Ended(at, _) | Self::Closed(at, _) => Some(*at),
            Self::NoCandidate | Self::NotFirst(_) => None,
        }
    }
}

impl<'h> Terms<'h> {
    pub fn of(records: &Records<'h>) -> Self {
        let mut terms = Self {
            renewals: renewals(records),
            ..Self::default()
        };
        let (owners, shown) = (owners(records), shown(records));
        for (index, event) in records.events() {
            match &event.what {
                What::Restored { epoch, .. } => terms.restore(records, *epoch, event.at, index),
                What::Changed(changed) if records.keys.candidates().contains(&changed.key.0) => {
                    if changed.revision.revision <= records.snapshot(changed.revision.epoch).unwrap_or(0) {
                        continue;
                    }
                    match &changed.change {
                        Change::Put { created, lease, .. } => {
                            let created = Revision {
                                revision: *created,
                                ..changed.revision
                            };
                            terms.stand(&changed.key.0, created, *lease, &owners, index);
                        }
                        Change::Deleted => terms.end(&changed.key.0, event.at, index),
                    }
                    // The watch may bring it later than somebody had an answer of that revision.
                    let shown = shown
                        .range(changed.revision..)
                        .next()
                        .filter(|(revision, _)| revision.epoch == changed.revision.epoch);
                    let at = shown.map_or(event.at, |(_, at)| event.at.min(*at));
                    terms.find_first(at, changed.revision);
                }
                _ => {}
            }
        }
        terms
    }

    fn stand(
        &mut self,
        key: &'h [u8],
        created: Revision,
        lease: i64,
        owners: &BTreeMap<&'h [u8], &'h Process>,
        event: usize,
    ) {
        if !self
            .all
            .iter()
            .any(|term| term.key == key && term.created == created)
        {
            self.all.push(Term {
                key,
                created,
                lease,
                process: owners.get(key).copied(),
                event,
                first: None,
                ended: None,
                is_lost: false,
            });
        }
    }

    fn end(&mut self, key: &[u8], at: At, event: usize) {
        for term in self
            .all
            .iter_mut()
            .filter(|term| term.key == key && term.ended.is_none())
        {
            term.ended = Some((at, event));
        }
    }

    /// A restore ends every candidacy, and begins again those whose keys the snapshot has.
    fn restore(&mut self, records: &Records<'h>, epoch: u32, at: At, event: usize) {
        for term in self.all.iter_mut().filter(|term| term.ended.is_none()) {
            term.ended = Some((at, event));
            term.is_lost = true;
        }
        let begin = Revision {
            epoch,
            revision: records.snapshot(epoch).unwrap_or(0),
        };
        let owners = owners(records);
        for (key, version) in records.range_at(&records.keys.candidates(), begin) {
            let created = Revision {
                epoch,
                revision: version.created,
            };
            self.stand(key, created, version.lease, &owners, version.event);
        }
        self.find_first(at, begin);
    }

    fn find_first(&mut self, at: At, revision: Revision) {
        let standing = self.all.iter_mut().filter(|term| term.ended.is_none());
        if let Some(first) = standing.min_by_key(|term| term.created)
            && first.first.is_none()
        {
            first.first = Some((at, revision));
        }
    }

    /// The first key of the election just before a revision.
    pub fn leader_before(&self, records: &Records<'h>, revision: Revision) -> Option<(&'h [u8], i64)> {
        let range = records.keys.candidates();
        let before = super::records::before(revision);
        let standing = records.range_at(&range, before).into_iter();
        standing
            .map(|(key, version)| (key, version.created))
            .min_by_key(|(_, created)| *created)
    }

    /// Whether the process could believe at this instant that it leads, by the times of the harness and their slack.
    pub fn judge(&self, records: &Records<'h>, process: &Process, at: At) -> Result<&Term<'h>, Outside> {
        let slack = records.history.run.settings.slack;
        let begun = records.seen_by(at);
        let own = self.all.iter().filter(|term| term.process == Some(process));
        let mut why = Outside::NoCandidate;
        for term in own {
            let Some((first, _)) = term.first.filter(|(first, _)| *first <= begun) else {
                if records.history.events[term.event].at <= begun {
                    why = Outside::NotFirst(term.event);
                }
                continue;
            };
            let ended = term.ended.filter(|_| !term.is_lost);
            if let Some((ended, event)) = ended.filter(|(ended, _)| ended.plus_millis(slack) < at) {
                why = Outside::Ended(ended, event);
                continue;
            }
            match self.closed(records, term, process, first, at) {
                Some(closed) => why = Outside::Closed(closed, term.event),
                None => return Ok(term),
            }
        }
        Err(why)
    }

    /// Since when the window of a term is closed at this instant, if it is.
    fn closed(
        &self,
        records: &Records<'h>,
        term: &Term<'h>,
        process: &Process,
        first: At,
        at: At,
    ) -> Option<At> {
        let renewals = self
            .renewals
            .iter()
            .find(|((lease, by), _)| *lease == term.lease && *by == process)?
            .1;
        let ends = renewals
            .iter()
            .filter(|renewal| renewal.answered <= at.max(first));
        let end = ends.map(Renewal::end).max()?;
        (end.plus_millis(records.history.run.settings.slack) < at).then_some(end)
    }
}

impl Renewal {
    /// When the window closes that it opens: its sending, the TTL less the margin later. The margin is a fifth of the TTL,
    /// at least a second, of a short one a third.
    fn end(&self) -> At {
        let ttl = self.ttl * 1000;
        let margin = (ttl / 5).max((ttl / 3).min(1000));
        self.sent.plus_millis(ttl - margin)
    }
}

fn renewals<'h>(records: &Records<'h>) -> BTreeMap<(i64, &'h Process), Vec<Renewal>> {
    let mut renewals: BTreeMap<_, Vec<Renewal>> = BTreeMap::new();
    for (_, event) in records.events() {
        let What::Lease(call) = &event.what else { continue };
        let ttl = call.outcome.done().and_then(|ttl| u64::try_from(*ttl).ok());
        let is_renewal = matches!(call.op, LeaseOp::Grant | LeaseOp::KeepAlive);
        if let (true, Some(ttl), Some(answered)) = (is_renewal, ttl, call.answered) {
            renewals.entry((call.lease, &call.by)).or_default().push(Renewal {
                sent: event.at,
                answered,
                ttl,
            });
        }
    }
    renewals
}

/// When a process first had an answer of each revision, or of a later one.
fn shown(records: &Records<'_>) -> BTreeMap<Revision, At> {
    let mut shown: BTreeMap<Revision, At> = BTreeMap::new();
    for (_, _, call) in records.store_calls() {
        if let (Some(done), Some(answered)) = (call.outcome.done(), call.answered) {
            let at = shown.entry(done.revision).or_insert(answered);
            *at = answered.min(*at);
        }
    }
    let mut later: Option<(Revision, At)> = None;
    for (revision, at) in shown.iter_mut().rev() {
        if let Some((_, first)) = later.filter(|(later, _)| later.epoch == revision.epoch) {
            *at = first.min(*at);
        }
        later = Some((*revision, *at));
    }
    shown
}

/// The process that put each key of the election.
fn owners<'h>(records: &Records<'h>) -> BTreeMap<&'h [u8], &'h Process> {
    let range = records.keys.candidates();
    let mut owners = BTreeMap::new();
    for (_, _, call) in records.store_calls() {
        for key in call
            .then
            .iter()
            .filter(|op| matches!(op, crate::history::Op::Put { .. }))
        {
            if let Some(key) = written(key).filter(|key| range.contains(key)) {
                owners.insert(key, &call.by);
            }
        }
    }
    owners
}
