//! Lines for a stream of this process, written by a thread of its own. Adding a line never waits and never fails: a
//! pipe that its reader does not empty, a full disk and a closed stream cost lines, and nothing else.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that wait for the stream. A burst of the log fits; memory stays bounded at about a megabyte.
const QUEUE: usize = 4096;

/// How long a process that aborts waits for its last line. Nothing may hold an abort up for longer.
const ABORT_LIMIT: Duration = Duration::from_millis(100);

/// Between two looks whether a full queue has room again.
const LOOK: Duration = Duration::from_millis(1);

/// The end of a queue of lines.
#[derive(Clone, Debug)]
pub struct Lines {
    queue: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
    is_json: Arc<AtomicBool>,
}

enum Entry {
    Line(Vec<u8>),
    /// Everything before it is written.
    Flush(SyncSender<()>),
}

/// The lines of standard error: the log, and what commands say beside their output.
pub fn stderr() -> &'static Lines {
    static STDERR: LazyLock<Lines> = LazyLock::new(|| Lines::to(io::stderr()));
    &STDERR
}

/// Aborts the process, and says why on standard error if that takes the line in time.
pub fn abort(reason: impl Display) -> ! {
    abort_within(ABORT_LIMIT, reason)
}

/// Aborts the process, and says why on standard error if that takes the line within `limit`.
pub fn abort_within(limit: Duration, reason: impl Display) -> ! {
    stderr().line(reason);
    stderr().flush(limit);
    std::process::abort();
}

impl Lines {
    /// Lines that a thread writes to `stream`.
    pub fn to(stream: impl Write + Send + 'static) -> Self {
        let (queue, entries) = sync_channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let is_json = Arc::new(AtomicBool::new(false));
        let (counter, json) = (dropped.clone(), is_json.clone());
        let writer = thread::Builder::new().name("lines".to_owned());
        // Without the thread every line is dropped: a process does not end for its log.
        drop(writer.spawn(move || write(stream, &entries, &counter, &json)));
        Self {
            queue,
            dropped,
            is_json,
        }
    }

    /// Says from now on in JSON, as the lines themselves are, how many lines are missing.
    pub fn in_json(&self) {
        self.is_json.store(true, Ordering::Relaxed);
    }

    /// Adds a line, which this completes with a line end.
    pub fn line(&self, text: impl Display) {
        self.add(format!("{text}\n").into_bytes());
    }

    fn add(&self, line: Vec<u8>) {
        if self.queue.try_send(Entry::Line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until the lines so far are written, at most for `limit`.
    pub fn flush(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let (done, written) = sync_channel(1);
        let mut entry = Entry::Flush(done);
        while let Err(error) = self.queue.try_send(entry) {
            entry = match error {
                TrySendError::Full(entry) if Instant::now() < deadline => entry,
                TrySendError::Full(_) | TrySendError::Disconnected(_) => return,
            };
            thread::sleep(LOOK);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        // Either way the caller goes on.
        let _ = written.recv_timeout(left);
    }
}

/// One line of the log, which `tracing` hands over whole.
impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.add(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write(mut stream: impl Write, entries: &Receiver<Entry>, dropped: &AtomicU64, is_json: &AtomicBool) {
    while let Ok(entry) = entries.recv() {
        match entry {
            Entry::Flush(done) => drop(done.try_send(())),
            Entry::Line(line) => {
                let lost = dropped.swap(0, Ordering::Relaxed);
                let written = report(&mut stream, lost, is_json.load(Ordering::Relaxed)).and_then(|()| {
                    let written = stream.write_all(&line).and_then(|()| stream.flush());
                    written.map_err(|_| 1)
                });
                if let Err(lost) = written {
                    dropped.fetch_add(lost, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Says how many lines were lost before the next one.
///
/// # Errors
/// The number of lines that are lost now, with the next one, because the stream takes nothing.
fn report(stream: &mut impl Write, lost: u64, is_json: bool) -> Result<(), u64> {
    if lost == 0 {
        return Ok(());
    }
    let what = if lost == 1 { "line is" } else { "lines are" };
    let mut line = format!("{lost} {what} missing here: the stream did not take them");
    if is_json {
        // The fields that the log's own lines have.
        let timestamp = jiff::Timestamp::now().to_string();
        let fields = serde_json::json!({
            "timestamp": timestamp, "level": "WARN", "message": line, "target": module_path!(),
        });
        line = fields.to_string();
    }
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(|_| lost + 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// More lines than the queue holds.
    const GIVEN: usize = 3 * QUEUE;

    /// A stream that fails, blocks or takes lines as the test says.
    #[derive(Clone, Default)]
    struct Stream {
        taken: Arc<Mutex<String>>,
        full: Arc<Mutex<bool>>,
    }

    impl Write for Stream {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if *self.full.lock().unwrap() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.taken
                .lock()
                .unwrap()
                .push_str(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_in_their_order() {
        let stream = Stream::default();
        let lines = Lines::to(stream.clone());
        lines.line("one");
        (&lines).write_all(b"two\n").unwrap();
        lines.flush(LIMIT);
        assert_eq!(*stream.taken.lock().unwrap(), "one\ntwo\n");
    }

    #[test]
    fn a_stream_that_failed_says_how_many_lines_are_missing_once_it_takes_lines_again() {
        let stream = Stream::default();
        let lines = Lines::to(stream.clone());
        *stream.full.lock().unwrap() = true;
        lines.line("lost");
        lines.line("lost as well");
        lines.flush(LIMIT);
        *stream.full.lock().unwrap() = false;
        lines.line("back");
        lines.flush(LIMIT);
        assert_eq!(
            *stream.taken.lock().unwrap(),
            "2 lines are missing here: the stream did not take them\nback\n"
        );
    }

    #[test]
    fn in_a_log_of_json_the_line_about_missing_ones_is_json_too() {
        let stream = Stream::default();
        let lines = Lines::to(stream.clone());
        lines.in_json();
        *stream.full.lock().unwrap() = true;
        lines.line("lost");
        lines.flush(LIMIT);
        *stream.full.lock().unwrap() = false;
        lines.line("{}");
        lines.flush(LIMIT);
        let taken = stream.taken.lock().unwrap().clone();
        let line: serde_json::Value = serde_json::from_str(taken.lines().next().unwrap()).unwrap();
        assert_eq!(line["level"], "WARN");
        assert_eq!(
            line["message"],
            "1 line is missing here: the stream did not take them"
        );
    }

    #[test]
    fn a_stream_that_blocks_holds_up_neither_a_line_nor_a_flush() {
        let stream = Stream::default();
        let lines = Lines::to(stream.clone());
        let blocked = stream.full.lock().unwrap();
        let (done, ended) = mpsc::channel();
        let other = lines.clone();
        thread::spawn(move || {
            (0..GIVEN).for_each(|number| other.line(number));
            other.flush(Duration::from_millis(10));
            done.send(()).unwrap();
        });
        ended
            .recv_timeout(LIMIT)
            .expect("a line or a flush waits for the stream");
        drop(blocked);
        lines.flush(LIMIT);
        lines.line("last");
        lines.flush(LIMIT);
        let taken = stream.taken.lock().unwrap();
        assert!(taken.ends_with("last\n"), "{taken}");
        // The thread may begin late, so that it reports more than once.
        let (reports, numbers): (Vec<_>, Vec<_>) = taken
            .lines()
            .filter(|line| *line != "last")
            .partition(|line| line.contains("missing here"));
        let missing = reports
            .iter()
            .map(|report| report.split(' ').next().unwrap().parse::<usize>().unwrap());
        assert_eq!(numbers.len() + missing.sum::<usize>(), GIVEN);
        let numbers: Vec<usize> = numbers.iter().map(|number| number.parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        assert!(!reports.is_empty());
    }
}
