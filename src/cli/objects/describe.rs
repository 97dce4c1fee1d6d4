//! `quorate describe`: prints objects in full, in words.

use clap::Args;
use jiff::Timestamp;

use super::kinds::target::{Target, TargetParser};
use crate::cli::connection::{EtcdArgs, connect_to_show};
use crate::cli::exit::Failure;
use crate::cli::output::{Reader, note, print};

/// Arguments of `quorate describe`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quorate describe node n1
  quorate describe member etcd-1      # by the name of the member or its id
  quorate describe replica/quorate-0
  quorate describe service web        # its tasks, and what holds back its deletion
  quorate describe volume data        # what it waits for")]
pub struct DescribeArgs {
    /// What to describe; KIND/NAME names one object
    #[arg(value_name = "KIND[/NAME]", value_parser = TargetParser::ALL)]
    target: Target,

    /// Names of the objects; all of the kind if none is given
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// 3 if a named object does not exist.
pub async fn run(args: DescribeArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let (kind, ids) = args.target.resolve(&args.names).map_err(Failure::usage)?;
    let store = connect_to_show(etcd).await?;
    let view = kind.read_to_describe(&store, &ids).await?;
    let (found, missing) = kind.select(&view, &ids, Timestamp::now());
    if found.is_empty() && missing.is_empty() {
        note(format_args!(
            "no {} found below {}",
            kind.words.plural,
            store.keys.prefix()
        ));
    }
    let texts: Vec<String> = found.iter().map(|item| kind.describe(item)).collect();
    if print(&texts.join("\n"))? == Reader::Gone || missing.is_empty() {
        return Ok(());
    }
    Err(kind.not_found(&missing, &store.keys))
}
