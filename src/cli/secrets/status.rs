//! `quorate secrets status`.

use clap::Args;
use jiff::Timestamp;
use prost::Message as _;
use serde_json::{Value, json};

use super::{Shape, secrets};
use crate::cli::connection::{EtcdArgs, connect_to_show};
use crate::cli::encryption::KeyFiles;
use crate::cli::exit::Failure;
use crate::cli::output::{NONE, Table, note, one_line, print, warn, yes_no};
use crate::etcd::KeyValue;
use crate::proto::{EncryptionKey, Secret};
use crate::secrets::{Keyring, Recipient, open};
use crate::store::object::secret::{Form, form};
use crate::store::object::{decode, text, time};
use crate::wipe::wipe;

/// Arguments of `quorate secrets status`.
#[derive(Args, Debug)]
#[command(after_help = "\
KEY is the id of the key that a Secret is encrypted with. OPENS says whether the given key files decrypt it; the command needs none for \
the rest. Values are shown nowhere.

Examples:
  quorate secrets status
  quorate secrets status --encryption-key-file /etc/quorate/encryption.key -o json")]
pub struct StatusArgs {
    #[command(flatten)]
    keys: KeyFiles,

    /// How to show it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Shape,
}

pub async fn run(args: &StatusArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let keyring = args.keys.read()?;
    let store = connect_to_show(etcd).await?;
    let (published, _) = store.etcd.get(&store.keys.encryption_key()).await?;
    let (mut stored, _) = store.etcd.list(&store.keys.secrets()).await?;
    let lines: Vec<Line> = stored
        .iter()
        .filter_map(|kv| Some(Line::of(store.keys.parse_secret(&kv.key)?, kv, &keyring)))
        .collect();
    for kv in &mut stored {
        wipe(&mut kv.value);
    }
    let recipient = published.as_ref().and_then(|kv| Recipient::published(&kv.value));
    let is_held = |key: &Recipient| {
        keyring
            .get(key.id().as_str())
            .is_some_and(|held| held.recipient() == key)
    };
    if published.is_some() && recipient.is_none() {
        warn("the record of the encryption key holds no key, so that no Secret can be applied");
    }
    if keyring.first().is_some() && recipient.is_some_and(|key| !is_held(&key)) {
        warn(
            "the given key files do not hold the encryption key in use: they decrypt nothing that is applied now",
        );
    }
    let key = published.map(|kv| EncryptionKey::decode(&*kv.value).unwrap_or_default());
    print(&match args.output {
        Shape::Table => table(key.as_ref(), &lines, Timestamp::now()),
        Shape::Json => text::to_json(&document(key.as_ref(), &lines)),
    })?;
    let in_use = key.as_ref().map(|key| key.key_id.as_str());
    let others = lines.iter().filter(|line| line.awaits(in_use)).count();
    if others > 0 {
        note(format_args!(
            "{} to be encrypted with the key in use: quorate secrets rotate",
            secrets(others)
        ));
    }
    Ok(())
}

/// How a Secret lies in etcd.
struct Line {
    name: String,
    state: &'static str,
    /// The key that it is encrypted with.
    key: Option<String>,
    /// Whether the given keys decrypt it; `None` without keys, and for what is not encrypted.
    opens: Option<bool>,
    message: Option<String>,
}

impl Line {
    fn of(name: &str, kv: &KeyValue, keyring: &Keyring) -> Self {
        let mut line = Self {
            name: name.to_owned(),
            state: "malformed",
            key: None,
            opens: None,
            message: None,
        };
        match decode::<Secret>(name, &kv.value) {
            Err(malformed) => line.message = Some(malformed.to_string()),
            Ok(secret) => match form(&secret) {
                Form::Plain => line.state = "unencrypted",
                Form::Kubernetes(named) => {
                    line.state = "kubernetes";
                    line.message = Some(format!("{}/{}", named.namespace, named.name));
                }
                Form::Sealed(sealed) => {
                    line.state = "encrypted";
                    line.key = Some(sealed.key_id.clone());
                    if keyring.first().is_some() {
                        let opened = open(keyring, &kv.key, sealed);
                        line.opens = Some(opened.is_ok());
                        line.message = opened.err().map(|closed| closed.to_string());
                    }
                }
            },
        }
        line
    }

    /// Whether a rotation would write it.
    fn awaits(&self, in_use: Option<&str>) -> bool {
        match self.state {
            "unencrypted" => in_use.is_some(),
            "encrypted" => in_use.is_some() && self.key.as_deref() != in_use,
            _ => false,
        }
    }

    fn row(&self) -> Vec<String> {
        let or_none = |text: Option<&str>| text.map_or_else(|| NONE.to_owned(), one_line);
        vec![
            one_line(&self.name),
            self.state.to_owned(),
            or_none(self.key.as_deref()),
            or_none(self.opens.map(yes_no)),
            one_line(self.message.as_deref().unwrap_or_default()),
        ]
    }

    fn document(&self) -> Value {
        json!({
            "name": self.name, "state": self.state, "key": self.key, "opens": self.opens, "message": self.message,
        })
    }
}

fn table(key: Option<&EncryptionKey>, lines: &[Line], now: Timestamp) -> String {
    let head = match key {
        None => "No encryption key is published: values are written unencrypted.\n".to_owned(),
        Some(key) => {
            let since = time::from_proto(key.since.as_ref()).map(|since| time::since(since, now));
            let since = since.map_or_else(String::new, |since| format!(", since {since}"));
            format!("Encryption key {}{since}\n", one_line(&key.key_id))
        }
    };
    if lines.is_empty() {
        return head;
    }
    let titles = ["NAME", "STATE", "KEY", "OPENS", "MESSAGE"]
        .map(str::to_owned)
        .to_vec();
    let rows: Vec<Vec<String>> = [titles].into_iter().chain(lines.iter().map(Line::row)).collect();
    head + "\n" + &Table::default().lay_out(&rows)
}

fn document(key: Option<&EncryptionKey>, lines: &[Line]) -> Value {
    let key = key.map(|key| {
        let since = time::from_proto(key.since.as_ref()).map(time::rfc3339);
        json!({"id": key.key_id, "since": since})
    });
    let secrets: Vec<Value> = lines.iter().map(Line::document).collect();
    json!({"key": key, "secrets": secrets})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(state: &'static str, key: Option<&str>) -> Line {
        Line {
            name: "a".to_owned(),
            state,
            key: key.map(str::to_owned),
            opens: None,
            message: None,
        }
    }

    #[test]
    fn a_rotation_is_due_for_what_another_key_encrypts_and_for_what_none_does() {
        let in_use = Some("k2");
        for (line, key, expected) in [
            (line("encrypted", Some("k1")), in_use, true),
            (line("encrypted", Some("k2")), in_use, false),
            (line("unencrypted", None), in_use, true),
            (line("unencrypted", None), None, false),
            (line("encrypted", Some("k1")), None, false),
            (line("kubernetes", None), in_use, false),
            (line("malformed", None), in_use, false),
        ] {
            assert_eq!(line.awaits(key), expected, "{} {:?}", line.state, line.key);
        }
    }

    #[test]
    fn no_stored_text_forges_a_row() {
        let forged = Line {
            message: Some("default/a\nb".to_owned()),
            ..line("encrypted", Some("k\x1b[2J"))
        };
        assert_eq!(
            forged.row(),
            ["a", "encrypted", "k\\u{1b}[2J", "<none>", "default/a\\nb"]
        );
    }

    #[test]
    fn the_table_says_where_nothing_is_encrypted() {
        let text = table(None, &[line("unencrypted", None)], Timestamp::UNIX_EPOCH);
        assert_eq!(
            text,
            "No encryption key is published: values are written unencrypted.\n\n\
             NAME   STATE         KEY      OPENS    MESSAGE\na      unencrypted   <none>   <none>\n"
        );
    }
}
