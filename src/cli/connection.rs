//! The flags of every command: where etcd is, as whom, below which prefix.

use std::path::PathBuf;

use clap::Args;

/// How to reach etcd, and below which prefix Quorate's keys lie.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "etcd")]
pub struct EtcdArgs {
    /// Comma-separated client URLs of the etcd cluster
    #[arg(
        long,
        global = true,
        env = "QUORATE_ETCD_ENDPOINTS",
        value_name = "URL,…",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379"
    )]
    pub etcd_endpoints: Vec<String>,

    /// Prefix of every key
    #[arg(
        long,
        global = true,
        env = "QUORATE_PREFIX",
        value_name = "PREFIX",
        default_value = "/quorate"
    )]
    pub prefix: String,

    /// Certificate authority that signed etcd's certificate (PEM; default: the system's)
    #[arg(long, global = true, env = "QUORATE_ETCD_CACERT", value_name = "FILE")]
    pub etcd_cacert: Option<PathBuf>,

    /// Client certificate (PEM)
    #[arg(
        long,
        global = true,
        env = "QUORATE_ETCD_CERT",
        value_name = "FILE",
        requires = "etcd_key"
    )]
    pub etcd_cert: Option<PathBuf>,

    /// Key of the client certificate (PEM)
    #[arg(
        long,
        global = true,
        env = "QUORATE_ETCD_KEY",
        value_name = "FILE",
        requires = "etcd_cert"
    )]
    pub etcd_key: Option<PathBuf>,

    /// etcd user
    #[arg(
        long,
        global = true,
        env = "QUORATE_ETCD_USER",
        value_name = "NAME",
        requires = "etcd_password_file"
    )]
    pub etcd_user: Option<String>,

    /// File that holds the etcd user's password
    #[arg(
        long,
        global = true,
        env = "QUORATE_ETCD_PASSWORD_FILE",
        value_name = "FILE",
        requires = "etcd_user"
    )]
    pub etcd_password_file: Option<PathBuf>,
}
