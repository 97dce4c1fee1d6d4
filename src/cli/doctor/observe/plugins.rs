//! Makes a handshake with every recorded plugin.

use futures::future::join_all;

use super::LIMIT;
use crate::cli::doctor::seen::PluginSeen;
use crate::csi::{Endpoint, Plugin};
use crate::etcd::KeyValue;
use crate::metrics::Metrics;
use crate::proto;
use crate::store::Keys;
use crate::store::object::{decode, plugin};

/// Asks the plugins whose records can be read, all at once.
pub async fn observe<'s>(keys: &Keys, stored: impl Iterator<Item = &'s KeyValue>) -> Vec<PluginSeen> {
    let records = stored.filter_map(|kv| {
        let name = keys.parse_plugin(&kv.key)?;
        let record: proto::Plugin = decode(name, &kv.value).ok()?;
        Some((name, record))
    });
    let asked = records.map(async |(name, record)| PluginSeen {
        name: name.to_owned(),
        endpoint: plugin::endpoint(&record).to_owned(),
        handshake: handshake(name, &record).await,
    });
    join_all(asked).await
}

async fn handshake(name: &str, record: &proto::Plugin) -> Result<(), (&'static str, String)> {
    let unreachable = |why: String| ("PluginUnreachable", why);
    let endpoint: Endpoint = plugin::endpoint(record)
        .parse()
        .map_err(|error: crate::csi::EndpointError| unreachable(error.to_string()))?;
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    let client = Plugin::new(name, endpoint, plugin::settings(record), metrics);
    match tokio::time::timeout(LIMIT, client.session()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(not_ready)) => Err((not_ready.reason(), not_ready.to_string())),
        Err(_) => Err(unreachable(format!("no answer within {LIMIT:?}"))),
    }
}
