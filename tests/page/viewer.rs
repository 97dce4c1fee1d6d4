//! A viewer: a connection that follows the events of the page.

use std::net::Ipv4Addr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::wait::SOON;

/// A connection that follows the events.
pub struct Viewer {
    lines: BufReader<TcpStream>,
}

impl Viewer {
    /// Connects, and is admitted.
    pub async fn open(port: u16) -> Self {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        let request = "GET /page/events HTTP/1.1\r\nhost: test\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut viewer = Self {
            lines: BufReader::new(stream),
        };
        let status = viewer.line().await;
        assert!(status.starts_with("HTTP/1.1 200 "), "{status}");
        viewer
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = timeout(SOON, self.lines.read_line(&mut line)).await;
        read.expect("a line comes").unwrap();
        assert!(!line.is_empty(), "the replica has closed the connection");
        line
    }

    /// The next update: sections by their ids.
    pub async fn next(&mut self) -> Vec<(String, String)> {
        while self.line().await != "event: state\n" {}
        let line = self.line().await;
        let data: Value = serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap();
        serde_json::from_value(data).unwrap()
    }

    /// Waits for an update in which this section has this text.
    pub async fn wait_for(&mut self, section: &str, text: &str) {
        loop {
            let sections = self.next().await;
            if sections
                .iter()
                .any(|(id, html)| id == section && html.contains(text))
            {
                return;
            }
        }
    }
}
