//! `quorate retry`: ends the backoff of what failed.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use prost::Message;

use super::REQUESTED;
use crate::cli::commit::{self, Decision};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::objects::stored::Versioned;
use crate::cli::output::print;
use crate::proto::{Publication, Volume};
use crate::store::{Name, Store};
use crate::volumes::record::blocked;

/// Arguments of `quorate retry`.
#[derive(Args, Debug)]
pub struct RetryArgs {
    /// The kind of object
    #[command(subcommand)]
    what: What,
}

/// The kinds that have failures to retry.
#[derive(Subcommand, Debug)]
enum What {
    /// Retry what failed on a volume at once, and with short delays after that
    Volume(VolumeArgs),
}

/// Arguments of `quorate retry volume`.
#[derive(Args, Debug)]
struct VolumeArgs {
    /// The volume
    #[arg(value_name = "NAME")]
    name: Name,
}

/// Runs the command.
///
/// # Errors
/// 3 for a volume that does not exist.
pub async fn run(args: RetryArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let What::Volume(VolumeArgs { name }) = args.what;
    let store = connect(etcd).await?;
    let said = commit::settle(&store, REQUESTED, async || decide(&store, &name).await).await?;
    print(&format!("volume/{name} {said}\n")).map(drop)
}

async fn decide(store: &Store, name: &Name) -> Result<Decision<String>, Failure> {
    let stored: Versioned<Volume> = Versioned::read(store, name.as_str(), store.keys.volume(name)).await?;
    let mut volume = stored.object.clone();
    let said = match has_failed(store, name, &volume).await? {
        true => "is retried",
        false => "is planned again; nothing of it has failed",
    };
    let now = Timestamp::now();
    // With nanoseconds, so that each request changes the record.
    volume.status.get_or_insert_default().retry_requested = Some(prost_types::Timestamp {
        seconds: now.as_second(),
        nanos: now.subsec_nanosecond(),
    });
    Ok(Decision::Write(stored.put(&volume), said.to_owned()))
}

/// Whether the volume or a publication of it is blocked.
async fn has_failed(store: &Store, name: &Name, volume: &Volume) -> Result<bool, Failure> {
    let status = volume.status.clone().unwrap_or_default();
    if blocked(&status.conditions).is_some() {
        return Ok(true);
    }
    let range = store.keys.publications_of(name);
    let (publications, _) = store.etcd.list(&range).await?;
    Ok(publications.iter().any(|kv| {
        let publication = Publication::decode(kv.value.as_slice()).unwrap_or_default();
        blocked(&publication.status.unwrap_or_default().conditions).is_some()
    }))
}
