//! Deleting plugins and secrets: at once, but not while a volume uses one, unless forced.

use futures::FutureExt;
use prost::Message;

use super::{Deletable, Deletion, Request};
use crate::cli::exit::Failure;
use crate::cli::objects::pending;
use crate::proto::Volume;
use crate::store::object::volume;

/// Deletes a plugin.
pub static PLUGIN: Deletable = Deletable {
    plan: |request| plan(request, "plugin", |volume, name| volume::driver(volume) == name).boxed(),
    plan_absent: None,
    ending: None,
};

/// Deletes a secret.
pub static SECRET: Deletable = Deletable {
    plan: |request| plan(request, "secret", uses_secret).boxed(),
    plan_absent: None,
    ending: None,
};

fn uses_secret(volume: &Volume, name: &str) -> bool {
    let mut secrets = volume.spec.iter().flat_map(|spec| &spec.secrets);
    secrets.any(|entry| entry.secret == name)
}

async fn plan(
    request: Request<'_>,
    singular: &str,
    uses: fn(&Volume, &str) -> bool,
) -> Result<Deletion, Failure> {
    let Request { store, id, force, .. } = request;
    let (volumes, _) = store.etcd.list(&store.keys.volumes()).await?;
    let users: Vec<String> = volumes
        .iter()
        .filter_map(|kv| {
            let name = store.keys.parse_volume(&kv.key)?;
            // One that is faulty here, as a newer release may write it, says what it uses; of one that is no record at all that is
            // not known (INV-12).
            match Volume::decode(&*kv.value) {
                Ok(volume) => uses(&volume, id.name.as_str()).then(|| format!("volume {name}")),
                Err(_) => Some(format!("volume {name} (it cannot be read, so it may use any)")),
            }
        })
        .collect();
    if !users.is_empty() && !force {
        let users = pending::cell(&users);
        let why = format!("{singular} {id} is used by {users}");
        return Err(Failure::refused("InUse", why).hint(
            "nothing can be done to these volumes without it; --force deletes it all the same, and they wait until it \
             exists again",
        ));
    }
    let consequence = match users.len() {
        0 => String::new(),
        1 => ": 1 volume waits until it exists again".to_owned(),
        many => format!(": {many} volumes wait until it exists again"),
    };
    Ok(request.delete(format!("{singular}/{id} is deleted{consequence}")))
}
