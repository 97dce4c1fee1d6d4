//! The connections of the server: not many, and none for long, so that those that ask for nothing keep no probe from its
//! answer, and take no file descriptor that the replica needs.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};

use super::limit::{Limit, Limited};

/// The most connections at a time. Probes and scrapers need a handful.
const MOST: usize = 128;

/// How long a connection lasts, whatever it asks for. Probes and scrapes take milliseconds, and each answer is the last of
/// its connection, so that this limit cuts none that was asked for at once.
const LASTS: Duration = Duration::from_secs(10);

/// Accepts connections.
pub(super) struct Connections {
    listener: TcpListener,
    limit: Limit,
}

impl Connections {
    pub(super) fn new(listener: TcpListener) -> Self {
        let limit = Limit::new(MOST, LASTS);
        Self { listener, limit }
    }
}

impl Listener for Connections {
    type Io = Limited<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Limited<TcpStream>, SocketAddr) {
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        (self.limit.admit(stream), peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
