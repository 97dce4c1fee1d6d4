//! The Resource kind for commands: the Kubernetes objects of the bundle and the inventory, as the leader left them.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Kind, Shown, Words, age};
use crate::cli::objects::view::Item;
use crate::cli::output::{Description, NONE, UNKNOWN, or_none, yes_no};
use crate::kube::ObjectRef;
use crate::proto::{Applied, ResourceState};
use crate::store::keys::{KeySpace, parse_object};
use crate::store::object::document::{given, present, with_header};
use crate::store::object::{Malformed, message, time};

const KIND: &str = "Resource";

/// The kind.
pub static RESOURCES: Kind = Kind {
    title: Some(title),
    ..Kind::new(
        Words::new(KIND, "resource", "resources", &["res"]),
        KeySpace::INVENTORY,
        &["RESOURCE", "OUTCOME", "SINCE", "NEXT TRY", "WHY"],
        &["BUNDLE", "VERSION", "UID"],
        show,
        describe,
        Err(
            "an object goes with the bundle that holds it; `quorate inventory forget` takes an object that the bundle no \
             longer holds out of the inventory, and leaves it in the cluster",
        ),
    )
};

/// The object that an inventory key names.
pub fn object(id: &str) -> Option<ObjectRef> {
    let (group, kind, namespace, name) = parse_object(id)?;
    Some(ObjectRef {
        group: group.to_owned(),
        kind: kind.to_owned(),
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
    })
}

fn title(id: &str) -> String {
    object(id).map_or_else(|| id.to_owned(), |object| object.to_string())
}

/// When the leader tries again. Nothing but the leader knows of a wait of seconds.
fn next_try(state: &ResourceState, item: &Item<'_>) -> String {
    match time::from_proto(state.retry_at.as_ref()) {
        Some(at) if at > item.now => format!("in {}", time::age(item.now, at)),
        None if !matches!(state.outcome.as_str(), "failed" | "fighting") => NONE.to_owned(),
        _ => "soon".to_owned(),
    }
}

fn outcome(state: &ResourceState) -> &str {
    match state.outcome.as_str() {
        "" => UNKNOWN,
        outcome => outcome,
    }
}

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let applied: Applied = message("Applied", &item.stored.value)?;
    let state = applied.state.clone().unwrap_or_default();
    let cells = vec![
        outcome(&state).to_owned(),
        age(state.since.as_ref(), item.now),
        next_try(&state, item),
        state.message.clone(),
        applied.bundle.clone(),
        applied.version.clone(),
        applied.uid.clone(),
    ];
    let named = object(item.name);
    let named = named.as_ref();
    let metadata = json!({"name": title(item.name), "resourceVersion": item.revision().to_string()});
    let spec = json!({
        "group": named.map(|object| &object.group),
        "version": given(&applied.version),
        "kind": named.map(|object| &object.kind),
        "namespace": named.and_then(|object| object.namespace.as_ref()),
        "name": named.map(|object| &object.name),
        "bundle": given(&applied.bundle),
    });
    let status = json!({
        "outcome": given(&state.outcome),
        "message": given(&state.message),
        "since": time::document(state.since.as_ref()),
        "nextTry": time::document(state.retry_at.as_ref()),
        "inBundle": applied.state.as_ref().map(|state| !state.dropped),
        "uid": given(&applied.uid),
    });
    let parts = json!({"spec": present(spec), "status": present(status)});
    Ok(Shown::new(
        BTreeMap::new(),
        cells,
        with_header(KIND, metadata, parts),
    ))
}

fn describe(item: &Item<'_>, description: &mut Description) {
    let applied: Applied = match message("Applied", &item.stored.value) {
        Ok(applied) => applied,
        Err(malformed) => {
            description.malformed(item, &malformed);
            return;
        }
    };
    let state = applied.state.clone().unwrap_or_default();
    let since = time::from_proto(state.since.as_ref());
    let since = since.map_or_else(|| UNKNOWN.to_owned(), |at| time::since(at, item.now));
    description
        .field("Outcome", outcome(&state))
        .field("Since", since)
        .field("Why", or_none(&state.message))
        .field("Next Try", next_try(&state, item))
        .field("In Bundle", yes_no(!state.dropped))
        .field("Bundle", or_none(&applied.bundle))
        .field("Version", or_none(&applied.version))
        .field("UID", or_none(&applied.uid))
        .field("Resource Version", item.revision().to_string());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::inventory::IN_PLACE;

    #[test]
    fn an_object_is_called_as_in_the_log_and_an_outcome_of_an_older_release_is_unknown() {
        assert_eq!(title("core/ConfigMap/default/a.b"), "ConfigMap default/a.b");
        assert_eq!(
            title("toys.example.com/Ball/_/system:red"),
            "Ball.toys.example.com system:red"
        );
        assert_eq!(outcome(&ResourceState::default()), UNKNOWN);
        let in_place = ResourceState {
            outcome: IN_PLACE.to_owned(),
            ..ResourceState::default()
        };
        assert_eq!(outcome(&in_place), "in place");
    }
}
