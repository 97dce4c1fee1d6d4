//! The connections of the server: not many, and none for long, so that those that ask for nothing keep no probe from its
//! answer, and take no file descriptor that the replica needs. Those of the viewers of the status page last longer, and are counted
//! by themselves: however many there are, a probe finds as much room as before.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::net::{TcpListener, TcpStream};

use super::stalled::Stalled;
use crate::limit::{Limit, Limited, Stay};

/// The most connections at a time that are not those of viewers. Probes and scrapers need a handful; but as many as there can be
/// viewers come back in one moment after a restart, and none of them may make way before it is answered.
const MOST: usize = 256;

/// How long a connection lasts, whatever it asks for. Probes and scrapes take milliseconds, and each answer is the last of
/// its connection, so that this limit cuts none that was asked for at once.
const LASTS: Duration = Duration::from_secs(10);

/// A client that takes nothing of its answer for this long has its connection ended: one that reads takes something within a few
/// round trips, also over a slow link.
const STALLS: Duration = Duration::from_secs(30);

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
    type Io = Limited<Stalled<TcpStream>>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        (self.limit.admit(Stalled::new(stream, STALLS)), peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// What a handler knows of the connection of its request.
#[derive(Clone)]
pub(super) struct OfConnection {
    /// Lets it last longer.
    pub stay: Stay,
    /// Whether it came over a loopback address. One whose address is not known counts as such.
    pub is_local: bool,
}

impl Connected<IncomingStream<'_, Connections>> for OfConnection {
    fn connect_info(stream: IncomingStream<'_, Connections>) -> Self {
        let local = stream.io().get_ref().get_ref().local_addr();
        Self {
            stay: stream.io().stay(),
            is_local: local.map_or(true, |local| local.ip().to_canonical().is_loopback()),
        }
    }
}
