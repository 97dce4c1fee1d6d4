//! Metrics as a scraper reads them. A series that does not exist is an error: a misspelt label would read as 0 for ever,
//! and an assertion on it could not fail.

use quorate::grpc_code::{self, Code};
use quorate_dev::observe::sample;

/// The value of a series, by its name with labels as in OpenMetrics text. Panics if no series has that name.
#[track_caller]
pub fn value(text: &str, series: &str) -> f64 {
    sample(text, series).unwrap_or_else(|| {
        let (metric, _) = series.split_once('{').unwrap_or((series, ""));
        let existing: Vec<_> = text.lines().filter(|line| line.starts_with(metric)).collect();
        panic!("no series {series}; there are {existing:#?}")
    })
}

/// How many requests of an operation ended with this code. Panics if the operation was never requested.
#[track_caller]
pub fn requests(text: &str, operation: &str, code: Code) -> f64 {
    let any = format!("quorate_etcd_request_seconds_count{{operation=\"{operation}\",");
    assert!(text.contains(&any), "no request {operation} was made");
    requests_so_far(text, operation, code)
}

/// How many requests of an operation ended with this code; 0 if the operation was never requested. Only to wait for a
/// number: a misspelt operation reads as 0 for ever.
pub fn requests_so_far(text: &str, operation: &str, code: Code) -> f64 {
    let code = grpc_code::name(code);
    let series = format!("quorate_etcd_request_seconds_count{{operation=\"{operation}\",code=\"{code}\"}}");
    sample(text, &series).unwrap_or(0.0)
}

/// How many requests of an operation failed. An endpoint that is still in fails a request at once, one that was taken out by the
/// request's limit: the codes differ.
pub fn failed_so_far(text: &str, operation: &str) -> f64 {
    let codes = [
        Code::Unavailable,
        Code::DeadlineExceeded,
        Code::Cancelled,
        Code::Unknown,
    ];
    codes
        .iter()
        .map(|code| requests_so_far(text, operation, *code))
        .sum()
}

#[test]
#[should_panic(expected = "no series quorate_watch_restarts_total{reason=\"errors\"}")]
fn a_label_that_no_series_has_is_an_error() {
    let text = quorate::metrics::Metrics::new("1.0.0").encode();
    assert_eq!(
        value(&text, "quorate_watch_restarts_total{reason=\"error\"}"),
        0.0
    );
    value(&text, "quorate_watch_restarts_total{reason=\"errors\"}");
}

#[test]
#[should_panic(expected = "no series quorate_leader_transition_total")]
fn a_counter_that_does_not_exist_is_an_error() {
    let text = quorate::metrics::Metrics::new("1.0.0").encode();
    assert_eq!(value(&text, "quorate_leader_transitions_total"), 0.0);
    value(&text, "quorate_leader_transition_total");
}

#[test]
#[should_panic(expected = "no request txns was made")]
fn an_operation_that_was_never_requested_is_an_error() {
    let metrics = quorate::metrics::Metrics::new("1.0.0");
    let (operation, code) = ("txn", grpc_code::name(Code::Ok));
    let request = quorate::metrics::Request { operation, code };
    metrics.etcd_request_seconds.get_or_create(&request).observe(0.1);
    let text = metrics.encode();
    assert_eq!(requests(&text, "txn", Code::Ok), 1.0);
    assert_eq!(requests(&text, "txn", Code::DeadlineExceeded), 0.0);
    requests(&text, "txns", Code::Ok);
}
