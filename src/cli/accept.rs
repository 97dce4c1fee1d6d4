//! `quorate accept`.

use clap::Args;

use super::commit::{self, Decision};
use super::connection::{EtcdArgs, connect};
use super::exit::Failure;
use super::output::{Reader, print};
use super::roles::request::read_node;
use crate::proto::node_spec::Membership;
use crate::store::object::Object;
use crate::store::{Name, Store};

/// Arguments of `quorate accept`.
#[derive(Args, Debug)]
#[command(after_help = "\
No certificate is issued to a node whose membership is pending. Once it is accepted, a request that waits is answered at once. \
If one of the nodes does not exist, none is accepted.

Examples:
  quorate accept n4")]
pub struct AcceptArgs {
    /// The nodes
    #[arg(value_name = "NODE", required = true)]
    nodes: Vec<Name>,
}

/// Runs the command.
///
/// # Errors
/// 3 for a node that does not exist.
pub async fn run(args: AcceptArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect(etcd).await?;
    // Before any of them is accepted.
    for name in &args.nodes {
        read_node(&store, name).await?;
    }
    for name in &args.nodes {
        let said = commit::settle(&store, "accepted", async || decide(&store, name).await).await?;
        let _: Reader = print(&format!("node/{name} {said}\n"))?;
    }
    Ok(())
}

async fn decide(store: &Store, name: &Name) -> Result<Decision<&'static str>, Failure> {
    let stored = read_node(store, name).await?;
    let mut accepted = stored.object.clone();
    let spec = accepted.spec.get_or_insert_default();
    match Membership::try_from(spec.membership) {
        Ok(Membership::Unspecified | Membership::Accepted) => {
            return Ok(Decision::Nothing("is accepted already"));
        }
        Ok(Membership::Pending) | Err(_) => spec.set_membership(Membership::Accepted),
    }
    accepted.next_generation();
    Ok(Decision::Write(stored.put(&accepted), "is accepted"))
}
