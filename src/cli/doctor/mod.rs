//! `quorate doctor`: finds what is wrong, and says what to do.
//!
//! `observe` asks etcd, the API server, the plugins and the files, all side by side and each within a limit; `checks` judge what
//! was `seen`, without asking anything; a `report` shows the `finding`s, causes first.

mod checks;
mod finding;
#[cfg(test)]
mod fixtures;
mod observe;
mod reason;
mod report;
mod seen;

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

use super::connection::EtcdArgs;
use super::encryption::KeyFiles;
use super::exit::{Exit, Failure};
use super::kubernetes::NotBoth;
use super::output::print;
use super::values::switch;
use finding::Severity;

/// Arguments of `quorate doctor`.
#[derive(Args, Debug)]
#[command(after_help = "\
Asks etcd, the Kubernetes API, the CSI plugins and the files, and changes nothing. Each finding says what is wrong, why it matters \
and what to do; causes come first, and what follows from one stands with it. It needs no quorum, and no part waits for another: a \
server that hangs costs a few seconds.

The flags and variables are those of quorate run, so that it sees what a replica sees when it runs beside one. Plugins on a socket \
can only be asked on that machine.

Examples:
  quorate doctor --no-kubernetes \\
    --etcd-endpoints http://10.0.0.1:2379,http://10.0.0.2:2379,http://10.0.0.3:2379
  kubectl -n quorate-system exec deploy/quorate -- quorate doctor
  quorate doctor -o json | jq -r '.findings[] | [.severity, .reason, .subjects[0]] | @tsv'

Exit codes: 0 nothing found, or notes alone; 6 warnings; 7 faults; 64 usage.")]
pub struct DoctorArgs {
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: DoctorFormat,

    #[command(flatten)]
    _not_both: NotBoth,

    /// Kubeconfig file [default: in-cluster, then $KUBECONFIG, then ~/.kube/config]
    #[arg(long, env = "QUORATE_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Leave Kubernetes out
    #[arg(long, env = "QUORATE_NO_KUBERNETES", action = ArgAction::SetTrue, value_parser = switch)]
    no_kubernetes: bool,

    /// Directory of the bundle whose permissions are reviewed [default: the built-in one]
    #[arg(long, env = "QUORATE_BUNDLE", value_name = "DIR")]
    bundle: Option<PathBuf>,

    /// Directory of the authorities [default: they are not checked]
    #[arg(long, env = "QUORATE_CA_DIR", value_name = "DIR")]
    ca_dir: Option<PathBuf>,

    #[command(flatten)]
    encryption: KeyFiles,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum DoctorFormat {
    /// A paragraph for each finding
    #[default]
    Table,
    /// One JSON object
    Json,
}

/// Runs the command.
///
/// # Errors
/// 64 if a flag is wrong; 6 or 7 by the worst finding.
pub async fn run(args: DoctorArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let seen = observe::observe(&args, etcd).await?;
    let report = checks::report(&seen);
    let text = match args.output {
        DoctorFormat::Table => report.text(),
        DoctorFormat::Json => format!("{:#}\n", report.document()),
    };
    print(&text)?;
    let (exit, worst) = match report.worst() {
        None | Some(Severity::Note) => return Ok(()),
        Some(worst @ Severity::Warning) => (Exit::Warnings, worst),
        Some(worst @ Severity::Fault) => (Exit::Faults, worst),
    };
    let why = match args.output {
        // It ends with the summary.
        DoctorFormat::Table => format!("doctor found {}s", worst.word()),
        DoctorFormat::Json => report.summary().trim_end_matches('.').to_owned(),
    };
    Err(Failure::new(exit, why))
}
