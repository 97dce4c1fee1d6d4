//! A connection that ends once its other end has taken nothing for a while.
//!
//! A peer that is there and does not read fills the buffers of both machines. What is written then waits, for as long as the connection
//! lasts, and keeps its buffers and its place.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A connection whose writes fail once none of them went on for its time.
pub(super) struct Stalled<S> {
    stream: S,
    lasts: Duration,
    /// Resolves once the write that waits has waited for too long; `None` while none waits.
    ends: Option<Pin<Box<Sleep>>>,
}

impl<S> Stalled<S> {
    pub fn new(stream: S, lasts: Duration) -> Self {
        Self {
            stream,
            lasts,
            ends: None,
        }
    }

    /// The connection itself.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Judges how a write went, which has registered its own waker where it waits.
    fn judge<T>(&mut self, cx: &mut Context<'_>, went: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if went.is_ready() {
            self.ends = None;
            return went;
        }
        let lasts = self.lasts;
        let ends = self.ends.get_or_insert_with(|| Box::pin(sleep(lasts)));
        ready!(ends.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalled<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalled<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let connection = self.get_mut();
        let went = Pin::new(&mut connection.stream).poll_write(cx, buf);
        connection.judge(cx, went)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let connection = self.get_mut();
        let went = Pin::new(&mut connection.stream).poll_write_vectored(cx, bufs);
        connection.judge(cx, went)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// More than the buffers of both ends of a connection.
    const MUCH: usize = 64 << 20;

    #[tokio::test]
    async fn a_peer_that_does_not_read_ends_its_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (peer, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let _does_not_read = peer.unwrap();
        let mut connection = Stalled::new(accepted.unwrap().0, Duration::from_millis(200));
        let written = connection.write_all(&vec![0; MUCH]).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_write_that_goes_on_has_all_of_its_time_again() {
        let (near, mut far) = duplex(4);
        let mut connection = Stalled::new(near, Duration::from_secs(3600));
        connection.write_all(b"1234").await.unwrap();
        for _ in 0..3 {
            assert!(connection.write(b"5").now_or_never().is_none());
            assert!(connection.ends.is_some(), "it waits for the peer");
            far.read_exact(&mut [0]).await.unwrap();
            assert_eq!(connection.write(b"5").await.unwrap(), 1);
            assert!(connection.ends.is_none(), "the peer has read");
        }
    }
}
