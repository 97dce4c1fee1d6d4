//! Whether a peer URL can be reached: before its node is added, so that no learner is added that cannot be.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::roles::plan::Dial;

/// Tries all of them at once. A connection that is refused is one that was reached: etcd cannot start before it is
/// added.
pub async fn dial(urls: Vec<String>, limit: Duration) -> Dial {
    let tried = urls.iter().map(|url| async move {
        match tokio::time::timeout(limit, TcpStream::connect(address(url))).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
            Ok(Err(error)) => Err(format!("peer URL {url} cannot be reached: {error}")),
            Err(_) => Err(format!(
                "peer URL {url} cannot be reached: no answer within {limit:?}"
            )),
        }
    });
    match futures::future::try_join_all(tried).await {
        Ok(listening) => Dial::Reached {
            listening: listening.into_iter().all(|listening| listening),
        },
        Err(why) => Dial::Unreachable(why),
    }
}

fn address(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, address)| address)
}
