//! A limit on connections: so many at a time, and none for longer than its time.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
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
        let (stay, stays) = oneshot::channel::<BoxFuture<'static, ()>>();
        let ends = Box::pin(async move {
            let longer = tokio::select! {
                // Its time is over, or it has made way.
                _ = timeout(lasts, closed) => return,
                // From here on it counts no more: `closed` is dropped.
                Ok(longer) = stays => longer,
            };
            longer.await;
        });
        Limited {
            stay: Stay(Arc::new(Mutex::new(Some(stay)))),
            ..Limited::until(stream, ends)
        }
    }
}

/// Lets one connection last longer than the limit says. Who uses it counts these connections by another limit.
#[derive(Clone, Default)]
pub struct Stay(Arc<Mutex<Option<Longer>>>);

/// Takes the future that ends the connection instead of its time.
type Longer = oneshot::Sender<BoxFuture<'static, ()>>;

impl Stay {
    /// Lets the connection last until this future has resolved, and takes it out of the count. Works once.
    pub fn until(&self, ends: BoxFuture<'static, ()>) {
        let stay = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(stay) = stay {
            // A connection that has ended stays no longer.
            let _ = stay.send(ends);
        }
    }
}

/// A connection that fails once its time is over.
pub struct Limited<S> {
    stream: S,
    /// Resolves at the end; `None` after that.
    ends: Option<BoxFuture<'static, ()>>,
    stay: Stay,
}

impl<S> Limited<S> {
    /// A connection that fails once the future has resolved.
    pub fn until(stream: S, ends: BoxFuture<'static, ()>) -> Self {
        Self {
            stream,
            ends: Some(ends),
            stay: Stay::default(),
        }
    }

    /// The connection itself.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Lets the connection last longer, where a [`Limit`] has admitted it.
    pub fn stay(&self) -> Stay {
        self.stay.clone()
    }

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

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let connection = self.get_mut();
        connection.check(cx)?;
        Pin::new(&mut connection.stream).poll_write_vectored(cx, bufs)
    }

    // Without this a server copies what it sends, once for each connection.
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
    use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};

    use super::*;

    const LASTS: Duration = Duration::from_secs(1);

    /// A connection with its other end, which must stay open.
    fn admitted(limit: &mut Limit) -> (Limited<DuplexStream>, DuplexStream) {
        let (near, far) = duplex(16);
        (limit.admit(near), far)
    }

    async fn has_ended(connection: &mut Limited<DuplexStream>) -> bool {
        connection.read(&mut [0]).now_or_never().is_some()
    }

    #[tokio::test]
    async fn a_connection_that_may_stay_outlasts_the_others_and_makes_way_for_none() {
        let mut limit = Limit::new(2, LASTS);
        let (mut staying, _one) = admitted(&mut limit);
        staying.stay().until(std::future::pending().boxed());
        assert!(!has_ended(&mut staying).await);
        let mut others: Vec<_> = (0..4).map(|_| admitted(&mut limit)).collect();
        assert!(has_ended(&mut others[0].0).await && has_ended(&mut others[1].0).await);
        assert!(!has_ended(&mut others[3].0).await);
        // The time of the last one is over later than that of the first.
        let error = others[3].0.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(!has_ended(&mut staying).await);
    }

    #[tokio::test]
    async fn a_connection_that_may_stay_ends_with_its_own_time() {
        let mut limit = Limit::new(2, Duration::from_secs(3600));
        let (mut staying, _other_end) = admitted(&mut limit);
        let (end, ended) = oneshot::channel::<()>();
        staying.stay().until(ended.map(drop).boxed());
        assert!(!has_ended(&mut staying).await);
        drop(end);
        let error = staying.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
