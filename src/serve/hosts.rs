//! By which names a browser may ask for the status page over a loopback address.
//!
//! A foreign web site can give its own name the address 127.0.0.1 once a browser has loaded its page (DNS rebinding). What listens there
//! is of the same origin then, so that the page may read it: a replica on this machine, or one behind `kubectl port-forward`. Its name
//! stays in the header `Host`, and is one of the public DNS.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::middleware::Next;
use axum::response::Response;

use super::answer::{TEXT, page};
use super::connections::OfConnection;

/// The names that were given.
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    pub fn new(names: Vec<String>) -> Self {
        Self(names.into_iter().map(|name| in_one_form(&name)).collect())
    }

    /// Whether no foreign web site can have this name, or it was given.
    fn admits(&self, host: &str) -> bool {
        let host = in_one_form(host);
        let address = host.trim_start_matches('[').trim_end_matches(']');
        // A name of the public DNS has a dot, and `localhost` below it belongs to no one (RFC 6761).
        address.parse::<IpAddr>().is_ok()
            || !host.contains('.')
            || host.ends_with(".localhost")
            || self.0.contains(&host)
    }
}

/// The name without the dot that a full name may end with, and in small letters.
fn in_one_form(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Answers a request that came over a loopback address only under a name that no foreign web site can have. Where it came over
/// another address, an Ingress, a Service or a machine may have any name.
pub(super) async fn admit(
    State(hosts): State<Arc<Hosts>>,
    ConnectInfo(of): ConnectInfo<OfConnection>,
    request: Request,
    next: Next,
) -> Response {
    match host_of(&request) {
        Some(host) if of.is_local && !hosts.admits(&host) => {
            let text = format!(
                "this replica does not show its status page under the name {host} here; if that is its name, start it with --page-host {host}\n"
            );
            page(StatusCode::FORBIDDEN, TEXT, text)
        }
        _ => next.run(request).await,
    }
}

/// The host that a request names; `None` for one that names none, as no browser does. A header that is no authority counts as a name:
/// browsers send characters that URIs do not have, such as `{`, and a domain of a foreign site answers to any name below it.
fn host_of(request: &Request) -> Option<String> {
    if let Some(host) = request.uri().host() {
        return Some(host.to_owned());
    }
    let header = request.headers().get(HOST)?.as_bytes();
    Some(match Authority::try_from(header) {
        Ok(authority) => authority.host().to_owned(),
        Err(_) => String::from_utf8_lossy(header).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_web_site_can_have_is_admitted_only_where_it_was_given() {
        let hosts = Hosts::new(
            ["Ctl1.corp.example.com", "ctl3.corp.example.com."]
                .map(str::to_owned)
                .to_vec(),
        );
        for own in [
            "127.0.0.1",
            "10.0.0.4",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "localhost",
            "LocalHost.",
            "quorate.localhost",
            "ctl1",
            "ctl1.corp.example.com",
            "CTL1.corp.example.com.",
            "ctl3.corp.example.com",
        ] {
            assert!(hosts.admits(own), "{own}");
        }
        for foreign in [
            "evil.example",
            "evil.example.",
            "ctl2.corp.example.com",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "notlocalhost.example",
            "a{b.evil.example:8080",
        ] {
            assert!(!hosts.admits(foreign), "{foreign}");
        }
    }

    #[test]
    fn the_host_of_a_request_is_that_of_its_target_or_of_its_header() {
        let host = |target: &str, header: Option<&str>| {
            let request = axum::http::Request::builder().uri(target);
            let request = match header {
                Some(header) => request.header(HOST, header),
                None => request,
            };
            host_of(&request.body(axum::body::Body::empty()).unwrap())
        };
        assert_eq!(host("/", None), None);
        assert_eq!(host("/", Some("evil.example:8080")).unwrap(), "evil.example");
        assert_eq!(host("/", Some("[::1]:8080")).unwrap(), "[::1]");
        let target = "http://evil.example:8080/";
        assert_eq!(host(target, Some("localhost")).unwrap(), "evil.example");
        for odd in ["a{b.evil.example:8080", "a\"b.evil.example", "evil example"] {
            assert_eq!(host("/", Some(odd)).unwrap(), odd, "no authority");
        }
    }
}
