//! The socket for orders to the plugin. An order is a line of JSON, and so is its reply.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::order::Order;
use super::service::Plugin;

/// Limit of an exchange.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Serialize, Deserialize)]
enum Reply {
    #[serde(rename = "done")]
    Done,
    #[serde(rename = "refused")]
    Refused(String),
}

/// Sends an order to a running plugin and waits until it is carried out.
///
/// # Errors
/// The plugin does not reply, or refuses the order, with its reason.
pub async fn send(socket: &Path, order: &Order) -> io::Result<()> {
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

/// Carries out the orders of one connection after the other. Never returns.
pub(super) async fn serve(listener: UnixListener, plugin: &Plugin) {
    loop {
        match listener.accept().await {
            // The orders before a broken connection were carried out.
            Ok((stream, _)) => drop(timeout(LIMIT, take_orders(stream, plugin)).await),
            // It fails where file descriptors run out, for instance. Trying again at once would be a hot loop.
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
            .and_then(|order| plugin.carry_out(order));
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
