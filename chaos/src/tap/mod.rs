//! Proxies between replicas and etcd, and a thread that reads what goes through them.
//!
//! Some are beside a process, and their faults are set. Others are the addresses that members of etcd advertise: who asks a member in
//! particular, as a leader does that changes members, is heard there.
//!
//! The bytes pass as they are, so that everything that the two do with their connection (its checks, its windows, its end)
//! is between them. The thread decodes a copy.

mod call;
mod caller;
mod connection;
mod frames;
mod paths;
mod wire;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use quorate_dev::proxy::{Heard, Proxy};

use crate::history::{At, Process};
use crate::recorder::Recorder;
use connection::Connection;

/// A piece that was heard.
struct Piece {
    at: At,
    /// The number of the proxy and of its connection.
    connection: (usize, u64),
    /// At its begin, who made it.
    of: Option<Process>,
    heard: Heard,
    bytes: Vec<u8>,
}

/// The thread, and where proxies send what they hear. It ends once the last proxy is gone.
pub struct Tap {
    recorder: Arc<Recorder>,
    pieces: Sender<Piece>,
    proxies: usize,
    thread: JoinHandle<()>,
}

impl Tap {
    /// Records into this history.
    pub fn new(recorder: &Arc<Recorder>) -> Self {
        let (pieces, heard) = channel();
        let writer = recorder.clone();
        Self {
            recorder: recorder.clone(),
            pieces,
            proxies: 0,
            thread: std::thread::spawn(move || listen(&heard, &writer)),
        }
    }

    /// A proxy beside the process of this name, in front of etcd's member at this URL.
    pub fn beside(&mut self, of: &str, url: &str) -> Proxy {
        let of = of.to_owned();
        self.proxy(url, move |_, _, recorder| Some(recorder.current(&of)))
    }

    /// A proxy that is the address of a member of etcd for all who ask it in particular. It tells them apart by their connections. Of
    /// those that it does not know it records changes of members alone.
    pub fn in_front_of(&mut self, url: &str) -> Proxy {
        self.proxy(url, caller::caller)
    }

    /// The same for a member whose URL is not known yet: it [leads there](Proxy::lead_to) later.
    pub fn in_front_of_none(&mut self) -> Proxy {
        // Nothing listens at port 0, so that each connection is refused.
        self.in_front_of("http://127.0.0.1:0")
    }

    fn proxy(
        &mut self,
        url: &str,
        caller: impl Fn(SocketAddr, SocketAddr, &Recorder) -> Option<Process> + Send + Sync + 'static,
    ) -> Proxy {
        self.proxies += 1;
        let (recorder, pieces, number) = (self.recorder.clone(), self.pieces.clone(), self.proxies);
        let hear = move |connection, heard, bytes: &[u8]| {
            let piece = Piece {
                at: recorder.now(),
                connection: (number, connection),
                // Later the process may have closed it.
                of: match heard {
                    Heard::Accepted { from, at } => caller(from, at, &recorder),
                    _ => None,
                },
                heard,
                bytes: match heard {
                    // Where it has arrived is asked, not what.
                    Heard::Delivered => bytes.len().to_be_bytes().to_vec(),
                    _ => bytes.to_vec(),
                },
            };
            // The thread is gone only if it panicked, which `join` finds.
            let _ = pieces.send(piece);
        };
        Proxy::heard_by(url, Arc::new(hear))
    }

    /// Waits until everything that proxies have heard is recorded. They must be gone.
    ///
    /// # Errors
    /// The thread panicked.
    pub fn join(self) -> Result<(), &'static str> {
        drop(self.pieces);
        self.thread.join().map_err(|_| "the thread of the tap panicked")
    }
}

fn listen(pieces: &Receiver<Piece>, recorder: &Recorder) {
    let mut connections: HashMap<(usize, u64), Connection> = HashMap::new();
    for piece in pieces {
        let connection = connections
            .entry(piece.connection)
            .or_insert_with(|| Connection::new(piece.of));
        match piece.heard {
            Heard::Accepted { .. } => {}
            Heard::Requested => connection.requested(piece.at, &piece.bytes, recorder),
            Heard::Replied => connection.replied(piece.at, &piece.bytes, recorder),
            Heard::Delivered => {
                let bytes = piece.bytes.try_into().map_or(0, usize::from_be_bytes);
                connection.delivered(piece.at, bytes, recorder);
            }
            Heard::Ended => {
                connection.ended(piece.at, recorder);
                connections.remove(&piece.connection);
            }
        }
    }
    for (_, mut connection) in connections {
        connection.ended(recorder.now(), recorder);
    }
}
