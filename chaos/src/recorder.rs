//! Writes the history of a run while it happens.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, LineWriter};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::history::{At, Event, Life, Lived, Process, Role, Run, Signal, What, line};

/// How long after the end of a process a server may take in what the process had sent, in milliseconds. No id is given again so soon.
const LOGGED_LATE: u64 = 5_000;

/// The history of a run. Shared by everything that sees something of it.
pub struct Recorder {
    begun: Instant,
    /// The begin of the run in µs since 1970, for logs with times of the wall clock.
    begun_at: u64,
    file: Mutex<LineWriter<File>>,
    starts: Mutex<BTreeMap<String, Vec<At>>>,
    ids: Mutex<Vec<Id>>,
    epoch: AtomicU32,
}

/// The id of a process on this machine, for as long as it had that.
struct Id {
    id: i32,
    of: Process,
    since: At,
    until: Option<At>,
}

impl Recorder {
    /// Begins a history in this file with what is run.
    pub fn begin(file: &Path, run: &Run) -> io::Result<Self> {
        let mut file = LineWriter::new(File::create(file)?);
        line(&mut file, run)?;
        Ok(Self {
            begun: Instant::now(),
            begun_at: micros_now(),
            file: Mutex::new(file),
            starts: Mutex::default(),
            ids: Mutex::default(),
            epoch: AtomicU32::new(0),
        })
    }

    /// Now.
    pub fn now(&self) -> At {
        At(u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// An instant of the wall clock, in µs since 1970.
    pub fn at_wall(&self, micros: u64) -> At {
        At(micros.saturating_sub(self.begun_at))
    }

    /// Now, by the wall clock.
    #[cfg(test)]
    pub fn wall_now(&self) -> u64 {
        self.begun_at + self.now().0
    }

    /// Records something that began at this instant. A history that cannot be written is not worth a run.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn record(&self, at: At, what: What) {
        let written = line(&mut *lock(&self.file), &Event { at, what });
        assert!(written.is_ok(), "cannot write the history: {written:?}");
    }

    /// Records something that happens now.
    pub fn record_now(&self, what: What) {
        self.record(self.now(), what);
    }

    /// Records the start of what has this name.
    pub fn started(&self, name: &str, role: Role) {
        let at = self.now();
        lock(&self.starts).entry(name.to_owned()).or_default().push(at);
        self.lived(at, self.current(name), Life::Started(role));
    }

    /// Records a signal to what has this name.
    pub fn signalled(&self, name: &str, signal: Signal) {
        self.lived(self.now(), self.current(name), Life::Signalled(signal));
    }

    /// Notes the id on this machine of the last start of what has this name, so that its calls are known as its own.
    pub fn runs_as(&self, name: &str, id: Option<i32>) {
        let (of, since) = (self.current(name), self.now());
        let ids = id.map(|id| Id {
            id,
            of,
            since,
            until: None,
        });
        lock(&self.ids).extend(ids);
    }

    /// The processes that run, each with its id.
    pub fn running(&self) -> Vec<(i32, Process)> {
        let ids = lock(&self.ids);
        let running = ids.iter().filter(|id| id.until.is_none());
        running.map(|id| (id.id, id.of.clone())).collect()
    }

    /// The process that had this id at an instant. A call that is logged at the end of its caller, or just after it, is its own.
    pub fn with_id(&self, id: i32, at: At) -> Option<Process> {
        let ids = lock(&self.ids);
        let known = ids.iter().filter(|known| known.id == id && known.since <= at);
        let last = known.max_by_key(|known| known.since)?;
        let had_it = last
            .until
            .is_none_or(|until| at <= until.plus_millis(LOGGED_LATE));
        had_it.then(|| last.of.clone())
    }

    /// Records the end of what has this name.
    pub fn exited(&self, name: &str, code: Option<i32>) {
        let (of, now) = (self.current(name), self.now());
        for id in lock(&self.ids).iter_mut().filter(|id| id.of == of) {
            id.until.get_or_insert(now);
        }
        self.lived(self.now(), self.current(name), Life::Exited { code });
    }

    fn lived(&self, at: At, process: Process, life: Life) {
        self.record(at, What::Life(Lived { process, life }));
    }

    /// The last start of what has this name.
    pub fn current(&self, name: &str) -> Process {
        self.process_at(name, At(u64::MAX))
    }

    /// What of this name ran at this instant.
    pub fn process_at(&self, name: &str, at: At) -> Process {
        let starts = lock(&self.starts);
        let before = starts
            .get(name)
            .map_or(0, |starts| starts.iter().filter(|start| **start <= at).count());
        Process(format!("{name}#{}", before.max(1)))
    }

    /// How many restores of etcd were before.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Etcd is restored: what follows is of the next epoch, which begins at the revision of the snapshot.
    pub fn restored(&self, at: At, revision: i64) {
        let epoch = self.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        self.record(at, What::Restored { epoch, revision });
    }

    /// Says on stderr what the harness could not do as it should.
    pub fn trouble(&self, what: &str) {
        eprintln!("chaos: at {}: {what}", self.now());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn micros_now() -> u64 {
    // The clock is after 1970 and before the year 500,000.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
