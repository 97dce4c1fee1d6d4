//! Whether an etcd is healthy, as it says itself: it answers once it has made a linearizable read, which a learner does not.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The limit of an answer: longer than an election takes, and shorter than the interval of probes.
const LIMIT: Duration = Duration::from_secs(3);

/// More bytes than an answer has.
const LONGEST: u64 = 4096;

/// Asks the etcd that serves its metrics at this address.
pub async fn is_healthy(address: SocketAddr) -> bool {
    timeout(LIMIT, ask(address))
        .await
        .is_ok_and(|healthy| healthy == Some(true))
}

async fn ask(address: SocketAddr) -> Option<bool> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    // Version 1.0: the answer ends with the connection, and is not sent in chunks.
    let request = format!("GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8_lossy(&answer);
    // HTTP/1.0 200 OK
    Some(answer.lines().next()?.split(' ').nth(1)? == "200")
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn answered(answer: &'static str) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // All of it: what is left unread would have the answer thrown away.
            let expected = format!("GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n");
            let mut request = vec![0; expected.len()];
            stream.read_exact(&mut request).await.unwrap();
            assert_eq!(request, expected.as_bytes());
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let (healthy, ()) = tokio::join!(is_healthy(address), serve);
        healthy
    }

    #[tokio::test]
    async fn an_etcd_is_healthy_that_says_so() {
        assert!(answered("HTTP/1.0 200 OK\r\n\r\n{\"health\":\"true\"}").await);
        for other in [
            "HTTP/1.0 503 Service Unavailable\r\n\r\n{\"health\":\"false\"}",
            "",
            "200",
        ] {
            assert!(!answered(other).await, "{other:?}");
        }
    }

    #[tokio::test]
    async fn where_nothing_listens_nothing_is_healthy() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        assert!(!is_healthy(address).await);
    }
}
