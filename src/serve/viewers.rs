//! The status page over HTTP: the document, what belongs to it, the same as JSON, and the events that keep it up to date.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, Version};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::{FutureExt as _, StreamExt as _};

use super::connections::OfConnection;
use super::hosts::{Hosts, admit};
use super::screen::Screen;
use crate::page::{SCRIPT, STYLE};

/// Everything is the page's own, and nothing is sent from it. Nothing in a name or a message can run, even if it got there unescaped.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// How long the connection of a viewer lasts. The browser opens another one then: those of viewers that went without a word are
/// given back.
const LASTS: Duration = Duration::from_secs(1800);

/// The pages of the status page, which `hosts` admits.
pub(super) fn routes(screen: Arc<Screen>, hosts: Vec<String>) -> Router {
    let (drawn, state, watched) = (screen.clone(), screen.clone(), screen);
    Router::new()
        .route(
            "/",
            get(async move || answer("text/html; charset=utf-8", drawn.shown().document)),
        )
        .route(
            "/api/v1/state",
            get(async move || answer("application/json", state.shown().state)),
        )
        .route(
            "/page/style.css",
            get(async || answer("text/css; charset=utf-8", Bytes::from_static(STYLE.as_bytes()))),
        )
        .route(
            "/page/script.js",
            get(async || {
                answer(
                    "text/javascript; charset=utf-8",
                    Bytes::from_static(SCRIPT.as_bytes()),
                )
            }),
        )
        .route(
            "/page/events",
            get(
                async move |version: Version, ConnectInfo(of): ConnectInfo<OfConnection>| {
                    events(&watched, version, &of)
                },
            ),
        )
        .route_layer(from_fn_with_state(Arc::new(Hosts::new(hosts)), admit))
}

fn events(screen: &Screen, version: Version, of: &OfConnection) -> Response {
    let (updates, makes_way) = screen.watch();
    // Over HTTP/2 a viewer can leave, which gives its place back, and keep its connection: no limit would count that.
    if version <= Version::HTTP_11 {
        let ends = async move {
            // One that does not read keeps the end of its stream from being sent, and its connection with it.
            let _ = tokio::time::timeout(LASTS, makes_way.cancelled()).await;
        };
        of.stay.until(ends.boxed());
    }
    answer(
        "text/event-stream",
        Body::from_stream(updates.map(Ok::<_, Infallible>)),
    )
}

fn answer(content_type: &'static str, body: impl Into<Body>) -> Response {
    let headers: [(HeaderName, &str); 5] = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // An answer holds only for the moment of the request.
        (CACHE_CONTROL, "no-store"),
    ];
    (headers, body.into()).into_response()
}
