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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tracing::{debug, warn};

use super::connections::{Connections, Limits, Slot};
use super::peer::Peer;
use super::trust::KnownTrust;
use crate::limit::Limited;
use crate::metrics::{Metrics, Outcome};
use crate::retry::Delays;

/// The limit of a handshake, which takes two round trips.
const LIMIT: Duration = Duration::from_secs(5);

/// The most handshakes at a time. One more makes the oldest make way: a handshake takes milliseconds, so that clients that hang
/// are the oldest.
const MOST: usize = 256;

/// Accepts connections of one listener.
pub struct Acceptor {
    listener: TcpListener,
    trust: KnownTrust,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, Peer)>>,
    /// Those that are open, the oldest first.
    open: VecDeque<AbortHandle>,
    connections: Arc<Connections>,
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
            connections: Arc::new(Connections::new(Limits::USUAL)),
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

    fn admit(&self, stream: TlsStream<TcpStream>, peer: Peer) -> Connection {
        let (slot, ends) = self.connections.admit();
        Connection {
            stream: Limited::until(stream, ends),
            client: Client { peer, slot },
        }
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

/// The other side of a connection. Clones are the same.
#[derive(Clone)]
pub struct Client {
    /// What it has shown.
    pub peer: Peer,
    /// Its place among the connections.
    pub slot: Slot,
}

/// A connection, and its other side.
pub struct Connection {
    stream: Limited<TlsStream<TcpStream>>,
    client: Client,
}

impl Connected for Connection {
    type ConnectInfo = Client;

    fn connect_info(&self) -> Client {
        self.client.clone()
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
