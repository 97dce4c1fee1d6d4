//! The connections of the server: not many, and none for long, so that those that ask for nothing keep no probe from its
//! answer, and take no file descriptor that the replica needs.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The most connections at a time. Probes and scrapers need a handful. One more makes the oldest one make way.
const MOST: usize = 128;

/// How long a connection lasts, whatever it asks for. Probes and scrapes take milliseconds, and each answer is the last of
/// its connection, so that this limit cuts none that was asked for at once.
const LASTS: Duration = Duration::from_secs(10);

/// Accepts connections.
pub(super) struct Connections {
    listener: TcpListener,
    /// The oldest first. Dropping one ends its connection.
    open: VecDeque<oneshot::Sender<()>>,
}

impl Connections {
    pub(super) fn new(listener: TcpListener) -> Self {
        let open = VecDeque::new();
        Self { listener, open }
    }
}

impl Listener for Connections {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        self.open.retain(|open| !open.is_closed());
        if self.open.len() >= MOST {
            self.open.pop_front();
        }
        let (open, closed) = oneshot::channel::<()>();
        self.open.push_back(open);
        let ends = Box::pin(async move { drop(timeout(LASTS, closed).await) });
        (
            Connection {
                stream,
                ends: Some(ends),
            },
            peer,
        )
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails once its time is over.
pub(super) struct Connection {
    stream: TcpStream,
    /// Resolves at the end; `None` after that.
    ends: Option<BoxFuture<'static, ()>>,
}

impl Connection {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.ends.take_if(|ends| ends.as_mut().poll(cx).is_ready());
        match self.ends {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        connection.check(cx)?;
        Pin::new(&mut connection.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let connection = self.get_mut();
        connection.check(cx)?;
        Pin::new(&mut connection.stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
