//! Writes a key as the leader, and shows that etcd refuses the same write afterwards: `fenced_write ENDPOINT`.

use std::time::Duration;

use quorate::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = std::env::args().nth(1).ok_or("usage: fenced_write ENDPOINT")?;
    let etcd = Etcd::builder([endpoint]).connect().await?;
    let leadership = elect(&etcd, "/example/leader", "writer", Duration::from_secs(5)).await?;
    let fence = leadership.fence().clone();
    let write = || Txn::new().put(b"/example/key", "written by the leader");

    let committed = etcd.fenced(&fence, write()).await?;
    println!("written at revision {}", committed.revision);
    leadership.resign().await;
    match etcd.fenced(&fence, write()).await {
        Err(FencedError::LostLeadership(term)) => println!("refused: term {term} is over"),
        other => return Err(format!("not refused: {other:?}").into()),
    }
    Ok(())
}
