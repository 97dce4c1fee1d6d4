//! The secrets of a call: read for that call, and kept nowhere.

use std::collections::BTreeMap;

use super::{Failure, Interrupted, Run};
use crate::csi::{SecretValue, Secrets};
use crate::proto::{Secret, Volume, VolumeSecret};
use crate::store::Name;
use crate::store::object::decode;

impl Run<'_> {
    /// The current values of the secrets that the volume names. Where any is missing, the failure names all that are, and
    /// no call is made.
    pub(super) async fn secrets(&self, volume: &Volume) -> Result<Secrets, Interrupted> {
        let entries = volume.spec.as_ref().map_or(&[][..], |spec| &spec.secrets);
        let mut read: BTreeMap<&str, Option<Secret>> = BTreeMap::new();
        let (mut values, mut faults) = (Vec::new(), Vec::new());
        for entry in entries {
            let name = entry.secret.as_str();
            if !read.contains_key(name) {
                read.insert(name, self.secret(name).await?);
            }
            match value_of(entry, read.get(name).and_then(Option::as_ref)) {
                Ok(value) => values.push((entry.key.clone(), value)),
                Err(fault) if faults.contains(&fault) => {}
                Err(fault) => faults.push(fault),
            }
        }
        let session = self.session()?;
        if !values.is_empty() && session.endpoint().is_plaintext() && !self.operation.plaintext_secrets {
            return Err(Failure::plaintext_secrets(session.endpoint()).into());
        }
        match faults.is_empty() {
            true => Ok(values.into_iter().collect()),
            false => Err(Failure::missing_secrets(&faults).into()),
        }
    }

    /// `None` if the secret does not exist or cannot be read.
    async fn secret(&self, name: &str) -> Result<Option<Secret>, Interrupted> {
        let Ok(parsed) = name.parse::<Name>() else {
            return Ok(None);
        };
        let key = self.env.store.keys.secret(&parsed);
        let (stored, _) = self.env.store.etcd.get(&key).await?;
        Ok(stored.and_then(|kv| decode::<Secret>(name, &kv.value).ok()))
    }
}

/// The value that an entry of a volume names, or what is missing. No part of the value is in the error.
fn value_of(entry: &VolumeSecret, secret: Option<&Secret>) -> Result<SecretValue, String> {
    let VolumeSecret { key, secret: name } = entry;
    let secret = secret.ok_or_else(|| format!("secret {name} does not exist or cannot be read"))?;
    let value = secret.data.get(key);
    let value = value.ok_or_else(|| format!("secret {name} has no {key}"))?;
    let text = std::str::from_utf8(value);
    let text = text.map_err(|_| format!("{key} of secret {name} is not text, as plugins need it"))?;
    Ok(SecretValue::new(text.to_owned()))
}
