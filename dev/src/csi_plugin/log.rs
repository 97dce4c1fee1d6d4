//! The plugin's log of calls: a JSON object a line, one at the begin of a call and one at its end, so that a call is in the log
//! even if the plugin dies of it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tonic::Code;

use quorate::grpc_code;

/// What the log says at the begin of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Begun {
    /// The method, as in `CreateVolume`.
    pub method: String,
    /// The backend's id of the volume; empty for a call that is not about a volume.
    pub volume: String,
    /// The node id: None for a call without such a field, Some("") if the field is empty.
    pub node: Option<String>,
    /// The keys of its secrets.
    pub secrets: Vec<String>,
    /// The id of the process that called, of a call over a unix socket that changes what is at the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<i32>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    /// Start of the process in µs since 1970, which identifies a run of the plugin.
    run: u64,
    call: u64,
    /// Begin of the call in µs since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<u64>,
    #[serde(flatten)]
    begun: Option<Begun>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
}

/// A call in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What the log says at its begin.
    pub begun: Begun,
    /// Its begin in µs since 1970.
    pub start: u64,
    /// Its end in µs since 1970; none if it has not ended, or if the plugin died first.
    pub end: Option<u64>,
    /// Its code, as in `OK`; `Canceled` if its caller went away.
    pub code: Option<String>,
    /// The run of the plugin: the start of its process in µs since 1970.
    pub run: u64,
}

/// Writes the log.
#[derive(Debug)]
pub struct Log {
    file: Mutex<File>,
    run: u64,
    calls: AtomicU64,
}

impl Log {
    /// Opens the file to append to it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self {
            file: Mutex::new(file),
            run: micros_now(),
            calls: AtomicU64::new(0),
        })
    }

    /// Logs the begin of a call. An entry that is dropped without [`end`](Entry::end) logs that the call was cancelled.
    pub fn begin(&self, begun: Begun) -> Entry<'_> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.write(&Line {
            run: self.run,
            call,
            start: Some(micros_now()),
            end: None,
            begun: Some(begun),
            code: None,
        });
        Entry {
            log: self,
            call,
            ended: false,
        }
    }

    fn write(&self, line: &Line) {
        // Strings and numbers always serialize. If the disk is full, the plugin continues without its log, and a test that
        // reads the log fails.
        let Ok(mut text) = serde_json::to_string(line) else {
            return;
        };
        text.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = file.write_all(text.as_bytes());
    }
}

/// A call in flight.
pub struct Entry<'a> {
    log: &'a Log,
    call: u64,
    ended: bool,
}

impl Entry<'_> {
    /// Logs the end of the call with this code.
    pub fn end(mut self, code: Code) {
        self.write_end(code);
    }

    fn write_end(&mut self, code: Code) {
        self.ended = true;
        self.log.write(&Line {
            run: self.log.run,
            call: self.call,
            start: None,
            end: Some(micros_now()),
            begun: None,
            code: Some(grpc_code::name(code).to_owned()),
        });
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.write_end(Code::Cancelled);
        }
    }
}

/// The calls of a log, in the order of their begin. Ignores an incomplete last line.
pub fn read(path: &Path) -> io::Result<Vec<Call>> {
    let text = std::fs::read_to_string(path)?;
    let mut calls: Vec<Call> = Vec::new();
    let mut places = BTreeMap::new();
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let line: Line = serde_json::from_str(line).map_err(io::Error::other)?;
        let key = (line.run, line.call);
        match (line.begun, line.start) {
            (Some(begun), Some(start)) => {
                places.insert(key, calls.len());
                calls.push(Call {
                    begun,
                    start,
                    end: None,
                    code: None,
                    run: line.run,
                });
            }
            _ => {
                if let Some(place) = places.get(&key) {
                    calls[*place].end = line.end;
                    calls[*place].code = line.code;
                }
            }
        }
    }
    Ok(calls)
}

fn micros_now() -> u64 {
    // The clock is after 1970 and before the year 500,000.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(method: &str) -> Begun {
        Begun {
            method: method.to_owned(),
            volume: "vol-1".to_owned(),
            node: Some(String::new()),
            secrets: vec!["token".to_owned()],
            caller: Some(7),
        }
    }

    #[test]
    fn a_call_has_an_end_unless_the_plugin_died_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("calls.jsonl");
        let first = Log::open(&path).unwrap();
        first.begin(begun("CreateVolume")).end(Code::Ok);
        std::mem::forget(first.begin(begun("DeleteVolume")));
        let second = Log::open(&path).unwrap();
        drop(second.begin(begun("ControllerUnpublishVolume")));
        let half = "{\"run\":1,\"call";
        OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(half.as_bytes())
            .unwrap();

        let calls = read(&path).unwrap();
        let seen: Vec<_> = calls
            .iter()
            .map(|call| (call.begun.method.as_str(), call.code.as_deref()))
            .collect();
        assert_eq!(
            seen,
            [
                ("CreateVolume", Some("OK")),
                ("DeleteVolume", None),
                ("ControllerUnpublishVolume", Some("Canceled"))
            ]
        );
        assert_eq!(calls[0].begun, begun("CreateVolume"));
        assert!(calls[0].end.unwrap() >= calls[0].start);
    }
}
