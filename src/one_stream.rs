//! A channel over one connection, made once.
//!
//! tonic's channel silently connects again whenever its connection has ended: a call could then reach a server that was
//! restarted, or another one, than the one that made the handshake. The channel here is given one stream and never another. A
//! call after the end of the stream fails without being sent.

use std::future::{Ready, ready};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use crate::causes;

/// A peer that vanished silently is noticed after about 25 s: silence, then three probes. The kernel sends them, not
/// HTTP/2 pings: servers of Go's gRPC hang up on a client that pings more often than every five minutes.
const SILENCE: Duration = Duration::from_secs(10);
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
const UNHEARD_MILLIS: u32 = 25_000;

/// How long an address of a name with several may be silent before the next one is tried. A connection takes the time of one way there
/// and back; a first packet that is lost is sent again after a second.
const SILENT_ADDRESS: Duration = Duration::from_millis(1500);

/// A channel over one stream.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Where calls are made.
    pub channel: Channel,
    /// Cancelled when either side closes the stream.
    pub ended: CancellationToken,
}

impl Connection {
    /// Makes a channel to `target` over this stream. The error is a sentence for people.
    pub async fn over<S>(target: Endpoint, stream: S) -> Result<Self, String>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let ended = CancellationToken::new();
        let watched = Watched {
            stream,
            _ended: ended.clone().drop_guard(),
        };
        let channel = target
            .connect_with_connector(Once(Some(TokioIo::new(watched))))
            .await
            .map_err(|error| causes::chain(&error))?;
        Ok(Self { channel, ended })
    }
}

/// Connects to `host:port`, so that the end of a silent peer is noticed. A name may have several addresses: the first one that is
/// connected to counts.
pub async fn dial(authority: &str) -> io::Result<TcpStream> {
    let stream = first_of(lookup_host(authority).await?.collect()).await?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, SILENCE)?;
    sockopt::set_tcp_keepintvl(&stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&stream, PROBES)?;
    // Probes are sent only in silence. An unacknowledged request is no silence, and the kernel would repeat it for a quarter
    // of an hour.
    sockopt::set_tcp_user_timeout(&stream, UNHEARD_MILLIS)?;
    Ok(stream)
}

/// Connects to one address after the other. The caller limits the whole, and so the last one; one that is silent before it leaves time
/// for the next.
async fn first_of(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let last = addresses.last().copied();
    for address in addresses {
        let connecting = TcpStream::connect(address);
        let connected = match Some(address) == last {
            true => connecting.await,
            false => timeout(SILENT_ADDRESS, connecting)
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        };
        match connected {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// A connector that has one stream.
struct Once<S>(Option<S>);

/// The connector has no stream left.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the connection has ended")]
struct Ended;

impl<S> Service<Uri> for Once<S> {
    type Response = S;
    type Error = Ended;
    type Future = Ready<Result<S, Ended>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        ready(self.0.take().ok_or(Ended))
    }
}

/// A stream that reports its end: tonic drops it when either side has closed it.
struct Watched<S> {
    stream: S,
    _ended: DropGuard,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways: in silence, and with an unacknowledged request.
    #[tokio::test]
    async fn a_peer_that_vanishes_is_noticed_after_the_same_time_in_silence_and_in_a_call() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stream = dial(&address).await.unwrap();
        let unheard = sockopt::tcp_user_timeout(&stream).unwrap();
        assert_eq!(
            u128::from(unheard),
            (SILENCE + PROBE_INTERVAL * PROBES).as_millis()
        );
        assert!(sockopt::socket_keepalive(&stream).unwrap());
    }

    #[tokio::test]
    async fn a_name_with_an_address_that_is_silent_leads_to_its_next_one() {
        // Its queue has room for one connection, and the kernel drops what comes then.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let silent = listener.local_addr().unwrap();
        let _in_its_queue = TcpStream::connect(silent).await.unwrap();
        let answers = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let answers = answers.local_addr().unwrap();
        let stream = first_of(vec![silent, answers]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), answers);
        assert!(first_of(Vec::new()).await.is_err());
    }
}
