//! Words of flags and documents: whatever parses prints as something that parses as the same.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use quorate::agent::ServerAddress;
use quorate::agent::manager::listened;
use quorate::cli::duration::{duration, whole_seconds};
use quorate::cli::objects::kinds::registry;
use quorate::cli::objects::wait::goal::Goal;
use quorate::control::deadline::patience;
use quorate::csi::Endpoint;
use quorate::failpoint::Pause;
use quorate::identity::control::{cluster_of, server_name};
use quorate::identity::etcd::Host;
use quorate::release::Release;
use quorate::replica::{Level, is_module};
use quorate::store::object::label::{Selector, check_key, check_value};
use quorate::store::object::volume::quantity::{format_bytes, parse_bytes};
use quorate::store::{Name, Prefix};
use quorate::traces::Collector;
use serde_json::json;

/// Parses the text as each kind of word.
pub fn words(data: &[u8]) {
    let text = crate::text(data);
    again::<Release>(text);
    again::<Name>(text);
    again::<Prefix>(text);
    again::<Level>(text);
    again::<Collector>(text);
    again::<Endpoint>(text);
    again::<ServerAddress>(text);
    if let Ok(host) = Host::parse(text) {
        assert_eq!(Host::parse(&host.to_string()).as_ref(), Ok(&host));
    }
    if let Some(host) = Host::of_url(text) {
        assert!(text.to_ascii_lowercase().contains("://"), "{host}");
    }
    durations(text);
    if let Ok(bytes) = parse_bytes(&json!(text)) {
        assert_eq!(parse_bytes(&json!(format_bytes(bytes))), Ok(bytes));
    }
    if let Some(cluster) = cluster_of(text) {
        assert_eq!(server_name(cluster), text);
    }
    if let Ok(selector) = text.parse::<Selector>() {
        selector.matches(&[("a".to_owned(), "b".to_owned())].into());
    }
    if let Ok(Goal::Field { path, .. }) = text.parse::<Goal>() {
        assert!(!format!("{path:?}").is_empty());
    }
    _ = text.parse::<Pause>();
    _ = (check_key(text), check_value(text), is_module(text));
    if let Ok(kind) = registry::find(text) {
        assert!(registry::by_kind(kind.words.kind).is_some());
    }
    listened(&[text.to_owned()]);
}

fn durations(text: &str) {
    match duration(text) {
        // Seconds, as they are printed everywhere.
        Ok(given) => assert_eq!(
            duration(&given.as_secs().to_string()).map(|d| d.as_secs()),
            Ok(given.as_secs())
        ),
        Err(why) => assert!(why.contains('"'), "{why}"),
    }
    if let Ok(seconds) = whole_seconds(5..=300)(text) {
        assert!((5..=300).contains(&seconds.as_secs()) && seconds.subsec_nanos() == 0);
    }
    assert!(patience(Some(text)).as_secs() <= 300);
}

/// What parses prints as something that parses as the same; what does not gets an error in words.
fn again<T: FromStr<Err: Display> + Display + PartialEq + Debug>(text: &str) {
    match text.parse::<T>() {
        Ok(parsed) => {
            let printed = parsed.to_string();
            let again = printed.parse::<T>();
            assert!(
                again.is_ok_and(|again| again == parsed),
                "{parsed:?} prints as {printed:?}"
            );
        }
        Err(bad) => assert!(!bad.to_string().is_empty()),
    }
}
