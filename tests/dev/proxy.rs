//! The fault proxy does to connections what it says, or tests that use it prove nothing.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::support::proxy::{Cut, Heard, Network, Proxy};
use crate::support::wait::{SOON, eventually, same};

/// Long enough for a byte to cross this machine, were it let through.
const SHORT: Duration = Duration::from_millis(150);

/// A client's and the server's end of one connection through a proxy.
async fn connected() -> (Proxy, TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    connected_to(&listener).await
}

async fn connected_to(listener: &TcpListener) -> (Proxy, TcpStream, TcpStream) {
    let proxy = Proxy::start(listener.local_addr().unwrap().port());
    let client = TcpStream::connect(proxy.address).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    (proxy, client, server)
}

async fn receive(stream: &mut TcpStream, wanted: &str) {
    let mut received = vec![0; wanted.len()];
    timeout(SOON, stream.read_exact(&mut received))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(String::from_utf8(received).unwrap(), wanted);
}

async fn receive_nothing(stream: &mut TcpStream) {
    let read = timeout(SHORT, stream.read(&mut [0])).await;
    assert!(read.is_err(), "received {read:?}");
}

/// A new connection is reset: before the client knows that it has one, or later.
async fn assert_resets(proxy: &Proxy) {
    let ended = match TcpStream::connect(proxy.address).await {
        Ok(mut client) => timeout(SOON, client.read(&mut [0])).await.unwrap(),
        Err(error) => Err(error),
    };
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_working_network_carries_both_ways_and_passes_the_end_on() {
    let (proxy, mut client, mut server) = connected().await;
    client.write_all(b"ask").await.unwrap();
    receive(&mut server, "ask").await;
    server.write_all(b"answer").await.unwrap();
    receive(&mut client, "answer").await;
    drop(client);
    assert_eq!(timeout(SOON, server.read(&mut [0])).await.unwrap().unwrap(), 0);
    assert_eq!((proxy.accepted_connections(), proxy.requested_bytes()), (1, 3));
}

#[tokio::test]
async fn a_black_hole_holds_everything_back_until_it_heals() {
    let (proxy, mut client, mut server) = connected().await;
    proxy.set(Network::BlackHole);
    client.write_all(b"ask").await.unwrap();
    server.write_all(b"answer").await.unwrap();
    receive_nothing(&mut server).await;
    receive_nothing(&mut client).await;
    proxy.set(Network::Passes);
    receive(&mut server, "ask").await;
    receive(&mut client, "answer").await;
}

#[tokio::test]
async fn a_request_arrives_whose_reply_is_lost() {
    let (proxy, mut client, mut server) = connected().await;
    proxy.set(Network::LosesReplies);
    client.write_all(b"ask").await.unwrap();
    receive(&mut server, "ask").await;
    eventually(SOON, "the request is counted", async || {
        same(proxy.requested_bytes(), 3)
    })
    .await;
    server.write_all(b"answer").await.unwrap();
    receive_nothing(&mut client).await;
    // The client learns of the end of the connection only, not of the answer.
    proxy.set(Network::Resets);
    let error = timeout(SOON, client.read(&mut [0])).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_reply_arrives_whose_next_request_is_lost() {
    let (proxy, mut client, mut server) = connected().await;
    proxy.set(Network::LosesRequests);
    client.write_all(b"ask").await.unwrap();
    receive_nothing(&mut server).await;
    server.write_all(b"answer").await.unwrap();
    receive(&mut client, "answer").await;
    proxy.set(Network::Passes);
    receive(&mut server, "ask").await;
}

#[tokio::test]
async fn what_one_member_sends_is_lost_and_what_others_send_is_not() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let proxy = Proxy::between_members(listener.local_addr().unwrap().port());
    let network = Network::LosesRequests;
    proxy.cut([Cut {
        from: Some(0xab),
        network,
    }]);
    for (member, arrives) in [("ab", false), ("cd", true)] {
        let mut client = TcpStream::connect(proxy.address).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let request = format!("GET / HTTP/1.1\r\nX-Server-From: {member}\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        match arrives {
            true => receive(&mut server, &request).await,
            false => receive_nothing(&mut server).await,
        }
    }
}

#[tokio::test]
async fn a_reset_ends_open_connections_and_new_ones_until_it_is_over() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (proxy, mut client, mut server) = connected_to(&listener).await;
    proxy.set(Network::Resets);
    for stream in [&mut client, &mut server] {
        let error = timeout(SOON, stream.read(&mut [0])).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    assert_resets(&proxy).await;
    proxy.set(Network::Passes);
    let _again = TcpStream::connect(proxy.address).await.unwrap();
    let (mut server, _) = timeout(SOON, listener.accept()).await.unwrap().unwrap();
    receive_nothing(&mut server).await;
}

#[tokio::test]
async fn a_slow_network_delivers_late() {
    let (proxy, mut client, mut server) = connected().await;
    proxy.set(Network::Delays(SHORT));
    let begun = Instant::now();
    client.write_all(b"ask").await.unwrap();
    receive(&mut server, "ask").await;
    assert!(begun.elapsed() >= SHORT, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_server_that_is_down_resets_its_clients() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let proxy = Proxy::start(port);
    assert_resets(&proxy).await;
}

#[tokio::test]
async fn a_listener_hears_what_is_sent_and_what_of_it_arrives() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, heard) = channel();
    let hear = move |connection, what, bytes: &[u8]| {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        sender.send((connection, what, text)).unwrap();
    };
    let proxy = Proxy::heard_by(&url, Arc::new(hear));
    let mut client = TcpStream::connect(proxy.address).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    client.write_all(b"one").await.unwrap();
    receive(&mut server, "one").await;
    server.write_all(b"two").await.unwrap();
    receive(&mut client, "two").await;
    proxy.set(Network::LosesReplies);
    server.write_all(b"lost").await.unwrap();
    let mut all = Vec::new();
    eventually(SOON, "the lost reply is heard", async || {
        all.extend(heard.try_iter());
        same(all.len(), 5)
    })
    .await;
    let (from, at) = (client.local_addr().unwrap(), proxy.address);
    drop((client, server));
    let entry = |what, text: &str| (0, what, text.to_owned());
    let wanted = [
        entry(Heard::Accepted { from, at }, ""),
        entry(Heard::Requested, "one"),
        entry(Heard::Replied, "two"),
        entry(Heard::Delivered, "two"),
        entry(Heard::Replied, "lost"),
    ];
    assert_eq!(all, wanted);
}
