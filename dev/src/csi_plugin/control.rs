//! The socket over which the plugin is told what to do wrong: a JSON object a line, answered by a line.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::order::Order;
use super::service::Plugin;

/// How long a plugin may take to obey.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Serialize, Deserialize)]
enum Reply {
    #[serde(rename = "done")]
    Done,
    #[serde(rename = "refused")]
    Refused(String),
}

/// Tells a running plugin.
///
/// # Errors
/// It does not answer, or says what is wrong with the order.
pub async fn tell(socket: &Path, order: &Order) -> io::Result<()> {
    let exchange = async {
        let stream = UnixStream::connect(socket).await?;
        let (read, mut write) = stream.into_split();
        let mut line = serde_json::to_string(order).map_err(io::Error::other)?;
        line.push('\n');
        write.write_all(line.as_bytes()).await?;
        let answer = BufReader::new(read).lines().next_line().await?;
        serde_json::from_str(&answer.unwrap_or_default()).map_err(io::Error::other)
    };
    match timeout(LIMIT, exchange).await {
        Ok(Ok(Reply::Done)) => Ok(()),
        Ok(Ok(Reply::Refused(why))) => Err(io::Error::other(why)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Takes orders, one connection after the other; never ends.
pub(super) async fn obey(listener: UnixListener, plugin: &Plugin) {
    loop {
        match listener.accept().await {
            // A connection that breaks has told what it told.
            Ok((stream, _)) => drop(timeout(LIMIT, take_orders(stream, plugin)).await),
            // Out of file descriptors, say: no reason to spin.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn take_orders(stream: UnixStream, plugin: &Plugin) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await? {
        let outcome = serde_json::from_str(&line)
            .map_err(|error| error.to_string())
            .and_then(|order| plugin.obey(order));
        let reply = match outcome {
            Ok(()) => Reply::Done,
            Err(why) => Reply::Refused(why),
        };
        let mut answer = serde_json::to_string(&reply).map_err(io::Error::other)?;
        answer.push('\n');
        write.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}
