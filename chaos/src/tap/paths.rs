//! The paths of the requests of one connection, from their header blocks.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::poll_fn;
use h2::server::{Builder, Connection, Handshake};
use http::Response;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::frames::PREFACE;

/// Header blocks and answers that wait, in bytes. Both are read before more comes.
const ROOM: usize = 1 << 20;

/// Decodes header blocks. They are compressed, each depending on those before it, and a library knows how: this is a server
/// that gets the headers of the requests, each as a whole request, and whose answers go nowhere.
pub struct Paths {
    wire: DuplexStream,
    server: Server,
}

enum Server {
    Begins(Box<Handshake<DuplexStream, Bytes>>),
    Serves(Box<Connection<DuplexStream, Bytes>>),
    Failed,
}

impl Paths {
    pub fn new() -> Self {
        let (wire, end) = duplex(ROOM);
        let mut paths = Self {
            wire,
            server: Server::Begins(Box::new(Builder::new().handshake(end))),
        };
        paths.feed(PREFACE);
        paths
    }

    /// Takes a frame of settings or headers; the streams and paths of the requests that are complete with it. Nothing waits
    /// for anything else: all bytes are there, so that one poll decodes them.
    pub fn feed(&mut self, frame: &[u8]) -> Vec<(u32, String)> {
        let _ = self.wire.write_all(frame).now_or_never();
        let mut found = Vec::new();
        if let Server::Begins(handshake) = &mut self.server
            && let Some(begun) = handshake.now_or_never()
        {
            self.server = begun.map_or(Server::Failed, |server| Server::Serves(Box::new(server)));
        }
        if let Server::Serves(server) = &mut self.server {
            while let Some(Some(Ok((request, mut respond)))) =
                poll_fn(|context| server.poll_accept(context)).now_or_never()
            {
                let stream = u32::from(respond.stream_id());
                found.push((stream, request.uri().path().to_owned()));
                // Only so that the stream is over for the library, too.
                let _ = respond.send_response(Response::new(()), true);
            }
        }
        let mut answers = [0; 4096];
        while self
            .wire
            .read(&mut answers)
            .now_or_never()
            .is_some_and(|read| read.is_ok_and(|read| read > 0))
        {}
        found
    }
}
