//! The handshakes with plugins. Pure.

use super::checklist::Checklist;
use crate::cli::doctor::finding::Finding;
use crate::cli::doctor::reason::Reason;
use crate::cli::doctor::seen::{PluginSeen, Seen};

/// Checks every plugin.
pub fn check(seen: &Seen, list: &mut Checklist) {
    let plugins = seen.store.iter().flat_map(|store| &store.plugins);
    list.check_each(plugins, not_ready);
}

fn not_ready(plugin: &PluginSeen) -> Option<Finding> {
    let (word, why) = plugin.handshake.as_ref().err()?;
    let remedy = match (*word, plugin.endpoint.starts_with("unix:")) {
        ("PluginIsAnother", _) => "correct spec.endpoint of the plugin, or its name: it must be the driver's".to_owned(),
        ("PluginStarting", _) => "the log of the plugin says what it waits for".to_owned(),
        (_, true) => format!(
            "is the plugin running? A socket is on one machine: run doctor where the replicas run, with the same {} mounted",
            plugin.endpoint
        ),
        (_, false) => "is the plugin running, does the network let this machine through, and do spec.endpoint and spec.tls fit it?".to_owned(),
    };
    Some(
        Finding::fault(
            Reason::PluginNotReady,
            format!("plugin/{}", plugin.name),
            format!("{word}: {why}"),
        )
        .matters("its volumes are neither created, published, unpublished nor deleted")
        .remedy(remedy),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_on_a_socket_is_looked_for_where_the_replicas_run() {
        let plugin = |endpoint: &str, handshake| PluginSeen {
            name: "a.csi".to_owned(),
            endpoint: endpoint.to_owned(),
            handshake,
        };
        assert!(not_ready(&plugin("unix:///s", Ok(()))).is_none());
        let why = || Err(("PluginUnreachable", "no such file".to_owned()));
        let socket = not_ready(&plugin("unix:///s", why())).unwrap();
        assert!(socket.remedy.contains("where the replicas run"), "{socket:?}");
        let other = Err(("PluginIsAnother", "b.csi".to_owned()));
        let other = not_ready(&plugin("http://a:1", other)).unwrap();
        assert!(other.remedy.contains("spec.endpoint"), "{other:?}");
    }
}
