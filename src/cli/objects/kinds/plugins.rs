//! The Plugin kind for commands.

use super::{Kind, Shown, Words};
use crate::cli::objects::delete::used_by_volumes;
use crate::cli::objects::view::Item;
use crate::cli::output::Description;
use crate::proto::Plugin;
use crate::store::keys::KeySpace;
use crate::store::object::change::Of;
use crate::store::object::{Malformed, Object, plugin};

/// The kind.
pub static PLUGINS: Kind = Kind {
    applied: Some(Of::<Plugin>::CODEC),
    ..Kind::new(
        Words::new(Plugin::KIND, "plugin", "plugins", &[]),
        KeySpace::PLUGINS,
        &["NAME", "ENDPOINT", "CONCURRENCY", "TIMEOUT", "AGE"],
        &["UID", "LABELS"],
        show,
        describe,
        Ok(&used_by_volumes::PLUGIN),
    )
};

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let plugin: Plugin = item.object()?;
    let cells = vec![
        plugin::endpoint(&plugin).to_owned(),
        plugin::concurrency(&plugin).to_string(),
        plugin::timeout_text(&plugin),
    ];
    let document = plugin::to_document(&plugin, item.revision());
    Ok(Shown::object(&plugin, item.now, cells, document))
}

fn describe(item: &Item<'_>, description: &mut Description) {
    let Some(plugin) = description.object::<Plugin>(item) else {
        return;
    };
    let calls = plugin::concurrency(&plugin);
    description
        .field("Endpoint", plugin::endpoint(&plugin))
        .field("Concurrency", format!("{calls} calls at a time"))
        .field("Timeout", format!("{} a call", plugin::timeout_text(&plugin)));
}
