//! The Plugin kind for commands.

use super::{Affected, Kind, Shown, Words, age};
use crate::cli::objects::delete::used_by_volumes;
use crate::cli::objects::pending;
use crate::cli::objects::view::Item;
use crate::cli::output::{Description, one_line, or_none};
use crate::etcd::KeyRange;
use crate::proto::Plugin;
use crate::store::keys::KeySpace;
use crate::store::object::change::Of;
use crate::store::object::{Malformed, Object, plugin};

/// The kind.
pub static PLUGINS: Kind = Kind {
    applied: Some(Of::<Plugin>::CODEC),
    beside: |keys, name| {
        name.into_iter()
            .map(|name| KeyRange::key(keys.plugin_status(name)))
            .collect()
    },
    affected: |keys, key| Affected::named(keys.parse_plugin_status(key), |name| keys.plugin(name)),
    ..Kind::new(
        Words::new(Plugin::KIND, "plugin", "plugins", &[]),
        KeySpace::PLUGINS,
        &["NAME", "ENDPOINT", "STATE", "CONCURRENCY", "TIMEOUT", "AGE"],
        &["UID", "LABELS"],
        show,
        describe,
        Ok(&used_by_volumes::PLUGIN),
    )
};

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let plugin: Plugin = item.object()?;
    let status = pending::plugin_status(item.view, item.name);
    let cells = vec![
        plugin::endpoint(&plugin).to_owned(),
        or_none(status.as_ref().map_or("", |status| &status.state)).to_owned(),
        plugin::concurrency(&plugin).to_string(),
        plugin::timeout_text(&plugin),
    ];
    let document = plugin::to_document(&plugin, status.as_ref(), item.revision());
    Ok(Shown::object(&plugin, item.now, cells, document))
}

fn describe(item: &Item<'_>, description: &mut Description) {
    let Some(plugin) = description.object::<Plugin>(item) else {
        return;
    };
    let calls = plugin::concurrency(&plugin);
    description
        .field("Endpoint", plugin::endpoint(&plugin))
        .field("Concurrency", format!("{calls} calls at a time in each lane"));
    if let Some(limit) = plugin::per_node(&plugin) {
        description.field(
            "Per Node",
            format!("{limit} publications and unpublications at a time"),
        );
    }
    description.field("Timeout", format!("{} a call", plugin::timeout_text(&plugin)));
    for (call, limit) in plugin::own_timeout_texts(&plugin) {
        description.nested(call, limit);
    }
    let before = plugin.spec.unwrap_or_default().same_backend_as;
    if !before.is_empty() {
        description.field("Same Backend As", before.join(", "));
    }
    let Some(status) = pending::plugin_status(item.view, item.name) else {
        return;
    };
    description.field("State", &status.state);
    if !status.message.is_empty() {
        description.field("Message", one_line(&status.message));
    }
    let backend = status.backend.unwrap_or_default().id;
    description
        .field("Since", age(status.since.as_ref(), item.now))
        .field("Version", or_none(&status.version))
        .field("Backend", or_none(&backend))
        .field("Capabilities", or_none(&status.capabilities.join(", ")))
        .field(
            "Volumes",
            format!(
                "{}, of which {} wait; {} operations in flight",
                status.volumes, status.waiting, status.in_flight
            ),
        );
}
