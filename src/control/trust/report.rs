//! What this replica reports of a rotation: how far it has come, or why it has not.

use std::path::{Path, PathBuf};

use prost::Message as _;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::debug;

use super::{READ_LIMIT, Trust, Wanted};
use crate::control::Settings;
use crate::control::write::commit;
use crate::etcd::{Revision, TlsFiles, Txn};
use crate::identity::AuthorityKind;
use crate::identity::authorities::Found;
use crate::identity::rotation::client;
use crate::identity::rotation::record::{Phase, Rotation};
use crate::proto::ReplicaTrust;
use crate::proto::rotation::Phase as StoredPhase;
use crate::store::Store;

/// Why this replica has not carried out the phase of a rotation; `None` if it has.
pub(super) async fn hindrance(
    found: &Found,
    rotation: &Rotation,
    wanted: &Result<Wanted, String>,
    trust: Option<&Trust>,
    store: &Store,
) -> Option<String> {
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(why) => return Some(why.clone()),
    };
    // Whichever replica leads signs with both.
    let hinders = || found.hinders(rotation.before, rotation.after);
    if let Some(lacks) = wanted.lacks.clone().or_else(hinders) {
        return Some(lacks);
    }
    if !trust.is_some_and(|trust| trust.is_in(wanted)) {
        return Some("its control port does not show its certificate of the new authority yet".to_owned());
    }
    let kind = AuthorityKind::Etcd;
    let new = found.find(kind, rotation.after.etcd)?;
    let former = found.find(kind, rotation.before.etcd)?;
    if rotation.phase == Phase::Trust || rotation.before.etcd == rotation.after.etcd {
        return None;
    }
    let TlsFiles { ca, identity } = store.etcd.config().tls.clone();
    let chain = read(identity.map(|(certificate, _)| certificate)).await;
    let trusted = read(ca).await;
    client::hindrance(chain.as_deref(), trusted.as_deref(), former, new)
}

/// Reads a file on a thread that may wait; `None` without one, and for one that cannot be read: that shows elsewhere.
async fn read(path: Option<PathBuf>) -> Option<Vec<u8>> {
    let path = path?;
    let read = |path: &Path| std::fs::read(path).ok();
    spawn_blocking(move || read(&path)).await.ok()?
}

/// Records what this replica has carried out, unless that is on record. What fails is tried again with the next look.
pub(super) async fn report(
    store: &Store,
    settings: &Settings,
    rotation: &Rotation,
    hindrance: Option<String>,
) {
    let phase = match hindrance {
        None => rotation.phase.to_proto(),
        Some(_) => StoredPhase::Unspecified,
    };
    let value = ReplicaTrust {
        after: Some(rotation.after.to_proto()),
        phase: phase.into(),
        hindrance: hindrance.unwrap_or_default(),
    };
    let value = value.encode_to_vec();
    let key = store.keys.replica_trust(settings.replica.as_str());
    let read = timeout(READ_LIMIT, store.etcd.get(&key)).await;
    let Ok(Ok((stored, _))) = read else {
        return debug!("what this replica has reported of a rotation is not known");
    };
    if stored.as_ref().is_some_and(|stored| stored.value == value) {
        return;
    }
    let found = stored.map_or(Revision::ABSENT, |stored| stored.mod_revision);
    let txn = Txn::new().when_unchanged(&key, found).put(&key, value);
    if let Err(status) = commit(&store.etcd, txn).await {
        debug!("a report about a rotation was not recorded: {}", status.message());
    }
}
