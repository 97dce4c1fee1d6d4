//! The command line: a module for each family of commands. All share one vocabulary for connections and one table of
//! exit codes.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::lines;

pub mod accept;
pub mod agent;
pub mod bundle;
pub mod ca;
pub mod certificate;
pub mod commit;
pub mod companion;
pub mod completions;
pub mod confirm;
pub mod connection;
pub mod dev;
pub mod doctor;
pub mod duration;
pub mod encryption;
pub mod exit;
pub mod inventory;
pub mod kubernetes;
pub mod log_level;
pub mod objects;
pub mod outage;
pub mod output;
pub mod roles;
pub mod run;
pub mod secrets;
pub mod signals;
pub mod status;
pub mod token;
pub mod values;
pub mod version;
pub mod volumes;
pub mod wait;
pub mod wait_ready;

use connection::EtcdArgs;
use exit::{Exit, Failure};

/// An etcd-backed, leader-elected cluster controller.
#[derive(Parser, Debug)]
#[command(name = "quorate", version, max_term_width = 100, after_help = exit::TABLE, disable_help_subcommand = true)]
pub struct Cli {
    /// How to reach etcd.
    #[command(flatten)]
    pub etcd: EtcdArgs,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands, in the order of `--help`.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a replica of the controller
    Run(Box<run::RunArgs>),
    /// Run the agent of a node
    Agent(Box<agent::AgentArgs>),
    /// Run etcd, a kube-apiserver and the controller on this machine, to try things out
    #[command(disable_help_flag = true)]
    Dev {
        /// Read by quorate-dev, the program that does this
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Block until the reconciled state admits a release
    WaitReady(wait_ready::WaitReadyArgs),
    /// Show the leader, the gate and the replicas
    Status(status::StatusArgs),
    /// Find what is wrong, and say what to do
    Doctor(doctor::DoctorArgs),
    /// List objects
    Get(objects::get::GetArgs),
    /// Show objects in full
    Describe(objects::describe::DescribeArgs),
    /// Say what a kind is, and what its fields mean
    Explain(objects::explain::ExplainArgs),
    /// Wait until objects are as a script needs them
    Wait(objects::wait::WaitForArgs),
    /// Create or change objects from YAML or JSON
    Apply(objects::apply::command::ApplyArgs),
    /// Show what apply would change
    Diff(objects::apply::diff::DiffArgs),
    /// Change an object in an editor
    Edit(objects::apply::edit::EditArgs),
    /// Delete objects
    Delete(objects::delete::command::DeleteArgs),
    /// Make nodes managers, which may then join etcd
    Promote(roles::promote::PromoteArgs),
    /// Make a node a worker and remove its member from etcd
    Demote(roles::demote::DemoteArgs),
    /// Add a manager's etcd as a member, and print what it needs to start
    Join(roles::join::JoinArgs),
    /// Replace the member of a manager that has lost its data
    Replace(roles::replace::ReplaceArgs),
    /// Say what to do for an etcd that has lost its quorum
    Recover(roles::recover::RecoverArgs),
    /// Hold the leader back from changing roles and members
    Pause(roles::pause::PauseArgs),
    /// Let the leader change roles and members again
    Resume(roles::pause::ResumeArgs),
    /// Record etcd members that Quorate does not know, with a node for each
    Adopt(roles::adopt::AdoptArgs),
    /// Publish volumes to a node
    Publish(volumes::publish::PublishArgs),
    /// Unpublish a volume from a node
    Unpublish(volumes::unpublish::UnpublishArgs),
    /// Say that the nodes have expanded what is on a volume
    Expanded(volumes::expanded::ExpandedArgs),
    /// Take back, or remove, what a forced deletion left at a backend
    Tombstone(volumes::tombstone::TombstoneArgs),
    /// Retry what failed, without a delay
    Retry(volumes::retry::RetryArgs),
    /// Drain a node, or declare it out of service
    Drain(volumes::drain::DrainArgs),
    /// Show how Secrets are encrypted, and encrypt them with another key
    Secrets(secrets::SecretsArgs),
    /// Check, compare and permit a bundle of Kubernetes resources
    Bundle(bundle::BundleArgs),
    /// List and correct the inventory of Kubernetes objects
    Inventory(inventory::InventoryArgs),
    /// Make the authorities of a cluster, and certificates for etcd
    Ca(ca::CaArgs),
    /// Make, show and check the tokens to join with
    Token(token::TokenArgs),
    /// Accept nodes, which then get certificates
    Accept(accept::AcceptArgs),
    /// Have the certificate of a node replaced
    Certificate(certificate::CertificateArgs),
    /// Show and change what all replicas write to their logs
    LogLevel(log_level::LogLevelArgs),
    /// Show the version of this program and of the replicas
    Version(version::VersionArgs),
    /// Print a shell's completion script
    Completions(completions::CompletionsArgs),
}

/// Parses the command line, runs the command and turns its outcome into an exit code.
pub fn main() -> ExitCode {
    execute(async |Cli { etcd, command }: Cli| match command {
        Command::Run(args) => run::run(*args, &etcd).await,
        Command::Agent(args) => agent::run(*args).await,
        Command::Dev { .. } => dev::run(),
        Command::WaitReady(args) => wait_ready::run(args, &etcd).await,
        Command::Status(args) => status::run(args, &etcd).await,
        Command::Doctor(args) => doctor::run(args, &etcd).await,
        Command::Get(args) => objects::get::run(args, &etcd).await,
        Command::Describe(args) => objects::describe::run(args, &etcd).await,
        Command::Explain(args) => objects::explain::run(&args),
        Command::Wait(args) => objects::wait::run(args, &etcd).await,
        Command::Apply(args) => objects::apply::command::run(args, &etcd).await,
        Command::Diff(args) => objects::apply::diff::run(args, &etcd).await,
        Command::Edit(args) => objects::apply::edit::run(args, &etcd).await,
        Command::Delete(args) => objects::delete::command::run(args, &etcd).await,
        Command::Promote(args) => roles::promote::run(args, &etcd).await,
        Command::Demote(args) => roles::demote::run(args, &etcd).await,
        Command::Join(args) => roles::join::run(args, &etcd).await,
        Command::Replace(args) => roles::replace::run(args, &etcd).await,
        Command::Recover(args) => roles::recover::run(args, &etcd).await,
        Command::Pause(args) => roles::pause::pause(args, &etcd).await,
        Command::Resume(args) => roles::pause::resume(args, &etcd).await,
        Command::Adopt(args) => roles::adopt::run(args, &etcd).await,
        Command::Publish(args) => volumes::publish::run(args, &etcd).await,
        Command::Unpublish(args) => volumes::unpublish::run(args, &etcd).await,
        Command::Expanded(args) => volumes::expanded::run(args, &etcd).await,
        Command::Tombstone(args) => volumes::tombstone::run(args, &etcd).await,
        Command::Retry(args) => volumes::retry::run(args, &etcd).await,
        Command::Drain(args) => volumes::drain::run(args, &etcd).await,
        Command::Secrets(args) => secrets::run(args, &etcd).await,
        Command::Bundle(args) => bundle::run(args, &etcd).await,
        Command::Inventory(args) => inventory::run(args, &etcd).await,
        Command::Ca(args) => ca::run(args, &etcd).await,
        Command::Token(args) => token::run(args, &etcd).await,
        Command::Accept(args) => accept::run(args, &etcd).await,
        Command::Certificate(args) => certificate::run(args, &etcd).await,
        Command::LogLevel(args) => log_level::run(args, &etcd).await,
        Command::Version(args) => version::run(args, &etcd).await,
        Command::Completions(args) => completions::run(args),
    })
}

/// Parses this process's command line, runs `command` with it, and turns the outcome into an exit code.
pub fn execute<C: Parser>(command: impl AsyncFnOnce(C) -> Result<(), Failure>) -> ExitCode {
    let arguments = match values::parse::<C>() {
        Ok(arguments) => arguments,
        Err(shown) => return show(&shown).into(),
    };
    let exit = match block_on(command(arguments)) {
        Ok(()) => Exit::Done,
        Err(failure) => {
            // What etcd holds may be in it.
            let said = output::some_lines(&failure.to_string());
            lines::stderr().line(format_args!("error: {said}"));
            failure.exit
        }
    };
    lines::stderr().flush(LAST_LINES_LIMIT);
    exit.into()
}

/// Shows what clap has to say: help and version are answers, everything else is a usage error.
fn show(shown: &clap::Error) -> Exit {
    if !shown.use_stderr() {
        // An answer whose reader is gone is no failure.
        let _ = shown.print();
        return Exit::Done;
    }
    if io::stderr().is_terminal() {
        // With colours, as the terminal has them.
        let _ = shown.print();
    } else {
        lines::stderr().line(shown.render().to_string().trim_end());
        lines::stderr().flush(LAST_LINES_LIMIT);
    }
    Exit::Usage
}

/// How long a process that ends waits for its last lines to be written.
const LAST_LINES_LIMIT: Duration = Duration::from_secs(1);

/// The stack of a thread that polls futures, in bytes: twice tokio's own. A build without optimization keeps a copy of a future in
/// each function that awaits it. What is not used takes no memory.
const STACK: usize = 4 << 20;

fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK)
        .build()
        .map_err(|error| Failure::failed(format!("cannot start the async runtime: {error}")))?;
    let done = runtime.block_on(command);
    // Not dropped: that would wait for ever for threads that block, such as one that resolves a name (INV-10).
    runtime.shutdown_background();
    done
}
