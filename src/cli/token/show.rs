//! `quorate token show`.

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::read_record;
use crate::cli::connection::{EtcdArgs, connect_to_show};
use crate::cli::exit::Failure;
use crate::cli::objects::get::list_document;
use crate::cli::output::{Table, UNKNOWN, note, print, warn};
use crate::etcd::Revision;
use crate::identity::token::authority;
use crate::proto::JoinToken;
use crate::store::keys::Joiner;
use crate::store::object::document::{self, given, present, with_header};
use crate::store::object::{Malformed, text, time};

/// Arguments of `quorate token show`.
#[derive(Args, Debug)]
#[command(after_help = "\
AUTHORITY is the digest of the node authority that the token names, as quorate ca show prints it. The tokens themselves are \
shown nowhere: etcd does not hold them.")]
pub struct ShowArgs {
    /// How to show them
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: TokenFormat,
}

/// How tokens are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TokenFormat {
    /// One line per token
    #[default]
    Table,
    /// A list of documents
    Json,
    /// A list of documents
    Yaml,
}

pub async fn run(args: &ShowArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect_to_show(etcd).await?;
    let (stored, revision) = store.etcd.list(&store.keys.join_tokens()).await?;
    let tokens: Vec<Stored> = stored
        .iter()
        .filter_map(|kv| {
            Some(Stored {
                joiner: store.keys.parse_join_token(&kv.key)?,
                record: read_record(kv),
                revision: kv.mod_revision,
            })
        })
        .collect();
    for Stored { joiner, record, .. } in &tokens {
        if let Err(malformed) = record {
            warn(&format!("the token of {joiner} is malformed: {malformed}"));
        }
    }
    if tokens.is_empty() {
        note(format_args!("no join tokens found below {}", store.keys.prefix()));
    }
    let documents: Vec<Value> = tokens.iter().map(Stored::document).collect();
    let list = list_document(documents.iter(), revision.0);
    print(&match args.output {
        TokenFormat::Table => table(&tokens, Timestamp::now()),
        TokenFormat::Json => text::to_json(&list),
        TokenFormat::Yaml => text::to_yaml(&list),
    })
    .map(drop)
}

/// What etcd holds of a token.
struct Stored {
    joiner: Joiner,
    record: Result<JoinToken, Malformed>,
    revision: Revision,
}

impl Stored {
    fn authority(&self) -> Option<String> {
        let record = self.record.as_ref().ok()?;
        authority(record).map(|digest| digest.to_string())
    }

    fn since(&self) -> Option<Timestamp> {
        let record = self.record.as_ref().ok()?;
        time::from_proto(record.since.as_ref())
    }

    fn row(&self, now: Timestamp) -> Vec<String> {
        let since = self.since().map(|since| time::since(since, now));
        let unknown = || UNKNOWN.to_owned();
        vec![
            self.joiner.to_string(),
            since.unwrap_or_else(unknown),
            self.authority().unwrap_or_else(unknown),
        ]
    }

    fn document(&self) -> Value {
        let name = self.joiner.to_string();
        match &self.record {
            Err(malformed) => document::malformed(KIND, &name, self.revision, malformed),
            Ok(record) => {
                let metadata = json!({"name": name, "resourceVersion": self.revision.to_string()});
                let status = present(json!({
                    "since": self.since().map(time::rfc3339),
                    "authority": self.authority(),
                    "nodeUID": given(&record.node_uid),
                }));
                with_header(KIND, metadata, json!({"status": status}))
            }
        }
    }
}

/// The kind in documents. They are shown and never applied.
const KIND: &str = "JoinToken";

fn table(tokens: &[Stored], now: Timestamp) -> String {
    if tokens.is_empty() {
        return String::new();
    }
    let titles = ["JOINER", "SINCE", "AUTHORITY"].map(str::to_owned).to_vec();
    let rows = tokens.iter().map(|token| token.row(now));
    let rows: Vec<_> = [titles].into_iter().chain(rows).collect();
    Table::default().lay_out(&rows)
}
