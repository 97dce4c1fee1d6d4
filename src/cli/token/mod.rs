//! `quorate token`: the tokens to join with. etcd holds a hash of each, so that a token is shown once, when it is made.

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

use super::connection::EtcdArgs;
use super::exit::Failure;
use crate::etcd::KeyValue;
use crate::identity::token::NoRandomBits;
use crate::proto::JoinToken;
use crate::store::Name;
use crate::store::keys::Joiner;
use crate::store::object::{Malformed, message};

mod check;
mod make;
mod show;

/// Arguments of `quorate token`.
#[derive(Args, Debug)]
pub struct TokenArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Make a token and print it, this once
    Create(make::CreateArgs),
    /// Make another token in place of one, which lets in no more, and print it, this once
    Rotate(make::RotateArgs),
    /// Show which tokens there are
    Show(show::ShowArgs),
    /// Check a token: who joins with it
    Check(check::CheckArgs),
}

/// Who joins with a token.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct JoinerArgs {
    /// New nodes, with this as their desired role
    #[arg(long, value_name = "ROLE", value_parser = PossibleValuesParser::new(["worker", "manager"]))]
    role: Option<String>,

    /// An agent that takes over this node, once
    #[arg(long, value_name = "NAME")]
    node: Option<Name>,
}

impl JoinerArgs {
    fn joiner(&self) -> Joiner {
        match (&self.node, self.role.as_deref()) {
            (Some(node), _) => Joiner::Node(node.clone()),
            (None, Some("manager")) => Joiner::Manager,
            (None, _) => Joiner::Worker,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// A failure with the exit code of the subcommand.
pub async fn run(args: TokenArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    match args.command {
        Command::Create(args) => make::create(&args, etcd).await,
        Command::Rotate(args) => make::rotate(&args, etcd).await,
        Command::Show(args) => show::run(&args, etcd).await,
        Command::Check(args) => check::run(&args, etcd).await,
    }
}

fn read_record(stored: &KeyValue) -> Result<JoinToken, Malformed> {
    message("JoinToken", &stored.value)
}

impl From<NoRandomBits> for Failure {
    fn from(error: NoRandomBits) -> Self {
        Self::failed(error)
    }
}
