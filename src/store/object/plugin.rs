//! The Plugin kind: the endpoint of a CSI controller plugin, and the limits of its calls.

use std::time::Duration;

use serde_json::{Value, json};

use super::Object;
use super::change::{Appliable, Rejection};
use super::document::document;
use super::fields::{Fault, Fields};
use crate::csi::Endpoint;
use crate::etcd::Revision;
use crate::proto::{Plugin, PluginSpec};

/// How many calls may be in flight, if the plugin's spec does not say.
pub const DEFAULT_CONCURRENCY: u32 = 16;

/// The most calls in flight: they share one channel, whose peer may allow no more streams.
const MOST_CONCURRENCY: u32 = 1000;

/// The limit of one call, if the plugin's spec does not say.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(15);

/// The longest limit of one call. No call takes that long, and gRPC cannot express limits of any length.
const MOST_TIMEOUT: Duration = Duration::from_secs(3600);

/// What a document says about a plugin.
#[derive(Debug, Default)]
pub struct Manifest {
    endpoint: String,
    concurrency: Option<u32>,
    timeout: Option<Duration>,
}

/// How many calls may be in flight.
pub fn concurrency(plugin: &Plugin) -> u32 {
    match plugin.spec.as_ref().map_or(0, |spec| spec.concurrency) {
        0 => DEFAULT_CONCURRENCY,
        given => given.min(MOST_CONCURRENCY),
    }
}

/// The limit of one call.
pub fn timeout(plugin: &Plugin) -> Duration {
    match plugin.spec.as_ref().map_or(0, |spec| spec.timeout_millis) {
        0 => DEFAULT_TIMEOUT,
        millis => Duration::from_millis(millis).min(MOST_TIMEOUT),
    }
}

/// The address that it listens on.
pub fn endpoint(plugin: &Plugin) -> &str {
    plugin.spec.as_ref().map_or("", |spec| spec.endpoint.as_str())
}

fn check_endpoint(text: &str) -> Result<(), String> {
    let parsed = text.parse::<Endpoint>();
    parsed
        .map(drop)
        .map_err(|why| format!("\"{}\" is no endpoint: {why}", text.escape_debug()))
}

impl Object for Plugin {
    kind_with_metadata!("Plugin");

    fn check(&self) -> Result<(), Fault> {
        check_endpoint(endpoint(self)).map_err(|why| Fault::new("spec.endpoint", why))
    }
}

impl Appliable for Plugin {
    type Manifest = Manifest;

    fn read(document: &mut Fields<'_, '_>) -> Manifest {
        let spec = document.required("spec", |spec| {
            let endpoint = spec.parsed("endpoint", |text| check_endpoint(text).map(|()| text.to_owned()));
            spec.require("endpoint");
            let concurrency = spec.integer("concurrency");
            let allowed = |given: &i64| (1..=i64::from(MOST_CONCURRENCY)).contains(given);
            if concurrency.is_some_and(|given| !allowed(&given)) {
                spec.fault("concurrency", format!("expected 1 to {MOST_CONCURRENCY}"));
            }
            Manifest {
                endpoint: endpoint.unwrap_or_default(),
                concurrency: concurrency
                    .filter(allowed)
                    .and_then(|given| u32::try_from(given).ok()),
                timeout: spec.parsed("timeout", read_timeout),
            }
        });
        spec.unwrap_or_default()
    }

    fn create(_name: &str, manifest: &Manifest) -> Result<Self, Rejection> {
        Ok(Self {
            metadata: None,
            spec: Some(spec_of(manifest)),
        })
    }

    fn update(&mut self, _name: &str, manifest: &Manifest) -> Result<(), Rejection> {
        self.spec = Some(spec_of(manifest));
        Ok(())
    }

    fn same_spec(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

fn read_timeout(text: &str) -> Result<Duration, String> {
    let expected = || {
        format!(
            "\"{}\" is no duration above 0 and up to 1h: expected like 15s or 2m",
            text.escape_debug()
        )
    };
    let span: jiff::SignedDuration = text.parse().map_err(|_| expected())?;
    let duration = Duration::try_from(span).map_err(|_| expected())?;
    match (Duration::from_millis(1)..=MOST_TIMEOUT).contains(&duration) {
        true => Ok(duration),
        false => Err(expected()),
    }
}

/// A default is stored as 0, also where the document says it, as one does that `get` printed.
fn spec_of(manifest: &Manifest) -> PluginSpec {
    let concurrency = manifest.concurrency.filter(|given| *given != DEFAULT_CONCURRENCY);
    let timeout = manifest.timeout.filter(|given| *given != DEFAULT_TIMEOUT);
    let millis = timeout.unwrap_or_default().as_millis();
    PluginSpec {
        endpoint: manifest.endpoint.clone(),
        concurrency: concurrency.unwrap_or_default(),
        timeout_millis: u64::try_from(millis).unwrap_or(u64::MAX),
    }
}

/// `15s`, or with milliseconds where it has any.
pub fn timeout_text(plugin: &Plugin) -> String {
    let timeout = timeout(plugin);
    match timeout.subsec_millis() {
        0 => format!("{}s", timeout.as_secs()),
        _ => format!("{}ms", timeout.as_millis()),
    }
}

/// The document of a plugin, defaults included.
pub fn to_document(plugin: &Plugin, mod_revision: Revision) -> Value {
    let spec = json!({
        "endpoint": endpoint(plugin), "concurrency": concurrency(plugin), "timeout": timeout_text(plugin),
    });
    let parts = json!({"spec": spec});
    document(Plugin::KIND, plugin.metadata.as_ref(), mod_revision, parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_socket_or_a_host_with_a_port() {
        for good in [
            "unix:///run/csi/x.sock",
            "http://csi.storage:10000",
            "https://[::1]:1",
        ] {
            assert_eq!(check_endpoint(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "/run/csi/x.sock",
            "unix://run/csi.sock",
            "http://host",
            "http://host:1/path",
            "tcp://host:1",
            "http://:1",
        ] {
            assert!(check_endpoint(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_fault_of_a_spec_is_reported_with_its_path() {
        let document = json!({"spec": {"endpoint": "x", "concurrency": 0, "timeout": "0s", "limit": 3}});
        let mut faults = Vec::new();
        Fields::document(&document, &mut faults, Plugin::read);
        let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(
            paths,
            ["spec.endpoint", "spec.concurrency", "spec.timeout", "spec.limit"]
        );
    }

    /// INV-8: what a record says of one plugin is no fault of the process.
    #[test]
    fn a_limit_of_ages_is_refused_and_one_that_is_stored_all_the_same_is_an_hour() {
        assert_eq!(read_timeout("1h"), Ok(MOST_TIMEOUT));
        assert!(read_timeout("200000000h").unwrap_err().contains("up to 1h"));
        assert!(read_timeout("61m").is_err() && read_timeout("0s").is_err());
        let spec = PluginSpec {
            timeout_millis: u64::MAX,
            ..PluginSpec::default()
        };
        let stored = Plugin {
            metadata: None,
            spec: Some(spec),
        };
        assert_eq!(timeout(&stored), MOST_TIMEOUT);
    }

    #[test]
    fn what_is_left_out_has_its_default_and_is_shown() {
        let manifest = Manifest {
            endpoint: "unix:///s".to_owned(),
            ..Manifest::default()
        };
        let plugin = Plugin::create("p", &manifest).unwrap();
        let shown = to_document(&plugin, Revision(3));
        assert_eq!(
            shown["spec"],
            json!({"endpoint": "unix:///s", "concurrency": 16, "timeout": "15s"})
        );
    }
}
