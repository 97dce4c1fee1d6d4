//! Accepts connections, and makes the TLS handshakes of new ones beside each other: one that hangs delays none of the others.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use futures::stream::unfold;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tracing::{debug, warn};

use super::peer::Peer;
use super::trust::KnownTrust;
use crate::metrics::{Metrics, Outcome};
use crate::retry::Delays;
use crate::serve::limit::{Limit, Limited};

/// The limit of a handshake, which takes two round trips.
const LIMIT: Duration = Duration::from_secs(5);

/// The most handshakes at a time. One more makes the oldest make way: a handshake takes milliseconds, so that clients that hang
/// are the oldest.
const MOST: usize = 256;

/// Connections of nodes at a time, and how long one lasts: longer than any session on it, which ends by itself.
const NODES: (usize, Duration) = (8192, Duration::from_secs(2 * 3600));

/// The same for connections that have not proven to be a node's: to join and to wait for a certificate takes minutes.
const STRANGERS: (usize, Duration) = (1024, Duration::from_secs(600));

/// Accepts connections of one listener.
pub struct Acceptor {
    listener: TcpListener,
    trust: KnownTrust,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, Peer)>>,
    /// Those that are open, the oldest first.
    open: VecDeque<AbortHandle>,
    nodes: Limit,
    strangers: Limit,
    delays: Delays,
    /// Nothing is accepted before: the last attempt failed.
    rests_until: Instant,
    metrics: Metrics,
}

impl Acceptor {
    /// Accepts from this listener, with the TLS of the latest trust.
    pub fn new(listener: TcpListener, trust: KnownTrust, metrics: Metrics) -> Self {
        Self {
            listener,
            trust,
            handshakes: JoinSet::new(),
            open: VecDeque::new(),
            nodes: Limit::new(NODES.0, NODES.1),
            strangers: Limit::new(STRANGERS.0, STRANGERS.1),
            delays: Delays::etcd(),
            rests_until: Instant::now(),
            metrics,
        }
    }

    /// The connections whose handshake is complete. Never ends.
    pub fn connections(self) -> impl Stream<Item = Result<Connection, Infallible>> {
        unfold(self, async |mut acceptor| {
            let connection = acceptor.next().await;
            Some((Ok(connection), acceptor))
        })
    }

    async fn next(&mut self) -> Connection {
        loop {
            let (listener, rests_until) = (&self.listener, self.rests_until);
            let accepting = async {
                sleep_until(rests_until).await;
                listener.accept().await
            };
            tokio::select! {
                Some(ended) = self.handshakes.join_next() => {
                    // One that was aborted made way.
                    if let Ok(Some((stream, peer))) = ended {
                        return self.admit(stream, peer);
                    }
                }
                accepted = accepting => match accepted {
                    Ok((stream, _)) => {
                        self.delays.reset();
                        self.begin(stream);
                    }
                    // Of the process, such as too many open files, or of one connection that has ended already.
                    Err(error) => {
                        warn!("cannot accept a connection at the control port: {error}");
                        self.rests_until = Instant::now() + self.delays.next_delay();
                    }
                }
            }
        }
    }

    /// Lets strangers make way for each other, and never for them a node.
    fn admit(&mut self, stream: TlsStream<TcpStream>, peer: Peer) -> Connection {
        let trust = self.trust.borrow().clone();
        let is_node = trust.is_some_and(|trust| peer.prove(&trust, Timestamp::now()).is_ok());
        let limit = match is_node {
            true => &mut self.nodes,
            false => &mut self.strangers,
        };
        let stream = limit.admit(stream);
        Connection { stream, peer }
    }

    fn begin(&mut self, stream: TcpStream) {
        let Some(tls) = self.trust.borrow().as_ref().map(|trust| trust.tls.clone()) else {
            return count(&self.metrics, "not_ready");
        };
        self.open.retain(|handshake| !handshake.is_finished());
        if self.open.len() >= MOST
            && let Some(oldest) = self.open.pop_front()
        {
            oldest.abort();
            count(&self.metrics, "made_way");
        }
        let metrics = self.metrics.clone();
        let handshake = self.handshakes.spawn(async move {
            let (outcome, connection) = match timeout(LIMIT, handshake(tls, stream)).await {
                Ok(Ok(connection)) => ("done", Some(connection)),
                Ok(Err(error)) => {
                    debug!("a handshake at the control port failed: {error}");
                    ("failed", None)
                }
                Err(_) => ("timed_out", None),
            };
            count(&metrics, outcome);
            connection
        });
        self.open.push_back(handshake);
    }
}

fn count(metrics: &Metrics, result: &'static str) {
    metrics
        .control_handshakes
        .get_or_create(&Outcome { result })
        .inc();
}

async fn handshake(tls: Arc<ServerConfig>, stream: TcpStream) -> io::Result<(TlsStream<TcpStream>, Peer)> {
    // Answers are small, and awaited.
    stream.set_nodelay(true)?;
    let stream = TlsAcceptor::from(tls).accept(stream).await?;
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let peer = Peer::new(shown.iter().map(|certificate| certificate.clone().into_owned()));
    Ok((stream, peer))
}

/// A connection, and what the other side has shown.
pub struct Connection {
    stream: Limited<TlsStream<TcpStream>>,
    peer: Peer,
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
