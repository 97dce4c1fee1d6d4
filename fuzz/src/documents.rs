//! Documents of `apply`, and documents as `get` prints them.

use quorate::cli::objects::apply::input::check_all;
use quorate::cli::objects::kinds::registry::by_kind;
use quorate::cli::objects::view::View;
use quorate::etcd::{KeyValue, Revision};
use quorate::proto::Secret;
use quorate::store::object::change::{Part, Rejection, Request, Step, StoredValue};
use quorate::store::object::{Object as _, text};
use serde_json::Value;

use crate::given::{KEYS, NOW, UID};

/// Checks a text as `apply` does, creates what it describes, and applies the text and what is shown of the objects again.
pub fn documents(data: &[u8]) {
    let text = crate::text(data);
    let manifests = match check_all(&[("in.yaml".to_owned(), text.to_owned())]) {
        Ok(manifests) => manifests,
        Err(failure) => {
            let said = failure.to_string();
            assert!(said.contains("in.yaml: "), "{said}");
            return;
        }
    };
    for manifest in manifests {
        let request = Request {
            part: Part::Spec,
            now: NOW,
            uid: UID.to_owned(),
        };
        let created = match manifest.codec.plan(&manifest.document, None, &request) {
            Ok(Step::Create(value)) => value,
            Ok(other) => panic!("{other:?} of an object that does not exist"),
            Err(why) => {
                assert!(!why.to_string().is_empty());
                continue;
            }
        };
        let id = manifest.name.to_string();
        assert_eq!(manifest.codec.is_marked(&id, &created), Ok(false), "{id}");
        let stored = StoredValue {
            value: &created,
            mod_revision: Revision(2),
        };
        let again = |document: &Value| manifest.codec.plan(document, Some(stored), &request);
        let has_version = manifest.document["metadata"].get("resourceVersion").is_some();
        let has_uid = manifest.document["metadata"].get("uid").is_some();
        if !has_version && !has_uid {
            let again = again(&manifest.document);
            // Of an existing node the desired role may not be left out.
            let is_fine = matches!(again, Ok(Step::Nothing) | Err(Rejection::Faulty(_)));
            assert!(is_fine, "{again:?} of {}", manifest.document);
        }
        // The values of a Secret are not shown.
        if manifest.kind.words.kind != Secret::KIND {
            let document = shown(manifest.kind.words.kind, &manifest.name, &created);
            assert_eq!(again(&document), Ok(Step::Nothing), "{document}");
        }
    }
}

/// What `get` shows of an object that was created with this value.
fn shown(kind: &str, id: &quorate::store::Id, value: &[u8]) -> Value {
    let Some(kind) = by_kind(kind) else {
        panic!("{kind} is a kind");
    };
    let key = kind.space.key(&KEYS, id);
    let kv = KeyValue {
        key: key.clone(),
        value: value.to_vec(),
        create_revision: Revision(2),
        mod_revision: Revision(2),
        lease: None,
    };
    let mut view = View::new(KEYS.clone());
    view.set(&key, Some(&kv));
    let Some(item) = kind.item(&view, &key, NOW) else {
        panic!("{id} is in the view");
    };
    let shown = kind.show(&item);
    assert_eq!(shown.malformed, None, "{id}");
    shown.document
}

/// Prints a document, given as JSON, as YAML and as JSON: both read back as the same document.
pub fn printed(data: &[u8]) {
    let Ok(document) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    // Documents are objects, as deep as those of the kinds at most, and have no number with a fraction.
    if !document.is_object() || !is_plain(&document, 16) {
        return;
    }
    let yaml = text::to_yaml(&document);
    assert_eq!(
        text::parse(&yaml).as_deref(),
        Ok(&[document.clone()][..]),
        "{yaml}"
    );
    let is_forged = |c: char| c.is_control() && c != '\n' && c != '\t';
    assert!(!yaml.contains(is_forged), "{yaml:?}");
    let json = text::to_json(&document);
    assert_eq!(text::parse(&json).as_deref(), Ok(&[document][..]), "{json}");
}

fn is_plain(value: &Value, depth: usize) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => true,
        Value::Number(number) => !number.is_f64(),
        Value::Array(list) => depth > 0 && list.iter().all(|value| is_plain(value, depth - 1)),
        Value::Object(map) => depth > 0 && map.values().all(|value| is_plain(value, depth - 1)),
    }
}
