//! `quorate recover plan`: what to do for this very cluster after it has lost its quorum.

use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::cli::connection::{EtcdArgs, connect_without_quorum};
use crate::cli::exit::Failure;
use crate::cli::output::{Reader, note, print, shell_word};
use crate::roles::facts::Facts;

mod steps;

use steps::Credentials;

/// How long after a survey that shows no quorum the members are asked again: longer than they take to elect a leader.
const SECOND_LOOK: Duration = Duration::from_secs(5);

/// Arguments of `quorate recover`.
#[derive(Args, Debug)]
pub struct RecoverArgs {
    #[command(subcommand)]
    command: RecoverCommand,
}

#[derive(Subcommand, Debug)]
enum RecoverCommand {
    /// Print the steps for this cluster; changes nothing
    #[command(after_help = "\
The command asks every member by itself, so it needs no quorum; one member that answers is enough. It says whether there is a \
quorum, which member has the most data, and each step by which the cluster comes back from that member, or from a snapshot. \
Where no member proves a quorum, it asks again after five seconds. A member that this machine does not reach may run all the \
same: look there before you follow the steps.

--etcd-user does not work without a quorum, since etcd records every log-in. A client certificate whose common name is the user \
does.

Examples:
  quorate recover plan \\
    --etcd-endpoints http://10.0.0.1:2379,http://10.0.0.2:2379,http://10.0.0.3:2379")]
    Plan,
}

/// Runs the command.
///
/// # Errors
/// 1 if no member answers.
pub async fn run(args: RecoverArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let RecoverCommand::Plan = args.command;
    let store = connect_without_quorum(etcd).await?;
    let mut facts = Facts::with_health(&store).await?;
    if !facts.membership.serves() {
        note("no member proves a quorum; asking again, in case of an election");
        tokio::time::sleep(SECOND_LOOK).await;
        facts = Facts::with_every_status(&store).await?;
    }
    print(&steps::steps(&facts.membership, &credentials(etcd))).map(|_: Reader| ())
}

/// The credentials of this command, for the commands that it prints.
fn credentials(etcd: &EtcdArgs) -> Credentials {
    let flags = |names: [&str; 3]| -> String {
        let files = [&etcd.etcd_cacert, &etcd.etcd_cert, &etcd.etcd_key];
        let flag = |(name, file): (&str, &Path)| format!(" --{name}={}", shell_word(&file.to_string_lossy()));
        let given = names.into_iter().zip(files);
        let given = given.filter_map(|(name, file)| Some((name, file.as_deref()?)));
        given.map(flag).collect()
    };
    Credentials {
        etcdctl: flags(["cacert", "cert", "key"]),
        quorate: flags(["etcd-cacert", "etcd-cert", "etcd-key"]),
    }
}
