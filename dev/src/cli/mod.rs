//! The program quorate-dev, which `quorate dev` executes.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use quorate::cli::connection::EtcdArgs;
use quorate::cli::execute;
use quorate::cli::exit;

mod csi_plugin;
mod dev;

/// A Quorate cluster on one machine, and a CSI plugin to test against.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100, after_help = exit::TABLE, disable_help_subcommand = true)]
struct Cli {
    /// Accepted as by every command of quorate. `dev` uses `--prefix` alone; `csi-plugin` uses none.
    #[command(flatten)]
    etcd: EtcdArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run etcd, a kube-apiserver and the controller on this machine, to try things out
    Dev(dev::DevArgs),
    /// Serve a CSI plugin to test against
    CsiPlugin(Box<csi_plugin::CsiPluginArgs>),
}

/// Parses the command line, runs the command and turns its outcome into an exit code.
pub fn main() -> ExitCode {
    execute(async |Cli { etcd, command }: Cli| match command {
        Command::Dev(args) => dev::run(args, &etcd).await,
        Command::CsiPlugin(args) => csi_plugin::run(*args).await,
    })
}
