//! `quorate accept`.

use clap::Args;

use super::commit::{self, Decision};
use super::connection::{EtcdArgs, connect};
use super::exit::Failure;
use super::output::{Reader, one_line, print};
use super::roles::request::read_node;
use crate::proto::node_spec::Membership;
use crate::store::object::Object;
use crate::store::{Name, Store};

/// Arguments of `quorate accept`.
#[derive(Args, Debug)]
#[command(after_help = "\
No certificate is issued to a node whose membership is pending. Once it is accepted, a request that waits is answered at once. \
If one of the nodes does not exist, none is accepted; if another node has come in the place of one meanwhile, those before it are.

Examples:
  quorate accept n4

Exit codes: 0 done, 1 failed, 3 a node does not exist, 4 a node cannot be read, 5 another node has come in the place of one.")]
pub struct AcceptArgs {
    /// The nodes
    #[arg(value_name = "NODE", required = true)]
    nodes: Vec<Name>,
}

/// Runs the command.
///
/// # Errors
/// 3 for a node that does not exist, 4 for one that cannot be read, 5 for one in whose place another one has come meanwhile.
pub async fn run(args: AcceptArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect(etcd).await?;
    // Before any of them is accepted.
    let mut nodes = Vec::new();
    for name in &args.nodes {
        let node = read_node(&store, name).await?;
        nodes.push((name, node.object.uid().to_owned()));
    }
    for (name, uid) in nodes {
        let said = commit::settle(&store, "accepted", async || decide(&store, name, &uid).await).await?;
        let _: Reader = print(&format!("node/{name} (uid {}) {said}\n", one_line(&uid)))?;
    }
    Ok(())
}

async fn decide(store: &Store, name: &Name, uid: &str) -> Result<Decision<&'static str>, Failure> {
    let stored = read_node(store, name).await?;
    if stored.object.uid() != uid {
        let why = format!(
            "another node has come in the place of node/{name} (uid {})",
            one_line(uid)
        );
        return Err(Failure::conflict(why));
    }
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
