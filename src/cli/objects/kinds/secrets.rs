//! The Secret kind for commands: shown by name and keys. Its values are never printed.

use super::{Kind, Shown, Words};
use crate::cli::objects::delete::used_by_volumes;
use crate::cli::objects::view::Item;
use crate::cli::output::{Description, or_none};
use crate::proto::Secret;
use crate::store::keys::KeySpace;
use crate::store::object::change::Of;
use crate::store::object::secret::{self, Form};
use crate::store::object::{Malformed, Object};

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
    match secret::form(secret) {
        Form::Plain | Form::Sealed(_) => secret::names(secret).join(","),
        Form::Kubernetes(named) => format!("kubernetes:{}/{}", named.namespace, named.name),
    }
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
        let encrypted = match secret::form(&secret) {
            Form::Plain => "no".to_owned(),
            Form::Sealed(sealed) => format!("with key {}", sealed.key_id),
            Form::Kubernetes(_) => "etcd has no values of it".to_owned(),
        };
        description.field("Encrypted", encrypted);
    }
}
