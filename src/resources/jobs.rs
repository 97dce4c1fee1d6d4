//! The calls that are under way, at most one a subject: an object to write, a kind to list.
//!
//! A pass waits for them only as long as they are answered. One that takes longer lingers: it keeps its subject, takes no
//! slot from others, and its result counts when it comes (INV-8). Jobs make progress only while they are polled, as part
//! of a pass or between two passes, inside the window (INV-3).

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep_until};

use crate::kube::ObjectRef;

/// Jobs of one kind that may linger at a time. Behind a webhook that hangs for a kind, further objects of the kind wait,
/// so that the server is not asked for more than it answers.
const LINGERING: usize = 4;

/// What a job is about.
pub(super) trait Subject: Clone + Eq + Hash + Send + 'static {
    /// Subjects of one kind, whose calls may hang together.
    type Kind: Eq + Hash;

    fn kind(&self) -> Self::Kind;
}

impl Subject for ObjectRef {
    type Kind = (String, String);

    fn kind(&self) -> Self::Kind {
        (self.group.clone(), self.kind.clone())
    }
}

/// A job that has ended.
pub(super) struct Ended<S, T> {
    pub(super) subject: S,
    pub(super) result: T,
}

struct Running {
    since: Instant,
    /// The last job of its subject lingered, so that nothing waits for this one.
    lingers: bool,
}

impl Running {
    fn lingers(&self, now: Instant, after: Duration) -> bool {
        self.lingers || now >= self.since + after
    }
}

/// Jobs that run, and jobs that wait for a slot.
pub(super) struct Jobs<S, T> {
    running: FuturesUnordered<BoxFuture<'static, Ended<S, T>>>,
    started: HashMap<S, Running>,
    waiting: VecDeque<(S, BoxFuture<'static, T>)>,
    /// Jobs that wait and whose subject is slow: they need no slot.
    lingerers: Vec<(S, BoxFuture<'static, T>)>,
    /// The subjects of `running`, `waiting` and `lingerers`.
    busy: HashSet<S>,
    /// The subjects whose last job lingered.
    slow: HashSet<S>,
    /// After this time a job lingers.
    lingers_after: Duration,
}

impl<S: Subject, T: Send + 'static> Jobs<S, T> {
    pub(super) fn new(lingers_after: Duration) -> Self {
        Self {
            running: FuturesUnordered::new(),
            started: HashMap::new(),
            waiting: VecDeque::new(),
            lingerers: Vec::new(),
            busy: HashSet::new(),
            slow: HashSet::new(),
            lingers_after,
        }
    }

    /// Whether a job of the subject runs or waits.
    pub(super) fn is_busy(&self, subject: &S) -> bool {
        self.busy.contains(subject)
    }

    /// Adds a job of a subject that is not busy.
    pub(super) fn add(&mut self, subject: S, job: impl Future<Output = T> + Send + 'static) {
        self.busy.insert(subject.clone());
        let job = (subject, job.boxed());
        match self.slow.contains(&job.0) {
            true => self.lingerers.push(job),
            false => self.waiting.push_back(job),
        }
    }

    /// Drops the jobs of these subjects that have not started, and returns their subjects.
    pub(super) fn withdraw(&mut self, is_meant: impl Fn(&S) -> bool) -> Vec<S> {
        let (started, busy) = (&self.started, &mut self.busy);
        let waits = |subject: &&S| is_meant(subject) && !started.contains_key(*subject);
        let withdrawn: Vec<S> = busy.iter().filter(waits).cloned().collect();
        for subject in &withdrawn {
            busy.remove(subject);
        }
        self.waiting.retain(|(subject, _)| busy.contains(subject));
        self.lingerers.retain(|(subject, _)| busy.contains(subject));
        withdrawn
    }

    /// Drops all jobs.
    pub(super) fn clear(&mut self) {
        self.running.clear();
        self.started.clear();
        self.waiting.clear();
        self.lingerers.clear();
        self.busy.clear();
    }

    /// The next job that ends; `None` once all that run linger and no other may start. `slots` jobs run at a time, those
    /// that linger not counted. Safe to cancel.
    pub(super) async fn next(&mut self, slots: usize) -> Option<Ended<S, T>> {
        loop {
            self.start(slots);
            let now = Instant::now();
            let young = self
                .started
                .values()
                .filter(|job| !job.lingers(now, self.lingers_after));
            let oldest = young.map(|job| job.since).min()?;
            tokio::select! {
                biased;
                ended = self.running.next() => return ended.map(|ended| self.end(ended)),
                () = sleep_until(oldest + self.lingers_after) => {}
            }
        }
    }

    /// The next job that ends, however long it takes. Never, if none runs. Safe to cancel.
    pub(super) async fn ended(&mut self, slots: usize) -> Ended<S, T> {
        self.start(slots);
        match self.running.next().await {
            Some(ended) => self.end(ended),
            None => std::future::pending().await,
        }
    }

    /// The job that has ended already, if one has.
    pub(super) fn try_next(&mut self) -> Option<Ended<S, T>> {
        let ended = self.running.next().now_or_never()??;
        Some(self.end(ended))
    }

    fn end(&mut self, ended: Ended<S, T>) -> Ended<S, T> {
        self.busy.remove(&ended.subject);
        if let Some(job) = self.started.remove(&ended.subject) {
            match Instant::now() >= job.since + self.lingers_after {
                true => self.slow.insert(ended.subject.clone()),
                false => self.slow.remove(&ended.subject),
            };
        }
        ended
    }

    /// Starts the jobs that wait, as far as there are slots.
    fn start(&mut self, slots: usize) {
        let now = Instant::now();
        let mut lingering: HashMap<S::Kind, usize> = HashMap::new();
        let mut free = slots;
        for (subject, job) in &self.started {
            match job.lingers(now, self.lingers_after) {
                true => *lingering.entry(subject.kind()).or_default() += 1,
                false => free = free.saturating_sub(1),
            }
        }
        for (subject, job) in std::mem::take(&mut self.lingerers) {
            let others = lingering.entry(subject.kind()).or_default();
            if *others < LINGERING {
                *others += 1;
                self.run(subject, job, now, true);
            } else {
                self.lingerers.push((subject, job));
            }
        }
        let mut held = Vec::new();
        // Ends with the free slots: what waits behind them may be the whole bundle.
        while free > 0
            && let Some((subject, job)) = self.waiting.pop_front()
        {
            let others = lingering.get(&subject.kind()).copied().unwrap_or_default();
            if others < LINGERING {
                free -= 1;
                self.run(subject, job, now, false);
            } else {
                held.push((subject, job));
            }
        }
        for job in held.into_iter().rev() {
            self.waiting.push_front(job);
        }
    }

    fn run(&mut self, subject: S, job: BoxFuture<'static, T>, since: Instant, lingers: bool) {
        self.started.insert(subject.clone(), Running { since, lingers });
        let job = job.map(|result| Ended { subject, result });
        self.running.push(job.boxed());
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;

    fn object(kind: &str, name: usize) -> ObjectRef {
        ObjectRef {
            group: String::new(),
            kind: kind.to_owned(),
            namespace: None,
            name: name.to_string(),
        }
    }

    async fn ends(jobs: &mut Jobs<ObjectRef, ()>, slots: usize) -> Vec<String> {
        let mut ended = Vec::new();
        while let Some(job) = jobs.next(slots).await {
            ended.push(job.subject.to_string());
        }
        ended
    }

    const LINGERS_AFTER: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn jobs_that_hang_keep_neither_slots_nor_waiters() {
        let mut jobs = Jobs::new(LINGERS_AFTER);
        for name in 0..64 {
            jobs.add(object("Hangs", name), pending());
        }
        jobs.add(object("Secret", 0), ready(()));
        assert_eq!(ends(&mut jobs, 2).await, ["Secret 0"]);
        assert!(jobs.started.len() <= LINGERING + 1, "{}", jobs.started.len());
        assert!(jobs.is_busy(&object("Hangs", 0)) && jobs.is_busy(&object("Hangs", 63)));
        assert!(!jobs.is_busy(&object("Secret", 0)));
    }

    #[tokio::test]
    async fn nothing_waits_for_an_object_whose_last_job_lingered() {
        let mut jobs = Jobs::new(LINGERS_AFTER);
        let (answer, answered) = oneshot::channel();
        jobs.add(object("A", 0), async { answered.await.unwrap() });
        let begun = Instant::now();
        assert_eq!(ends(&mut jobs, 2).await, [""; 0]);
        assert!(begun.elapsed() >= LINGERS_AFTER, "{:?}", begun.elapsed());
        assert!(jobs.try_next().is_none());
        answer.send(()).unwrap();
        assert_eq!(jobs.ended(2).await.subject, object("A", 0));

        jobs.lingers_after = Duration::from_secs(3600);
        jobs.add(object("A", 0), pending());
        let ended = timeout(Duration::from_secs(30), ends(&mut jobs, 2)).await;
        assert_eq!(ended.expect("the pass waits for it"), [""; 0]);
    }

    #[tokio::test]
    async fn a_job_that_ends_costs_the_same_however_many_wait() {
        let mut jobs = Jobs::new(Duration::from_secs(3600));
        let count = 20_000;
        for name in 0..count {
            jobs.add(object("ConfigMap", name), ready(()));
        }
        let begun = Instant::now();
        assert_eq!(ends(&mut jobs, 8).await.len(), count);
        // To look at all that wait after each one would be 200 million looks.
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}
