//! The secrets of a call: read for that call, and kept nowhere.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::try_join_all;

use super::failure::SecretFault;
use super::{Failure, Interrupted, Run};
use crate::csi::{SecretValue, Secrets};
use crate::proto::volume_secret::Call;
use crate::proto::{SecretData, Volume, VolumeSecret};
use crate::secrets::Unavailable;
use crate::store::object::volume::gets;

/// The values of a secret, or why there are none.
type Read = Result<SecretData, Unavailable>;

impl Run<'_> {
    /// The current values of the secrets that the volume names for this call. Where any is missing, the failure names all that
    /// are, and no call is made.
    pub(super) async fn secrets(&self, volume: &Volume, call: Call) -> Result<Secrets, Interrupted> {
        let entries = volume.spec.as_ref().map_or(&[][..], |spec| &spec.secrets);
        let entries: Vec<&VolumeSecret> = entries.iter().filter(|entry| gets(entry, call)).collect();
        let names: BTreeSet<&str> = entries.iter().map(|entry| entry.secret.as_str()).collect();
        // All at once: the call waits for one answer of etcd, however many it needs.
        let reading = names.into_iter().map(|name| async move {
            match self.env.secrets.read(&self.env.store, name).await {
                Err(Unavailable::Etcd(error)) => Err(Interrupted::from(error)),
                read => Ok((name, read)),
            }
        });
        let read: BTreeMap<&str, Read> = try_join_all(reading).await?.into_iter().collect();
        let (mut values, mut faults) = (Vec::new(), Vec::new());
        for entry in entries {
            let secret = read.get(entry.secret.as_str());
            match value_of(entry, secret.unwrap_or(&Err(Unavailable::Missing))) {
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
            false => Err(Failure::of_secrets(&faults).into()),
        }
    }
}

/// The value that an entry of a volume names, or what is missing. No part of the value is in the error.
fn value_of(entry: &VolumeSecret, secret: &Read) -> Result<SecretValue, SecretFault> {
    let VolumeSecret {
        key, secret: name, ..
    } = entry;
    let secret = secret
        .as_ref()
        .map_err(|why| SecretFault::unavailable(name, why))?;
    let value = secret.data.get(key);
    let value = value.ok_or_else(|| SecretFault::lacking(format!("secret {name} has no {key}")))?;
    let text = std::str::from_utf8(value).map_err(|_| {
        SecretFault::lacking(format!("{key} of secret {name} is not text, as plugins need it"))
    })?;
    Ok(SecretValue::new(text.to_owned()))
}
