//! The flags of `quorate agent` for the etcd of its node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::agent::manager::{self, Launch, Program, Settings, Variables, listened};
use crate::cli::exit::Failure;
use crate::cli::roles::join::url;
use crate::cli::values::address;
use crate::roles::settings::default_client_urls;

/// More than any file of settings has, in bytes.
const LONGEST: u64 = 64 << 10;

/// Arguments for the etcd of a node.
#[derive(Args, Debug)]
pub struct EtcdOfNodeArgs {
    /// URL at which the other members reach the etcd of this node, while the node is a manager; may be given several times [default:
    /// the agent keeps no etcd]
    #[arg(long = "peer-url", env = "QUORATE_PEER_URL", value_name = "URL", value_delimiter = ',', value_parser = url)]
    peer_urls: Vec<String>,

    /// URL at which clients reach that etcd [default: the hosts of the peer URLs, port 2379]
    #[arg(long = "client-url", env = "QUORATE_CLIENT_URL", value_name = "URL", value_delimiter = ',', value_parser = url, requires = "peer_urls")]
    client_urls: Vec<String>,

    /// How etcd is started: a program, as a child of the agent that outlives it, or unit:NAME, a unit of systemd
    #[arg(long, env = "QUORATE_ETCD", value_name = "PROGRAM|unit:NAME", default_value = "etcd", value_parser = launch)]
    etcd: Launch,

    /// Its data directory; what belongs to it is beside it [default: etcd in the state directory]
    #[arg(long, env = "QUORATE_ETCD_DATA_DIR", value_name = "DIR")]
    etcd_data_dir: Option<PathBuf>,

    /// Where it listens for the other members [default: the peer URLs; every address where those name a host]
    #[arg(long = "etcd-listen-peer-url", env = "QUORATE_ETCD_LISTEN_PEER_URL", value_name = "URL", value_delimiter = ',', value_parser = address_url)]
    listen_peer_urls: Vec<String>,

    /// Where it listens for clients [default: the client URLs; every address where those name a host]
    #[arg(long = "etcd-listen-client-url", env = "QUORATE_ETCD_LISTEN_CLIENT_URL", value_name = "URL", value_delimiter = ',', value_parser = address_url)]
    listen_client_urls: Vec<String>,

    /// Where it serves its health and metrics, in clear text
    #[arg(
        long,
        env = "QUORATE_ETCD_METRICS",
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:2381",
        value_parser = address
    )]
    etcd_metrics: SocketAddr,

    /// File with further settings of etcd, a line ETCD_NAME=value each
    #[arg(long, env = "QUORATE_ETCD_SETTINGS", value_name = "FILE")]
    etcd_settings: Option<PathBuf>,

    /// Etcd ends with the agent, by setpriv, for clusters that last as long as a test
    #[arg(long, hide = true)]
    etcd_ends_with_agent: bool,

    /// Interval between two looks at etcd and its files, in milliseconds [default: 5000]
    #[arg(long, hide = true)]
    etcd_look_ms: Option<u64>,
}

/// A value of `--etcd`.
fn launch(text: &str) -> Result<Launch, String> {
    match text.strip_prefix("unit:") {
        Some(name) if name.is_empty() || name.contains('/') || name.starts_with('-') => {
            Err("expected unit:NAME, as in unit:quorate-etcd".to_owned())
        }
        Some(name) => Ok(Launch::Unit(name.to_owned())),
        None if text.is_empty() => Err("expected a program, or unit:NAME".to_owned()),
        None => Ok(Launch::Child(Program {
            path: PathBuf::from(text),
            ends_with_agent: false,
        })),
    }
}

/// A URL at which etcd can listen: it listens on addresses, not on names of hosts.
fn address_url(text: &str) -> Result<String, String> {
    let url = url(text)?;
    match listened(std::slice::from_ref(&url)) == [url.as_str()] {
        true => Ok(url),
        false => Err("expected an address in place of a host, like https://0.0.0.0:2380".to_owned()),
    }
}

impl EtcdOfNodeArgs {
    /// The etcd of the node; `None` where the agent keeps none.
    ///
    /// # Errors
    /// A file cannot be read, or holds a setting that cannot be taken.
    pub fn settings(self) -> Result<Option<Settings>, Failure> {
        if self.peer_urls.is_empty() {
            return Ok(None);
        }
        let or = |given: Vec<String>, other: Vec<String>| if given.is_empty() { other } else { given };
        let mut launch = self.etcd;
        if let Launch::Child(program) = &mut launch {
            program.ends_with_agent = self.etcd_ends_with_agent;
        }
        let defaults = Settings::default();
        let client_urls = or(self.client_urls, default_client_urls(&self.peer_urls));
        let mut times = defaults.times;
        if let Some(look) = self.etcd_look_ms.map(Duration::from_millis) {
            times.look_every = look;
        }
        Ok(Some(Settings {
            listen_peer_urls: or(self.listen_peer_urls, listened(&self.peer_urls)),
            listen_client_urls: or(self.listen_client_urls, listened(&client_urls)),
            client_urls,
            peer_urls: self.peer_urls,
            metrics: self.etcd_metrics,
            data: self.etcd_data_dir.unwrap_or(defaults.data),
            launch,
            more: match &self.etcd_settings {
                Some(file) => read(file)?,
                None => Variables::new(),
            },
            times,
        }))
    }
}

fn read(file: &Path) -> Result<Variables, Failure> {
    let flag = "--etcd-settings";
    let failed = |why: String| Failure::usage(format_args!("{flag}: {}: {why}", file.display()));
    let size = std::fs::metadata(file)
        .map_err(|error| failed(error.to_string()))?
        .len();
    if size > LONGEST {
        return Err(failed(format!(
            "it has {size} bytes, more than settings of etcd have"
        )));
    }
    let text = std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
    manager::added(&text).map_err(failed)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        etcd: EtcdOfNodeArgs,
    }

    fn settings(flags: &[&str]) -> Option<Settings> {
        let args = ["agent"].iter().chain(flags);
        let parsed = Cli::try_parse_from(args).unwrap_or_else(|error| panic!("{error}"));
        parsed
            .etcd
            .settings()
            .unwrap_or_else(|failure| panic!("{failure:?}"))
    }

    #[test]
    fn without_a_peer_url_an_agent_keeps_no_etcd() {
        assert!(settings(&[]).is_none());
        assert!(Cli::try_parse_from(["agent", "--client-url=https://a:1"]).is_err());
    }

    #[test]
    fn what_is_not_given_follows_from_the_peer_urls() {
        let settings = settings(&["--peer-url=https://n1.example:2380"]).unwrap();
        assert_eq!(settings.client_urls, ["https://n1.example:2379"]);
        assert_eq!(settings.listen_peer_urls, ["https://0.0.0.0:2380"]);
        assert_eq!(settings.listen_client_urls, ["https://0.0.0.0:2379"]);
        assert_eq!(settings.data, Path::new("etcd"));
    }

    #[test]
    fn etcd_is_a_program_or_a_unit_and_listens_on_addresses() {
        let peer = "--peer-url=https://10.0.0.1:2380";
        let unit = settings(&[peer, "--etcd=unit:quorate-etcd"]).unwrap();
        assert_eq!(unit.launch, Launch::Unit("quorate-etcd".to_owned()));
        let child = settings(&[peer, "--etcd=/usr/bin/etcd", "--etcd-ends-with-agent"]).unwrap();
        let Launch::Child(program) = child.launch else {
            panic!("{:?}", child.launch)
        };
        assert!(program.ends_with_agent);
        for bad in [
            "--etcd=unit:",
            "--etcd=unit:/etc/x",
            "--etcd=",
            "--etcd-listen-peer-url=https://n1:2380",
        ] {
            assert!(Cli::try_parse_from(["agent", peer, bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn further_settings_are_read_and_a_fault_in_them_is_named_with_its_file() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("more");
        let flag = format!("--etcd-settings={}", file.display());
        let flags = ["agent", "--peer-url=https://10.0.0.1:2380", &flag];
        let parsed = || Cli::try_parse_from(flags).unwrap().etcd.settings();
        assert!(parsed().is_err(), "there is no file");
        std::fs::write(&file, "ETCD_SNAPSHOT_COUNT=5\n").unwrap();
        assert_eq!(parsed().unwrap().unwrap().more.len(), 1);
        std::fs::write(&file, "ETCD_WAL_DIR=/x\n").unwrap();
        let failure = format!("{:?}", parsed().unwrap_err());
        assert!(failure.contains("more: line 1 sets ETCD_WAL_DIR"), "{failure}");
    }
}
