//! `quorate ca init`.

use std::path::Path;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::cli::exit::Failure;
use crate::cli::output::{note, print};
use crate::identity::{Authority, AuthorityKind, directory};
use crate::store::object::text;

/// The word for a Kubernetes Secret in place of a directory.
const SECRET: &str = "secret";

/// Arguments of `quorate ca init`.
#[derive(Args, Debug)]
#[command(after_help = "\
The node authority signs what agents and the control port show, the etcd authority what etcd and its clients show. Both are \
valid for ten years. The keys are written nowhere else, never below the prefix in etcd. The holder of a key holds the cluster: \
keep the keys apart from the backups of etcd.

An authority of your own works as well: its certificate, then those above it, in current/node-ca.crt or current/etcd-ca.crt, \
and its key (PKCS #8) in the file beside it.

Examples:
  quorate ca init -o ca
  quorate ca init -o secret | kubectl apply -n quorate-system -f -

Exit codes: 0 done, 1 not written, 5 there are authorities already.")]
pub struct InitArgs {
    /// Directory to write them to; `secret` prints a Secret for kubectl instead
    #[arg(short, long, value_name = "DIR|secret")]
    output: String,
}

pub fn run(args: &InitArgs) -> Result<(), Failure> {
    let now = Timestamp::now();
    let mut files = Vec::new();
    for kind in AuthorityKind::ALL {
        let (authority, key) = Authority::create(kind, now)?;
        files.push((kind.certificate_file(), authority.certificates_pem().to_owned()));
        files.push((kind.key_file(), key));
    }
    if args.output == SECRET {
        print(&text::to_yaml(&secret(files)))?;
        note("the keys are in this Secret alone: let no workload read it");
        return Ok(());
    }
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(name, content)| (*name, content.as_str()))
        .collect();
    let current = directory::create(Path::new(&args.output), &files)?;
    for (name, _) in files {
        print(&format!("wrote {}\n", current.join(name).display()))?;
    }
    Ok(())
}

fn secret(files: Vec<(&str, String)>) -> Value {
    let data: Map<String, Value> = files
        .into_iter()
        .map(|(name, content)| (name.to_owned(), content.into()))
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "quorate-ca"},
        "type": "Opaque",
        "stringData": data,
    })
}
