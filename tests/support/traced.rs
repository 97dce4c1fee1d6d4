//! What is traced during a test.

use std::io;
use std::sync::{Arc, Mutex};

use tracing::Dispatch;
use tracing::dispatcher::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// Everything that this thread traces, at every level. A test with one thread gets the traces of its tasks, too.
pub struct Traced {
    text: Text,
    _guard: DefaultGuard,
    _second: Dispatch,
}

#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl Traced {
    /// From now on, until it is dropped.
    pub fn begin() -> Self {
        let text = Text::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(text.clone())
            .finish();
        // With a single subscriber in the process, tracing caches as disabled each call site that another test's thread reaches
        // first.
        let second = Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish());
        Self {
            _guard: tracing::dispatcher::set_default(&Dispatch::new(subscriber)),
            _second: second,
            text,
        }
    }

    /// What was traced so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.0.lock().unwrap()).into_owned()
    }
}

impl io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Text {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Whether a log has the traces of the library that carries every message, so that nothing more detailed can be logged.
pub fn traces_libraries(log: &str) -> bool {
    log.lines()
        .any(|line| line.contains("TRACE") && line.contains(" h2::"))
}
