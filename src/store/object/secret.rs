//! The Secret kind: keys and values, of which only the keys are ever shown. No message of this module has a value in it.
//!
//! Values are read from documents as they are; a command encrypts them before it writes them, where the cluster has an encryption key.

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
use crate::proto::{KubernetesSecret, SealedData, Secret};
use crate::store::keys::Name;
use crate::wipe::wipe;

/// What a document says about a secret: one of the two.
#[derive(Default)]
pub struct Manifest {
    data: Option<BTreeMap<String, Vec<u8>>>,
    kubernetes: Option<KubernetesSecret>,
}

/// Nothing is left of the values that a document had.
impl Drop for Manifest {
    fn drop(&mut self) {
        self.data.iter_mut().flat_map(BTreeMap::values_mut).for_each(wipe);
    }
}

/// How a stored secret has its values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form<'s> {
    /// As they are.
    Plain,
    /// Encrypted.
    Sealed(&'s SealedData),
    /// Those of a Secret of Kubernetes.
    Kubernetes(&'s KubernetesSecret),
}

/// How this secret has its values.
pub fn form(secret: &Secret) -> Form<'_> {
    match (&secret.sealed, &secret.kubernetes) {
        // A release that knows only these has written them last.
        _ if !secret.data.is_empty() => Form::Plain,
        (Some(sealed), _) => Form::Sealed(sealed),
        (None, Some(kubernetes)) => Form::Kubernetes(kubernetes),
        (None, None) => Form::Plain,
    }
}

/// The names of the values; none for those that Kubernetes has.
pub fn names(secret: &Secret) -> Vec<&str> {
    match form(secret) {
        Form::Plain => secret.data.keys().map(String::as_str).collect(),
        Form::Sealed(sealed) => sealed.names.iter().map(String::as_str).collect(),
        Form::Kubernetes(_) => Vec::new(),
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("metadata", &self.metadata)
            .field("keys", &names(self))
            .finish_non_exhaustive()
    }
}

/// Wherever it was read, nothing is left of the values.
impl Drop for Secret {
    fn drop(&mut self) {
        self.data.values_mut().for_each(wipe);
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
        let kubernetes = document.object("kubernetes", |reference| {
            reference.require("namespace");
            reference.require("name");
            let mut name_in = |field| reference.parsed(field, str::parse::<Name>);
            let (namespace, name) = (name_in("namespace"), name_in("name"));
            let text = |name: Option<Name>| name.map(|name| name.to_string()).unwrap_or_default();
            KubernetesSecret {
                namespace: text(namespace),
                name: text(name),
            }
        });
        // What `get -o yaml` prints in the place of the values.
        document.distinct("keys", |text| Ok::<_, String>(text.to_owned()));
        document.string("encryptionKey");
        if kubernetes.is_some() && (encoded.is_some() || plain.is_some()) {
            document.fault("kubernetes", "the values are either here or in Kubernetes");
        }
        let data = match (encoded, plain) {
            (None, None) if document.value("kubernetes").is_some() => None,
            (None, None) => {
                document.fault(
                    "stringData",
                    "missing: one of stringData, data and kubernetes is needed (what `get` prints has no values in it)",
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
        Manifest { data, kubernetes }
    }

    fn create(_name: &str, manifest: &Manifest) -> Result<Self, Rejection> {
        Ok(Self {
            metadata: None,
            data: manifest.data.clone().unwrap_or_default(),
            sealed: None,
            kubernetes: manifest.kubernetes.clone(),
        })
    }

    fn update(&mut self, _name: &str, manifest: &Manifest) -> Result<(), Rejection> {
        self.data.values_mut().for_each(wipe);
        self.data = manifest.data.clone().unwrap_or_default();
        // Encrypted values cannot be compared with those of a document: they are written again.
        self.sealed = None;
        self.kubernetes = manifest.kubernetes.clone();
        Ok(())
    }

    fn same_spec(&self, other: &Self) -> bool {
        self.data == other.data && self.sealed == other.sealed && self.kubernetes == other.kubernetes
    }
}

fn read_values(
    document: &mut Fields<'_, '_>,
    name: &'static str,
    decode: impl Fn(&str) -> Result<Vec<u8>, &'static str>,
) -> Option<BTreeMap<String, Vec<u8>>> {
    let value = document.raw(name, "an object of strings")?;
    let Value::Object(entries) = value else {
        document.fault(name, "expected an object");
        // It is there, and not missing.
        return Some(BTreeMap::new());
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
    let parts = match form(secret) {
        Form::Plain => json!({"keys": names(secret)}),
        Form::Sealed(sealed) => json!({"keys": names(secret), "encryptionKey": sealed.key_id}),
        Form::Kubernetes(KubernetesSecret { namespace, name }) => {
            json!({"kubernetes": {"namespace": namespace, "name": name}})
        }
    };
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
    fn a_secret_of_kubernetes_is_named_in_place_of_values_and_its_document_can_be_applied() {
        let reference = json!({"kubernetes": {"namespace": "storage", "name": "backend"}});
        let secret = apply(reference.clone()).unwrap();
        assert!(matches!(form(&secret), Form::Kubernetes(named) if named.name == "backend"));
        let shown = to_document(&secret, Revision(3));
        assert_eq!(shown["kubernetes"], reference["kubernetes"]);
        for (bad, expected) in [
            (
                json!({"kubernetes": {"name": "a"}}),
                "kubernetes.namespace: missing",
            ),
            (
                json!({"kubernetes": {"namespace": "A b", "name": "a"}}),
                "kubernetes.namespace: ",
            ),
            (
                json!({"kubernetes": {"namespace": "a", "name": "a"}, "stringData": {"token": SENTINEL}}),
                "kubernetes: the values are either here",
            ),
        ] {
            let error = apply(bad).unwrap_err();
            assert!(error.contains(expected) && !error.contains(SENTINEL), "{error}");
        }
    }

    #[test]
    fn an_encrypted_secret_shows_its_keys_and_the_key_that_opens_it() {
        let mut secret = apply(json!({"stringData": {"token": SENTINEL}})).unwrap();
        secret.data.clear();
        secret.sealed = Some(SealedData {
            key_id: "0011223344556677".to_owned(),
            names: vec!["token".to_owned()],
            ..SealedData::default()
        });
        let shown = to_document(&secret, Revision(3));
        assert_eq!(shown["keys"], json!(["token"]));
        assert_eq!(shown["encryptionKey"], "0011223344556677");
        // What an older release writes beside it is newer.
        secret.data.insert("token".to_owned(), b"x".to_vec());
        assert_eq!(form(&secret), Form::Plain);
    }

    #[test]
    fn values_of_another_form_are_not_missing() {
        for field in ["data", "stringData", "kubernetes"] {
            let error = apply(json!({field: "foo"})).unwrap_err();
            assert!(
                error.starts_with(&format!("{field}: expected an object")),
                "{error}"
            );
            assert!(!error.contains("missing"), "{error}");
        }
    }

    #[test]
    fn what_get_prints_is_refused_for_what_it_lacks() {
        let error = apply(json!({"keys": ["token"]})).unwrap_err();
        assert!(error.starts_with("stringData: missing"), "{error}");
    }
}
