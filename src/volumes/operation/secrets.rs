//! The secrets of a call: read for it, handed to it, kept nowhere.

use std::collections::BTreeMap;

use super::{Acting, Failure, Interrupted};
use crate::csi::{SecretValue, Secrets};
use crate::proto::{Secret, Volume};
use crate::store::Name;
use crate::store::object::decode;
use crate::volumes::record::Blocked;

impl Acting<'_> {
    /// Those that the volume names, as they are now. All that is missing is told, and no call is made then.
    pub(super) async fn secrets(&self, volume: &Volume) -> Result<Secrets, Interrupted> {
        let entries = volume.spec.as_ref().map_or(&[][..], |spec| &spec.secrets);
        let mut read: BTreeMap<&str, Option<Secret>> = BTreeMap::new();
        let (mut values, mut faults) = (Vec::new(), Vec::new());
        for entry in entries {
            let name = entry.secret.as_str();
            if !read.contains_key(name) {
                read.insert(name, self.secret(name).await?);
            }
            let fault = match read.get(name) {
                Some(Some(secret)) => match secret
                    .data
                    .get(&entry.key)
                    .map(|value| std::str::from_utf8(value))
                {
                    Some(Ok(value)) => {
                        values.push((entry.key.clone(), SecretValue::new(value.to_owned())));
                        continue;
                    }
                    // The words of the error have nothing of the value in them, and are left out all the same.
                    Some(Err(_)) => format!("{} of secret {name} is no text, as plugins need it", entry.key),
                    None => format!("secret {name} has no {}", entry.key),
                },
                Some(None) | None => format!("secret {name} does not exist, or cannot be read"),
            };
            if !faults.contains(&fault) {
                faults.push(fault);
            }
        }
        if faults.is_empty() {
            return Ok(values.into_iter().collect());
        }
        Err(Interrupted::Failed(Failure {
            why: Blocked {
                reason: "SecretMissing".to_owned(),
                message: faults.join("; "),
            },
            // A change of the secret ends the wait.
            pace: None,
            is_quiet: false,
        }))
    }

    async fn secret(&self, name: &str) -> Result<Option<Secret>, Interrupted> {
        let Ok(parsed) = name.parse::<Name>() else {
            return Ok(None);
        };
        let key = self.env.store.keys.secret(&parsed);
        let read = self.env.store.etcd.get(&key).await;
        let (stored, _) = read.map_err(|error| Failure::etcd(&error))?;
        Ok(stored.and_then(|kv| decode::<Secret>(name, &kv.value).ok()))
    }
}
