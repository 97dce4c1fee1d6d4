//! Signals that ask this process to end.

use std::future::poll_fn;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::Failure;

/// As a person calls it, and what the system does.
pub type Named = (&'static str, SignalKind);

/// Ctrl-C in a terminal.
pub const INTERRUPT: Named = ("Ctrl-C", SignalKind::interrupt());
/// What supervisors send.
pub const TERMINATE: Named = ("SIGTERM", SignalKind::terminate());
/// The terminal is gone.
pub const HANGUP: Named = ("SIGHUP", SignalKind::hangup());

/// Some signals, listened to from its making on.
pub struct Signals(Vec<(&'static str, Signal)>);

impl Signals {
    /// From now on these signals do not end the process by themselves.
    ///
    /// # Errors
    /// A failure if the system does not allow it.
    pub fn listen(signals: &[Named]) -> Result<Self, Failure> {
        let listen = |(name, kind): &Named| Ok((*name, signal(*kind)?));
        let listening: std::io::Result<_> = signals.iter().map(listen).collect();
        listening
            .map(Self)
            .map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")))
    }

    /// The name of the next one.
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
