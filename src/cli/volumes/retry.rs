//! `quorate retry`: what failed is tried again at once.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use prost::Message;

use super::{Request, carry_out, name};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::print;
use crate::etcd::Txn;
use crate::proto::Volume;
use crate::store::object::decode;
use crate::store::{Name, Store};

/// Arguments of `quorate retry`.
#[derive(Args, Debug)]
pub struct RetryArgs {
    /// Of what
    #[command(subcommand)]
    what: What,
}

/// What can be tried again.
#[derive(Subcommand, Debug)]
enum What {
    /// Try what failed on a volume again, at once, and with short delays from there on
    Volume(VolumeArgs),
}

/// Arguments of `quorate retry volume`.
#[derive(Args, Debug)]
struct VolumeArgs {
    /// The volume
    #[arg(value_name = "NAME", value_parser = name)]
    name: Name,
}

/// Runs the command.
///
/// # Errors
/// 3 for a volume that does not exist.
pub async fn run(args: RetryArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let What::Volume(VolumeArgs { name }) = args.what;
    let store = connect(etcd).await?;
    let said = carry_out(&store, || decide(&store, &name)).await?;
    print(&format!("volume/{name} {said}\n")).map(drop)
}

async fn decide(store: &Store, name: &Name) -> Result<Request, Failure> {
    let key = store.keys.volume(name);
    let (stored, _) = store.etcd.get(&key).await.map_err(Failure::failed)?;
    let Some(stored) = stored else {
        return Err(Failure::new(Exit::NotFound, format!("volume/{name} not found")));
    };
    let mut volume = decode::<Volume>(name.as_str(), &stored.value)
        .map_err(|malformed| Failure::failed(format!("the stored value cannot be read ({malformed})")))?;
    let now = Timestamp::now();
    // With its nanoseconds, so that each request is a change.
    volume.status.get_or_insert_default().retry_requested = Some(prost_types::Timestamp {
        seconds: now.as_second(),
        nanos: now.subsec_nanosecond(),
    });
    let txn = Txn::new()
        .when_unchanged(&key, stored.mod_revision)
        .put(&key, volume.encode_to_vec());
    Ok(Request::Write(txn, "is tried again".to_owned()))
}
