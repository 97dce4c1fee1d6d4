//! An HTTP proxy in front of a kube-apiserver. It records every request, and makes the ones that a test names fail.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::kubernetes::Kubernetes;

/// What the proxy does with a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Forwards it, so that the next rule applies to a later request.
    Nothing,
    /// Responds with this status and `Retry-After`; the server does not see the request.
    Status(u16, Option<u64>),
    /// Responds with this status and this `Status` object; the server does not see the request.
    Refuse(u16, serde_json::Value),
    /// Breaks the connection before the response; the server does not see the request.
    Break,
    /// Forwards it, and then responds with this status.
    LoseReply(u16),
    /// Forwards it, and holds the response until [`FaultProxy::release`].
    HeldReply,
    /// Responds with success and an empty body: a watch that ends as it begins.
    Ends,
    /// Never responds; the server does not see the request.
    Hang,
    /// Holds it until [`FaultProxy::release`]. Then responds with this status, or forwards it if there is none.
    Held(Option<u16>),
    /// Sends another client's request first (method, path, content type, body), and then forwards this one.
    After(&'static str, String, &'static str, String),
}

#[derive(Clone, Debug)]
struct Rule {
    method: &'static str,
    path_holds: String,
    times: usize,
    fault: Fault,
}

/// A recorded request.
#[derive(Clone, Debug)]
pub struct Noted {
    pub method: String,
    /// Path and query.
    pub uri: String,
    pub body: String,
}

struct Shared {
    client: kube::Client,
    rules: Mutex<Vec<Rule>>,
    noted: Mutex<Vec<Noted>>,
    held: Held,
    page: Mutex<Option<usize>>,
}

/// Requests that wait for [`FaultProxy::release`].
struct Held {
    waiting: AtomicUsize,
    /// Texts: requests whose path and query contain one of them are released.
    released: watch::Sender<Vec<String>>,
}

impl Held {
    /// Waits, as one that is held, for the release.
    async fn released(&self, uri: &str) {
        let _waiting = Waiting::of(&self.waiting);
        let is_released = |texts: &Vec<String>| texts.iter().any(|text| uri.contains(text.as_str()));
        let _ = self.released.subscribe().wait_for(is_released).await;
    }
}

/// Counts a request that is held, as long as its client waits for it.
struct Waiting<'h>(&'h AtomicUsize);

impl<'h> Waiting<'h> {
    fn of(count: &'h AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub struct FaultProxy {
    shared: Arc<Shared>,
    kubeconfig: PathBuf,
    _serving: JoinSet<()>,
}

impl FaultProxy {
    /// Starts a proxy that forwards every request as the administrator.
    pub async fn in_front_of(kubernetes: &Kubernetes) -> Self {
        let admin = Kubeconfig::read_from(kubernetes.kubeconfig()).unwrap();
        let config = kube::Config::from_custom_kubeconfig(admin, &KubeConfigOptions::default()).await;
        let mut config = config.unwrap();
        config.default_retry = false;
        let shared = Arc::new(Shared {
            client: kube::Client::try_from(config).unwrap(),
            rules: Mutex::default(),
            noted: Mutex::default(),
            held: Held {
                waiting: AtomicUsize::new(0),
                released: watch::Sender::default(),
            },
            page: Mutex::default(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(pass_on).with_state(shared.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        let kubeconfig = kubernetes
            .directory()
            .join(format!("proxy-{}.kubeconfig", address.port()));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "proxy", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "anonymous", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "anonymous"}}],
            "current-context": "proxy",
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        Self {
            shared,
            kubeconfig,
            _serving: serving,
        }
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// Applies the fault to the next `times` requests of this method whose path and query contain this text, or end with it
    /// where it ends with `$`.
    pub fn fail(&self, method: &'static str, path_holds: &str, times: usize, fault: Fault) {
        self.shared.rules.lock().unwrap().push(Rule {
            method,
            path_holds: path_holds.to_owned(),
            times,
            fault,
        });
    }

    /// From now on, reduces the page size of every list to this number of objects.
    pub fn cut_pages_to(&self, objects: usize) {
        *self.shared.page.lock().unwrap() = Some(objects);
    }

    /// The number of watch requests since [`FaultProxy::take_noted`].
    pub fn watches(&self) -> usize {
        let noted = self.shared.noted.lock().unwrap();
        noted
            .iter()
            .filter(|noted| noted.uri.contains("watch=true"))
            .count()
    }

    /// The number of requests that are held now.
    pub fn held(&self) -> usize {
        self.shared.held.waiting.load(Ordering::SeqCst)
    }

    /// Releases every held request, and holds no further one.
    pub fn release(&self) {
        self.release_of("");
    }

    /// The same for requests whose path and query contain this text.
    pub fn release_of(&self, path_holds: &str) {
        let released = &self.shared.held.released;
        released.send_modify(|texts| texts.push(path_holds.to_owned()));
    }

    /// The requests since the last [`FaultProxy::take_noted`], without watches, which are not part of a pass.
    pub fn noted(&self) -> Vec<Noted> {
        of_passes(self.shared.noted.lock().unwrap().clone())
    }

    /// The same, and clears the record.
    pub fn take_noted(&self) -> Vec<Noted> {
        of_passes(self.take_all())
    }

    /// The requests since the last call, watches included; clears the record.
    pub fn take_all(&self) -> Vec<Noted> {
        std::mem::take(&mut *self.shared.noted.lock().unwrap())
    }
}

fn of_passes(mut noted: Vec<Noted>) -> Vec<Noted> {
    noted.retain(|noted| !noted.uri.contains("watch=true"));
    noted
}

async fn pass_on(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let uri = parts.uri.path_and_query().unwrap().as_str().to_owned();
    let method = parts.method.as_str();
    shared.noted.lock().unwrap().push(Noted {
        method: method.to_owned(),
        uri: uri.clone(),
        body: String::from_utf8_lossy(&body).into_owned(),
    });
    let fault = {
        let mut rules = shared.rules.lock().unwrap();
        let applies = |rule: &&mut Rule| {
            let is_meant = match rule.path_holds.strip_suffix('$') {
                Some(end) => uri.ends_with(end),
                None => uri.contains(rule.path_holds.as_str()),
            };
            rule.times > 0 && rule.method == method && is_meant
        };
        rules.iter_mut().find(applies).map(|rule| {
            rule.times -= 1;
            rule.fault.clone()
        })
    };
    if let Some(response) = apply_before(&shared, fault.as_ref(), &uri).await {
        return response;
    }
    let uri = match *shared.page.lock().unwrap() {
        Some(objects) => uri.replace("limit=5000", &format!("limit={objects}")),
        None => uri,
    };
    let answer = match forward(&shared, &parts, &uri, &body).await {
        Ok(answer) => answer,
        Err(error) => return (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    };
    let (parts, mut body) = answer.into_parts();
    if matches!(fault, Some(Fault::LoseReply(_) | Fault::HeldReply)) {
        // The server has carried out the request once its response is complete.
        body = body.collect_bytes().await.unwrap().into();
    }
    match fault {
        Some(Fault::LoseReply(code)) => return failure(code, None),
        Some(Fault::HeldReply) => shared.held.released(&uri).await,
        _ => {}
    }
    let mut headers = HeaderMap::new();
    for name in [header::CONTENT_TYPE, header::RETRY_AFTER] {
        if let Some(value) = parts.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    (parts.status, headers, Body::new(body)).into_response()
}

/// Carries out the part of a fault that comes before the server sees the request. Returns the response if the server must
/// not see it.
async fn apply_before(shared: &Shared, fault: Option<&Fault>, uri: &str) -> Option<Response> {
    match fault {
        Some(Fault::Status(code, retry_after)) => return Some(failure(*code, *retry_after)),
        Some(Fault::Refuse(code, status)) => {
            let code = StatusCode::from_u16(*code).unwrap();
            return Some((code, status.to_string()).into_response());
        }
        Some(Fault::Break) => {
            // The body fails before its first byte, so the server closes the connection instead of completing it.
            let body = futures::stream::once(async { Err::<Vec<u8>, _>(std::io::Error::other("broken")) });
            return Some(Body::from_stream(body).into_response());
        }
        Some(Fault::Ends) => return Some(StatusCode::OK.into_response()),
        Some(Fault::Hang) => {
            std::future::pending::<()>().await;
        }
        Some(Fault::Held(code)) => {
            shared.held.released(uri).await;
            return code.map(|code| failure(code, None));
        }
        Some(Fault::After(method, path, content_type, body)) => {
            let first = http::Request::builder()
                .method(*method)
                .uri(path)
                .header(header::CONTENT_TYPE, *content_type)
                .body(kube::client::Body::from(body.clone().into_bytes()))
                .unwrap();
            let answer = shared.client.send(first).await.unwrap();
            assert!(
                answer.status().is_success(),
                "{method} {path}: {}",
                answer.status()
            );
        }
        Some(Fault::Nothing | Fault::LoseReply(_) | Fault::HeldReply) | None => {}
    }
    None
}

/// Sends the request to the server as the administrator.
async fn forward(
    shared: &Shared,
    parts: &http::request::Parts,
    uri: &str,
    body: &[u8],
) -> Result<http::Response<kube::client::Body>, kube::Error> {
    let mut forwarded = http::Request::builder().method(parts.method.clone()).uri(uri);
    for name in [header::ACCEPT, header::CONTENT_TYPE] {
        if let Some(value) = parts.headers.get(&name) {
            forwarded = forwarded.header(name, value);
        }
    }
    let forwarded = forwarded.body(kube::client::Body::from(body.to_vec())).unwrap();
    shared.client.send(forwarded).await
}

fn failure(code: u16, retry_after: Option<u64>) -> Response {
    let mut response = (StatusCode::from_u16(code).unwrap(), "made up by the test").into_response();
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}
