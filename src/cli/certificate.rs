//! `quorate certificate`.

use clap::{Args, Subcommand};

use super::commit::{self, Decision};
use super::connection::{EtcdArgs, connect};
use super::exit::Failure;
use super::output::print;
use super::roles::request::read_node;
use crate::etcd::Txn;
use crate::identity::record::rotating;
use crate::proto::NodeCertificate;
use crate::proto::node_certificate::State;
use crate::store::object::{Object, message};
use crate::store::{Name, Store};

/// Arguments of `quorate certificate`.
#[derive(Args, Debug)]
pub struct CertificateArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Ask a node to replace its certificate
    Rotate(RotateArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
The node requests another certificate, with a key of the node's choice. Until the node has the new one, the present one stays \
valid. A request that is pending already leads to another certificate too, so that there is nothing to do.

Examples:
  quorate certificate rotate n4
  quorate certificate rotate n4 --etcd

Exit codes: 0 done, 1 failed, 3 the node does not exist, or never requested a certificate, 4 the node or the \
record of its certificate cannot be read.")]
struct RotateArgs {
    /// The node
    #[arg(value_name = "NODE")]
    node: Name,

    /// Ask it to replace the certificate of its member of etcd instead
    #[arg(long)]
    etcd: bool,
}

/// Runs the command.
///
/// # Errors
/// 3 for a node that does not exist, or has no certificate; 4 for what cannot be read.
pub async fn run(args: CertificateArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let Command::Rotate(args) = args.command;
    let store = connect(etcd).await?;
    let said = commit::settle(&store, "requested", async || decide(&store, &args).await).await?;
    print(&format!("node/{} {said}\n", args.node)).map(drop)
}

async fn decide(store: &Store, args: &RotateArgs) -> Result<Decision<&'static str>, Failure> {
    let name = &args.node;
    let node = read_node(store, name).await?;
    let key = match args.etcd {
        false => store.keys.certificate(node.object.uid()),
        true => store.keys.etcd_certificate(node.object.uid()),
    };
    let (stored, _) = store.etcd.get(&key).await?;
    let Some(stored) = stored else {
        return Err(match args.etcd {
            false => Failure::not_found(format_args!("node/{name} never requested a certificate"))
                .hint("its agent requests one when it joins"),
            true => Failure::not_found(format_args!("node/{name} never requested a certificate of etcd"))
                .hint(
                    "the agent of a manager requests one, where its --peer-url or --client-url says https://",
                ),
        });
    };
    let record: NodeCertificate = message("NodeCertificate", &stored.value)
        .map_err(|malformed| Failure::refused("Malformed", malformed))?;
    match State::try_from(record.state) {
        Ok(State::Pending) => return Ok(Decision::Nothing("has a request that is pending")),
        Ok(State::Rotate) => return Ok(Decision::Nothing("is asked already to replace its certificate")),
        Ok(State::Unspecified | State::Issued | State::Failed) => {}
        Err(_) => {
            let why = format!(
                "its certificate has a state that only a later release knows ({})",
                record.state
            );
            return Err(Failure::refused("LaterRelease", why));
        }
    }
    let txn = Txn::new()
        .when_unchanged(&key, stored.mod_revision)
        .put(&key, rotating(&stored.value));
    Ok(Decision::Write(txn, "is asked to replace its certificate"))
}
