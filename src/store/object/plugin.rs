//! The Plugin kind: the endpoint of a CSI controller plugin, and the limits of its calls.

mod backend;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::change::{Appliable, Rejection};
use super::document::{document, given, present};
use super::fields::{Fault, Fields};
use super::{Object, time};
use crate::csi::{Endpoint, Limits, Method, Settings, Tls};
use crate::etcd::Revision;
use crate::proto::{self, Plugin, PluginSpec, PluginStatus, Timeouts};

pub use backend::{is_backend_of, may_share_backend};

/// How many calls may be in flight in each lane, if the plugin's spec does not say.
const DEFAULT_CONCURRENCY: u32 = 16;

/// The most calls in flight: they share one channel, whose peer may allow no more streams.
const MOST_CONCURRENCY: u32 = 1000;

/// The limit of one call, if the plugin's spec does not say.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(15);

/// The longest limit of one call. No call takes that long, and gRPC cannot express limits of any length.
const MOST_TIMEOUT: Duration = Duration::from_secs(3600);

/// What a document says about a plugin.
#[derive(Debug, Default)]
pub struct Manifest {
    endpoint: String,
    concurrency: Option<u32>,
    timeout: Option<Duration>,
    same_backend_as: Vec<String>,
    per_node: Option<u32>,
    timeouts: Timeouts,
    allow_plaintext_secrets: bool,
    check_capacity: bool,
    tls: Option<proto::Tls>,
}

/// The calls that may have a limit of their own.
const TIMEOUTS: [(&str, Method, Of); 6] = [
    ("create", Method::CreateVolume, |of| &mut of.create),
    ("delete", Method::DeleteVolume, |of| &mut of.delete),
    ("publish", Method::ControllerPublishVolume, |of| &mut of.publish),
    ("unpublish", Method::ControllerUnpublishVolume, |of| {
        &mut of.unpublish
    }),
    ("expand", Method::ControllerExpandVolume, |of| &mut of.expand),
    ("list", Method::ListVolumes, |of| &mut of.list),
];

/// The field of a limit.
type Of = fn(&mut Timeouts) -> &mut u64;

/// The state of a plugin that can be called.
pub const READY: &str = "Ready";

/// The state of a plugin to which no connection is needed now.
pub const IDLE: &str = "Idle";

/// The state of a plugin to which a connection is made.
pub const CONNECTING: &str = "Connecting";

/// Why the plugin cannot be called, by its status: the state and its message.
pub fn not_ready(status: &PluginStatus) -> Option<(&str, &str)> {
    let is_usable = matches!(status.state.as_str(), "" | READY | IDLE | CONNECTING);
    (!is_usable).then_some((&status.state, &status.message))
}

/// How many attachments and detachments of one node may be in flight; `None` for no limit.
pub fn per_node(plugin: &Plugin) -> Option<usize> {
    let limit = plugin.spec.as_ref().map_or(0, |spec| spec.per_node);
    usize::try_from(limit).ok().filter(|limit| *limit > 0)
}

/// How many calls may be in flight in each lane.
pub fn concurrency(plugin: &Plugin) -> u32 {
    match plugin.spec.as_ref().map_or(0, |spec| spec.concurrency) {
        0 => DEFAULT_CONCURRENCY,
        given => given.min(MOST_CONCURRENCY),
    }
}

/// The limit of a call that has none of its own.
pub fn timeout(plugin: &Plugin) -> Duration {
    let millis = plugin.spec.as_ref().map_or(0, |spec| spec.timeout_millis);
    limit_of(millis).unwrap_or(DEFAULT_TIMEOUT)
}

fn limit_of(millis: u64) -> Option<Duration> {
    (millis > 0).then(|| Duration::from_millis(millis).min(MOST_TIMEOUT))
}

/// How the plugin is connected to and called.
pub fn settings(plugin: &Plugin) -> Settings {
    let own = own_timeouts(plugin).into_iter();
    let limits = own.fold(Limits::all(timeout(plugin)), |limits, (_, method, limit)| {
        limits.with(method, limit)
    });
    let tls = plugin.spec.as_ref().and_then(|spec| spec.tls.clone());
    let tls = tls.unwrap_or_default();
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    let file = |text: String| given(text).map(PathBuf::from);
    Settings {
        limits,
        tls: Tls {
            ca_file: file(tls.ca_file),
            certificate_files: file(tls.cert_file).zip(file(tls.key_file)),
            server_name: given(tls.server_name),
        },
    }
}

/// The limits that single calls have of their own.
fn own_timeouts(plugin: &Plugin) -> Vec<(&'static str, Method, Duration)> {
    let spec = plugin.spec.as_ref();
    let mut timeouts = spec.and_then(|spec| spec.timeouts).unwrap_or_default();
    let own = TIMEOUTS.into_iter();
    own.filter_map(|(word, method, of)| Some((word, method, limit_of(*of(&mut timeouts))?)))
        .collect()
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
            let concurrency = read_count(spec, "concurrency");
            let tls = spec.object("tls", read_tls);
            if tls.is_some()
                && endpoint
                    .as_ref()
                    .is_some_and(|text| !text.starts_with("https://"))
            {
                spec.fault("tls", "only for an https:// endpoint");
            }
            Manifest {
                endpoint: endpoint.unwrap_or_default(),
                concurrency,
                timeout: spec.parsed("timeout", read_timeout),
                per_node: read_count(spec, "perNode"),
                timeouts: spec.object("timeouts", read_timeouts).unwrap_or_default(),
                tls,
                allow_plaintext_secrets: spec.boolean("allowPlaintextSecrets").unwrap_or_default(),
                check_capacity: spec.boolean("checkCapacity").unwrap_or_default(),
                same_backend_as: spec
                    .distinct("sameBackendAs", |text| {
                        check_endpoint(text).map(|()| text.to_owned())
                    })
                    .unwrap_or_default(),
            }
        });
        // Accepted because `get -o yaml` prints it. A document cannot change it.
        document.object("status", |status| {
            for text in ["state", "message", "version", "backendID"] {
                status.string(text);
            }
            status.parsed("since", time::parse);
            status.distinct("capabilities", |text| Ok::<_, String>(text.to_owned()));
            for count in ["volumes", "waiting", "inFlight"] {
                status.integer(count);
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

fn read_count(spec: &mut Fields<'_, '_>, name: &'static str) -> Option<u32> {
    let given = spec.integer(name)?;
    if !(1..=i64::from(MOST_CONCURRENCY)).contains(&given) {
        spec.fault(name, format!("expected 1 to {MOST_CONCURRENCY}"));
    }
    u32::try_from(given).ok()
}

fn read_tls(fields: &mut Fields<'_, '_>) -> proto::Tls {
    let mut text = |name| fields.string(name).unwrap_or_default().to_owned();
    let tls = proto::Tls {
        ca_file: text("caFile"),
        cert_file: text("certFile"),
        key_file: text("keyFile"),
        server_name: text("serverName"),
    };
    for (name, file) in [
        ("caFile", &tls.ca_file),
        ("certFile", &tls.cert_file),
        ("keyFile", &tls.key_file),
    ] {
        if !file.is_empty() && !Path::new(file).is_absolute() {
            fields.fault(
                name,
                "expected an absolute path: replicas read it, each where it runs",
            );
        }
    }
    if tls.cert_file.is_empty() != tls.key_file.is_empty() {
        fields.fault(
            "keyFile",
            "a certificate and its key belong together: certFile and keyFile",
        );
    }
    tls
}

fn read_timeouts(fields: &mut Fields<'_, '_>) -> Timeouts {
    let mut timeouts = Timeouts::default();
    for (word, _, of) in TIMEOUTS {
        if let Some(limit) = fields.parsed(word, read_timeout) {
            *of(&mut timeouts) = millis(limit);
        }
    }
    timeouts
}

fn millis(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
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
    PluginSpec {
        endpoint: manifest.endpoint.clone(),
        concurrency: concurrency.unwrap_or_default(),
        timeout_millis: millis(timeout.unwrap_or_default()),
        same_backend_as: manifest.same_backend_as.clone(),
        allow_plaintext_secrets: manifest.allow_plaintext_secrets,
        check_capacity: manifest.check_capacity,
        tls: manifest.tls.clone(),
        per_node: manifest.per_node.unwrap_or_default(),
        timeouts: Some(manifest.timeouts).filter(|timeouts| *timeouts != Timeouts::default()),
    }
}

/// The limit of a call that has none of its own, in words.
pub fn timeout_text(plugin: &Plugin) -> String {
    duration_text(timeout(plugin))
}

/// The limits that single calls have of their own, in words.
pub fn own_timeout_texts(plugin: &Plugin) -> Vec<(&'static str, String)> {
    let own = own_timeouts(plugin).into_iter();
    own.map(|(word, _, limit)| (word, duration_text(limit))).collect()
}

/// `15s`, or with milliseconds where it has any.
fn duration_text(timeout: Duration) -> String {
    match timeout.subsec_millis() {
        0 => format!("{}s", timeout.as_secs()),
        _ => format!("{}ms", timeout.as_millis()),
    }
}

/// The document of a plugin, defaults included, and of its status if there is one.
pub fn to_document(plugin: &Plugin, status: Option<&PluginStatus>, mod_revision: Revision) -> Value {
    let stored = plugin.spec.clone().unwrap_or_default();
    let spec = json!({
        "endpoint": endpoint(plugin), "concurrency": concurrency(plugin), "timeout": timeout_text(plugin),
        "sameBackendAs": given(&stored.same_backend_as),
        "allowPlaintextSecrets": given(&stored.allow_plaintext_secrets),
        "checkCapacity": given(&stored.check_capacity),
        "tls": stored.tls.map(|tls| present(json!({
            "caFile": given(&tls.ca_file),
            "certFile": given(&tls.cert_file),
            "keyFile": given(&tls.key_file),
            "serverName": given(&tls.server_name),
        }))),
        "perNode": given(&stored.per_node),
        "timeouts": stored.timeouts.map(|_| {
            own_timeout_texts(plugin).into_iter().collect::<BTreeMap<_, _>>()
        }),
    });
    let status = status.map(|status| {
        present(json!({
            "state": status.state,
            "message": given(&status.message),
            "since": time::document(status.since.as_ref()),
            "version": given(&status.version),
            "capabilities": given(&status.capabilities),
            "backendID": status.backend.as_ref().and_then(|backend| given(&backend.id)),
            "volumes": status.volumes,
            "waiting": status.waiting,
            "inFlight": status.in_flight,
        }))
    });
    let parts = present(json!({"spec": present(spec), "status": status}));
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

    #[test]
    fn tls_is_refused_where_it_would_be_ignored_and_its_files_have_absolute_paths() {
        let faults = |endpoint: &str, tls: Value| {
            let document = json!({"spec": {"endpoint": endpoint, "tls": tls}});
            let mut faults = Vec::new();
            Fields::document(&document, &mut faults, Plugin::read);
            faults.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let tls = json!({"caFile": "/ca.crt", "certFile": "/tls.crt", "keyFile": "/tls.key"});
        assert!(faults("https://csi.storage:1", tls.clone()).is_empty());
        for endpoint in ["http://csi.storage:1", "unix:///run/csi/x.sock"] {
            let faults = faults(endpoint, tls.clone());
            assert_eq!(faults, ["spec.tls: only for an https:// endpoint"], "{endpoint}");
        }
        let relative = json!({"caFile": "ca.crt", "certFile": "./tls.crt", "keyFile": "tls.key"});
        let faults = faults("https://csi.storage:1", relative);
        let paths: Vec<&str> = faults
            .iter()
            .filter_map(|fault| fault.split(':').next())
            .collect();
        assert_eq!(
            paths,
            ["spec.tls.caFile", "spec.tls.certFile", "spec.tls.keyFile"]
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
        let shown = to_document(&plugin, None, Revision(3));
        assert_eq!(
            shown["spec"],
            json!({"endpoint": "unix:///s", "concurrency": 16, "timeout": "15s"})
        );
    }
}
