//! Values of etcd as commands show them, and as `apply` changes them.

use prost::Message as _;
use quorate::cli::objects::kinds::Kind;
use quorate::cli::objects::kinds::registry::KINDS;
use quorate::cli::objects::view::View;
use quorate::etcd::KeyValue;
use quorate::proto::Secret;
use quorate::store::object::change::{Codec, Part, Request, Step, StoredValue};
use quorate::store::object::{Object as _, text};
use quorate::wire;
use serde_json::Value;

use crate::given::{KEYS, NOW, UID};

/// A field that no release knows yet, and its content.
const LATER: u64 = 5000;

/// Lists and describes the object under this key, applies what is listed, and looks at what that leaves of a later release's field.
pub fn shown(kv: &KeyValue) {
    let mut view = View::new(KEYS.clone());
    view.set(&kv.key, Some(kv));
    for kind in KINDS {
        let Some(item) = kind.item(&view, &kv.key, NOW) else {
            continue;
        };
        let shown = kind.show(&item);
        let columns = kind.columns.len() + kind.wide_columns.len();
        assert_eq!(shown.cells.len(), columns, "{:?}", shown.cells);
        for cell in &shown.cells {
            assert!(!cell.contains(char::is_control), "{cell:?}");
        }
        let described = kind.describe(&item);
        let is_forged = |c: char| c.is_control() && c != '\n';
        assert!(!described.contains(is_forged), "{described:?}");
        if let (Some(codec), None) = (kind.applied, &shown.malformed) {
            apply(kind, codec, item.name, kv, &shown.document);
        }
    }
}

fn apply(kind: &Kind, codec: &dyn Codec, id: &str, kv: &KeyValue, document: &Value) {
    // Its values are not shown.
    if kind.words.kind == Secret::KIND {
        return;
    }
    let stored = [&kv.value[..], &later_field()].concat();
    let later = wire::fields(&stored, |number| number == LATER);
    let request = |part| Request {
        part,
        now: NOW,
        uid: UID.to_owned(),
    };
    for part in [Part::Spec, Part::Status] {
        let plan = |value: &[u8]| {
            let stored = StoredValue {
                value,
                mod_revision: kv.mod_revision,
            };
            codec.plan(document, Some(stored), &request(part))
        };
        match plan(&stored) {
            Ok(Step::Configure(after)) => {
                let kept = wire::fields(&after, |number| number == LATER);
                assert_eq!(kept, later, "what a later release has written");
                assert!(codec.is_marked(id, &after).is_ok(), "what was written is read");
                assert_eq!(plan(&after), Ok(Step::Nothing), "{}", text::to_json(document));
            }
            Ok(Step::Nothing) => {}
            Ok(Step::Create(_)) => panic!("it exists"),
            Err(why) => assert!(!why.to_string().is_empty()),
        }
    }
    assert!(
        codec.same_part(id, &kv.value, &stored, Part::Spec),
        "the spec is the same"
    );
    let new = codec.new_references(id, Some(&stored), &kv.value);
    assert!(new.is_empty(), "{new:?}");
}

fn later_field() -> Vec<u8> {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Later {
        #[prost(string, tag = "5000")]
        word: String,
    }
    let word = "later".to_owned();
    Later { word }.encode_to_vec()
}
