//! Leads until the lead is lost or the program is interrupted: `elect ENDPOINT NAME`.

use std::time::Duration;

use quorate::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (endpoint, name) = args.next().zip(args.next()).ok_or("usage: elect ENDPOINT NAME")?;
    let etcd = Etcd::builder([endpoint]).connect().await?;
    let leadership = elect(&etcd, "/example/leader", &name, Duration::from_secs(5)).await?;
    println!("{name} leads, term {}", leadership.fence().term());
    tokio::select! {
        () = leadership.lost() => println!("{name} has lost the lead"),
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            println!("{name} resigns");
        }
    }
    // All work has ended: the next candidate may lead.
    leadership.resign().await;
    Ok(())
}
