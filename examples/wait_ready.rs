//! Waits until the reconciled state admits a release: `wait_ready ENDPOINT RELEASE MIN_RECONCILER_RELEASE`.

use quorate::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, release, min_reconciler] = args.as_slice() else {
        return Err("usage: wait_ready ENDPOINT RELEASE MIN_RECONCILER_RELEASE".into());
    };
    let etcd = Etcd::builder([endpoint]).connect().await?;
    let store = Store::new(etcd, "/quorate".parse()?);
    let requirements = Requirements {
        release: release.parse()?,
        min_reconciler: min_reconciler.parse()?,
    };
    wait_ready(&store, requirements, |reason| println!("waiting: {reason}")).await?;
    println!("ready");
    Ok(())
}
