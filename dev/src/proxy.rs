//! A TCP proxy in front of a server, whose network can be made to fail while it runs, and whose bytes can be listened to.

#![expect(
    clippy::unwrap_used,
    reason = "it stands in for a network: where the machine cannot give it a port or a thread, no run makes sense"
)]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

mod cuts;

pub use cuts::Cut;
use cuts::{Cuts, Direction, Scan};

/// What the network does to every connection, those that are open and those that come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Works.
    Passes,
    /// Each piece arrives this much later.
    Delays(Duration),
    /// Nothing arrives in either direction, and no side gets an error. What was on its way arrives when the
    /// network works again, as TCP would send it once more.
    BlackHole,
    /// Requests arrive, replies do not.
    LosesReplies,
    /// Replies arrive, requests do not.
    LosesRequests,
    /// Connections are reset, new ones as soon as they are made.
    Resets,
    /// There is no proxy any more: it has ended, and with it everything.
    Gone,
}

/// What a listener hears of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A client connected. It is heard first, and once.
    Accepted {
        /// The address of the client.
        from: SocketAddr,
        /// The address of the proxy.
        at: SocketAddr,
    },
    /// The client sent these bytes. Whether they arrive is up to the network.
    Requested,
    /// The server sent these bytes.
    Replied,
    /// The client was given these bytes of the server's.
    Delivered,
    /// The connection is over.
    Ended,
}

/// Called with the number of the connection, from 0 on.
pub type Listener = Arc<dyn Fn(u64, Heard, &[u8]) + Send + Sync>;

/// A proxy that runs on a thread of its own, so that a test that blocks does not hold it up. Ends when dropped.
///
/// # Panics
/// Where the machine has no free port, thread or file descriptor for it.
#[derive(Debug)]
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    scheme: &'static str,
    network: watch::Sender<Cuts>,
    target: watch::Sender<SocketAddr>,
    requested: Arc<AtomicU64>,
    accepted: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// In front of a port of 127.0.0.1; the network works.
    pub fn start(port: u16) -> Self {
        Self::start_with(port, false, Arc::new(|_, _, _| ()))
    }

    /// In front of the port at which a member of etcd is reached by the others, in clear text. It knows from which member a
    /// connection is, once that has sent its first request.
    pub fn between_members(port: u16) -> Self {
        Self::start_with(port, true, Arc::new(|_, _, _| ()))
    }

    /// The same with a listener, which is called on the thread of the proxy and must not block.
    pub fn heard_by(url: &str, listener: Listener) -> Self {
        Self::start_with(port_of(url), false, listener)
    }

    fn start_with(port: u16, knows_sources: bool, heard: Listener) -> Self {
        let (target, leads_to) = watch::channel(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (network, seen) = watch::channel(Cuts::default());
        let (requested, accepted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let counters = (requested.clone(), accepted.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(serve(listener, leads_to, seen, counters, knows_sources, heard));
        });
        Self {
            address,
            scheme: "http",
            network,
            target,
            requested,
            accepted,
            thread: Some(thread),
        }
    }

    /// In front of a client URL such as etcd's.
    pub fn in_front_of(url: &str) -> Self {
        let mut proxy = Self::start(port_of(url));
        if url.starts_with("https:") {
            proxy.scheme = "https";
        }
        proxy
    }

    /// New connections lead to this client URL from now on.
    pub fn lead_to(&self, url: &str) {
        self.target
            .send_replace(SocketAddr::from((Ipv4Addr::LOCALHOST, port_of(url))));
    }

    /// Its URL, with the scheme of the one that it is in front of.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Changes what the network does, at once and for all connections.
    pub fn set(&self, network: Network) {
        self.cut([Cut { from: None, network }]);
    }

    /// The same for the connections of some clients each.
    pub fn cut(&self, cuts: impl IntoIterator<Item = Cut>) {
        self.network.send_replace(Cuts(cuts.into_iter().collect()));
    }

    /// Bytes that clients sent and the server was given.
    pub fn requested_bytes(&self) -> u64 {
        self.requested.load(Ordering::SeqCst)
    }

    /// Connections that clients have made so far.
    pub fn accepted_connections(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }
}

fn port_of(url: &str) -> u16 {
    let port = url.rsplit(':').next().and_then(|port| port.parse().ok());
    port.unwrap_or_else(|| panic!("no port in {url}"))
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Network::Gone);
        if let Some(thread) = self.thread.take() {
            // A panic of the proxy must not go unnoticed, nor hide the panic of the test.
            if thread.join().is_err() && !std::thread::panicking() {
                panic!("the proxy panicked");
            }
        }
    }
}

type Counters = (Arc<AtomicU64>, Arc<AtomicU64>);

async fn serve(
    listener: std::net::TcpListener,
    target: watch::Receiver<SocketAddr>,
    mut network: watch::Receiver<Cuts>,
    (requested, accepted): Counters,
    knows_sources: bool,
    heard: Listener,
) {
    let listener = TcpListener::from_std(listener).unwrap();
    let at = listener.local_addr().unwrap();
    let mut connections = JoinSet::new();
    let gone = network.clone();
    loop {
        tokio::select! {
            _ = network.wait_for(Cuts::is_gone) => return,
            Some(ended) = connections.join_next() => ended.unwrap(),
            connection = listener.accept() => {
                let (client, from) = connection.unwrap();
                let number = accepted.fetch_add(1, Ordering::SeqCst);
                heard(number, Heard::Accepted { from, at }, &[]);
                let (target, heard) = (*target.borrow(), heard.clone());
                let hear = move |what, bytes: &[u8]| heard(number, what, bytes);
                let source = Source::new(knows_sources);
                connections.spawn(connect(client, target, gone.clone(), requested.clone(), source, hear));
            }
        }
    }
}

/// From which member of etcd a connection is, as far as that is known.
#[derive(Clone)]
struct Source {
    /// 0: not known, or of no interest.
    member: Arc<AtomicU64>,
    is_wanted: bool,
}

impl Source {
    fn new(is_wanted: bool) -> Self {
        Self {
            member: Arc::default(),
            is_wanted,
        }
    }

    fn id(&self) -> u64 {
        self.member.load(Ordering::SeqCst)
    }

    fn look(&self, scan: &mut Scan, piece: &[u8]) {
        if self.is_wanted
            && self.id() == 0
            && let Some(member) = scan.next(piece)
        {
            self.member.store(member, Ordering::SeqCst);
        }
    }
}

/// One client's connection, until it ends or is reset.
async fn connect(
    client: TcpStream,
    target: SocketAddr,
    mut network: watch::Receiver<Cuts>,
    requested: Arc<AtomicU64>,
    source: Source,
    hear: impl Fn(Heard, &[u8]),
) {
    // A server that is down: its refusal cannot be passed on, a reset is the nearest.
    let is_reset = network.borrow().resets(source.id());
    let server = match is_reset {
        true => None,
        false => TcpStream::connect(target).await.ok(),
    };
    let Some(server) = server else {
        let _ = client.set_zero_linger();
        return;
    };
    // Delays must come from the setting alone.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (mut client_in, mut client_out) = client.into_split();
    let (mut server_in, mut server_out) = server.into_split();
    let requests = pump(
        &mut client_in,
        &mut server_out,
        (Direction::Request, source.clone()),
        network.clone(),
        Some(requested),
        &hear,
    );
    let replies = pump(
        &mut server_in,
        &mut client_out,
        (Direction::Reply, source.clone()),
        network.clone(),
        None,
        &hear,
    );
    tokio::select! {
        _ = network.wait_for(|cuts| cuts.resets(source.id())) => {
            for end in [client_out, server_out] {
                let _ = end.as_ref().set_zero_linger();
                // Dropping it would announce an orderly end first.
                end.forget();
            }
        }
        ((), ()) = async { tokio::join!(requests, replies) } => {}
    }
    hear(Heard::Ended, &[]);
}

impl Direction {
    fn heard(self) -> Heard {
        match self {
            Self::Request => Heard::Requested,
            Self::Reply => Heard::Replied,
        }
    }
}

/// Carries bytes one way until the sender closes, then closes the other side. Pieces that follow each other are delayed at the
/// same time, as on a long way.
async fn pump(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    (direction, source): (Direction, Source),
    mut network: watch::Receiver<Cuts>,
    count: Option<Arc<AtomicU64>>,
    hear: impl Fn(Heard, &[u8]),
) {
    let (sender, mut on_the_way) = mpsc::unbounded_channel();
    let state = network.clone();
    let hear = &hear;
    let of = source.clone();
    let reading = async move {
        let mut buffer = vec![0; 64 * 1024];
        let mut scan = Scan::default();
        loop {
            let read = from.read(&mut buffer).await.unwrap_or(0);
            hear(direction.heard(), &buffer[..read]);
            if direction == Direction::Request {
                of.look(&mut scan, &buffer[..read]);
            }
            let delay = state.borrow().delay(of.id());
            // An end of the connection travels through the network like anything else.
            let _ = sender.send((Instant::now() + delay, buffer[..read].to_vec()));
            if read == 0 {
                return;
            }
        }
    };
    let passes = |cuts: &Cuts| cuts.passes(source.id(), direction);
    let writing = async move {
        while let Some((due, piece)) = on_the_way.recv().await {
            tokio::time::sleep_until(due).await;
            if network.wait_for(passes).await.is_err() {
                return;
            }
            if piece.is_empty() {
                let _ = to.shutdown().await;
                return;
            }
            if to.write_all(&piece).await.is_err() {
                return;
            }
            if direction == Direction::Reply {
                hear(Heard::Delivered, &piece);
            }
            if let Some(count) = &count {
                count.fetch_add(piece.len() as u64, Ordering::SeqCst);
            }
        }
    };
    let reading = async {
        reading.await;
        // Its last piece is on the way.
        std::future::pending().await
    };
    tokio::select! {
        () = writing => {}
        () = reading => {}
    }
}
