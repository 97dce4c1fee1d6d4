//! An answer of one text.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse as _, Response};

/// The content type of plain text.
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

pub(super) fn page(status: StatusCode, content_type: &'static str, body: String) -> Response {
    // An answer holds only for the moment of the request.
    let headers: [(HeaderName, &str); 2] = [(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-store")];
    (status, headers, body).into_response()
}
