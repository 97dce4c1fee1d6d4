//! The signals that ask this process to end.

use std::future::poll_fn;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::Failure;

/// A signal, with the name that people know it by.
pub type Named = (&'static str, SignalKind);

/// A person presses Ctrl-C in a terminal.
pub const INTERRUPT: Named = ("Ctrl-C", SignalKind::interrupt());
/// A supervisor such as the kubelet or systemd ends the process.
pub const TERMINATE: Named = ("SIGTERM", SignalKind::terminate());
/// The terminal was closed.
pub const HANGUP: Named = ("SIGHUP", SignalKind::hangup());

/// The signals at which a process stops in order. Two of them have no meaning here, but a log rotation or a person may send
/// them, and by default they would end the process with its lease. SIGQUIT is left for a process that does not stop.
pub const ENDING: [Named; 5] = [
    TERMINATE,
    INTERRUPT,
    HANGUP,
    ("SIGUSR1", SignalKind::user_defined1()),
    ("SIGUSR2", SignalKind::user_defined2()),
];

/// Whether the process ignores this signal (proc(5)).
fn ignores((_, kind): Named) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

/// Receives some signals, from [`Signals::listen`] on.
pub struct Signals(Vec<(&'static str, Signal)>);

impl Signals {
    /// Receives these signals from now on. They no longer end the process by themselves. A [`HANGUP`] that the process
    /// was started to ignore stays ignored: `nohup` asks for that.
    ///
    /// # Errors
    /// A failure if the system does not allow it.
    pub fn listen(signals: &[Named]) -> Result<Self, Failure> {
        let listen = |(name, kind): &Named| Ok((*name, signal(*kind)?));
        let wanted = signals
            .iter()
            .filter(|signal| **signal != HANGUP || !ignores(HANGUP));
        let listening: std::io::Result<_> = wanted.map(listen).collect();
        listening
            .map(Self)
            .map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")))
    }

    /// Waits for the next signal and returns its name.
    pub async fn next(&mut self) -> &'static str {
        poll_fn(|context| {
            for (name, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*name);
                }
            }
            Poll::Pending
        })
        .await
    }
}
