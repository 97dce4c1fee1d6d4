//! A limit on connections: so many at a time, and none for longer than its time.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Counts the connections of one kind. One more than the most makes the oldest one make way.
pub struct Limit {
    most: usize,
    lasts: Duration,
    /// The oldest first. Dropping one ends its connection.
    open: VecDeque<oneshot::Sender<()>>,
}

impl Limit {
    /// At most so many at a time, each for at most so long.
    pub fn new(most: usize, lasts: Duration) -> Self {
        let open = VecDeque::new();
        Self { most, lasts, open }
    }

    /// Takes in a connection.
    pub fn admit<S>(&mut self, stream: S) -> Limited<S> {
        self.open.retain(|open| !open.is_closed());
        if self.open.len() >= self.most {
            self.open.pop_front();
        }
        let (open, closed) = oneshot::channel::<()>();
        self.open.push_back(open);
        let lasts = self.lasts;
        let ends = Box::pin(async move { drop(timeout(lasts, closed).await) });
        Limited {
            stream,
            ends: Some(ends),
        }
    }
}

/// A connection that fails once its time is over.
pub struct Limited<S> {
    stream: S,
    /// Resolves at the end; `None` after that.
    ends: Option<BoxFuture<'static, ()>>,
}

impl<S> Limited<S> {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.ends.take_if(|ends| ends.as_mut().poll(cx).is_ready());
        match self.ends {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Limited<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        connection.check(cx)?;
        Pin::new(&mut connection.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Limited<S> {
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
