//! The Secret kind for commands: shown by name and keys. Its values are never printed.

use super::{Kind, Shown, Words};
use crate::cli::objects::delete::used_by_volumes;
use crate::cli::objects::view::Item;
use crate::cli::output::{Description, or_none};
use crate::proto::Secret;
use crate::store::keys::KeySpace;
use crate::store::object::change::Of;
use crate::store::object::{Malformed, Object, secret};

/// The kind.
pub static SECRETS: Kind = Kind {
    applied: Some(Of::<Secret>::CODEC),
    ..Kind::new(
        Words::new(Secret::KIND, "secret", "secrets", &[]),
        KeySpace::SECRETS,
        &["NAME", "KEYS", "AGE"],
        &["UID", "LABELS"],
        show,
        describe,
        Ok(&used_by_volumes::SECRET),
    )
};

fn keys_of(secret: &Secret) -> String {
    let keys: Vec<&str> = secret.data.keys().map(String::as_str).collect();
    keys.join(",")
}

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let secret: Secret = item.object()?;
    let document = secret::to_document(&secret, item.revision());
    Ok(Shown::object(&secret, item.now, vec![keys_of(&secret)], document))
}

fn describe(item: &Item<'_>, description: &mut Description) {
    if let Some(secret) = description.object::<Secret>(item) {
        let keys = format!("{} (values are never shown)", or_none(&keys_of(&secret)));
        description.field("Keys", keys);
    }
}
