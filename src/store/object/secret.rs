//! The Secret kind: keys and values, of which only the keys are ever shown. No message of this module has a value in it.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Object;
use super::change::{Appliable, Rejection};
use super::document::document;
use super::fields::Fields;
use crate::etcd::Revision;
use crate::proto::Secret;

/// What a document says about a secret.
#[derive(Default)]
pub struct Manifest {
    data: Option<BTreeMap<String, Vec<u8>>>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("metadata", &self.metadata)
            .field("keys", &self.data.keys())
            .finish_non_exhaustive()
    }
}

impl Object for Secret {
    kind_with_metadata!("Secret");
}

impl Appliable for Secret {
    type Manifest = Manifest;

    fn read(document: &mut Fields<'_, '_>) -> Manifest {
        let encoded = read_values(document, "data", |text| {
            let decoded = ByteString::deserialize(json!(text));
            let message = "not valid base64 (stringData takes plain text)";
            decoded.map(|ByteString(bytes)| bytes).map_err(|_| message)
        });
        let plain = read_values(document, "stringData", |text| Ok(text.as_bytes().to_vec()));
        // What `get -o yaml` prints in the place of the values.
        document.distinct("keys", |text| Ok::<_, String>(text.to_owned()));
        let data = match (encoded, plain) {
            (None, None) => {
                document.fault(
                    "stringData",
                    "missing: one of stringData and data is needed (what `get` prints has no values in it)",
                );
                None
            }
            // As in Kubernetes: where both have a key, stringData is meant.
            (encoded, plain) => {
                let mut data = encoded.unwrap_or_default();
                data.extend(plain.unwrap_or_default());
                Some(data)
            }
        };
        Manifest { data }
    }

    fn create(_name: &str, manifest: &Manifest) -> Result<Self, Rejection> {
        Ok(Self {
            metadata: None,
            data: manifest.data.clone().unwrap_or_default(),
        })
    }

    fn update(&mut self, _name: &str, manifest: &Manifest) -> Result<(), Rejection> {
        self.data = manifest.data.clone().unwrap_or_default();
        Ok(())
    }

    fn same_spec(&self, other: &Self) -> bool {
        self.data == other.data
    }
}

fn read_values(
    document: &mut Fields<'_, '_>,
    name: &'static str,
    decode: impl Fn(&str) -> Result<Vec<u8>, &'static str>,
) -> Option<BTreeMap<String, Vec<u8>>> {
    let value = document.value(name)?;
    let Value::Object(entries) = value else {
        document.fault(name, "expected an object");
        return None;
    };
    let mut data = BTreeMap::new();
    for (key, value) in entries {
        let path = super::fields::join(name, key);
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if key.is_empty() || key.len() > 253 || !key.chars().all(word) {
            document.fault_at(&path, "not a key: expected letters, digits, '-', '_' and '.'");
        }
        // The value itself is in no message: it may be a secret that lacks its quotes.
        match value.as_str().map(&decode) {
            Some(Ok(bytes)) => {
                data.insert(key.clone(), bytes);
            }
            Some(Err(why)) => document.fault_at(&path, why),
            None => document.fault_at(&path, "expected a string (put it in quotes)"),
        }
    }
    Some(data)
}

/// The document of a secret: the keys in the place of the values.
pub fn to_document(secret: &Secret, mod_revision: Revision) -> Value {
    let keys: Vec<&String> = secret.data.keys().collect();
    let parts = json!({"keys": keys});
    document(Secret::KIND, secret.metadata.as_ref(), mod_revision, parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::object::change::{Of, Part, Request, Step};
    use crate::store::object::decode;

    const SENTINEL: &str = "xyzzy-s3cr3t";

    fn apply(rest: Value) -> Result<Secret, String> {
        let mut document =
            json!({"apiVersion": "quorate.dev/v1", "kind": "Secret", "metadata": {"name": "token"}});
        document
            .as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        let request = Request {
            part: Part::Spec,
            now: jiff::Timestamp::UNIX_EPOCH,
            uid: "u".to_owned(),
        };
        match Of::<Secret>::CODEC.plan(&document, None, &request) {
            Ok(Step::Create(value)) => Ok(decode("token", &value).unwrap()),
            Ok(other) => panic!("{other:?}"),
            Err(rejection) => Err(rejection.to_string()),
        }
    }

    #[test]
    fn values_come_plain_or_in_base64_and_plain_ones_win() {
        let secret = apply(json!({
            "data": {"a": "czNjcjN0", "b": "AAE="}, "stringData": {"a": "plain"},
        }))
        .unwrap();
        assert_eq!(secret.data["a"], b"plain");
        assert_eq!(secret.data["b"], [0, 1]);
    }

    #[test]
    fn neither_document_nor_debug_nor_any_fault_has_a_value_in_it() {
        let secret = apply(json!({"stringData": {"token": SENTINEL}})).unwrap();
        let shown = to_document(&secret, Revision(3)).to_string();
        assert!(shown.contains("token") && !shown.contains(SENTINEL), "{shown}");
        let debug = format!("{secret:?}");
        assert!(debug.contains("token") && !debug.contains(SENTINEL), "{debug}");
        for bad in [
            json!({"data": {"token": SENTINEL}}),
            json!({"data": SENTINEL}),
            json!({"stringData": {"token": [SENTINEL]}}),
            json!({"stringData": {"token": 8_675_309}}),
            json!({"stringData": [SENTINEL]}),
        ] {
            let error = apply(bad.clone()).unwrap_err();
            assert!(!error.contains(SENTINEL) && !error.contains("8675309"), "{error}");
            assert!(error.contains("ata"), "{error}");
        }
    }

    #[test]
    fn what_get_prints_is_refused_for_what_it_lacks() {
        let error = apply(json!({"keys": ["token"]})).unwrap_err();
        assert!(error.starts_with("stringData: missing"), "{error}");
    }
}
