//! Pictures of the page for people, by Debian's `chromium`: at the widths of a desk and of a phone, light and dark.
//!
//! They are taken where the variable [`PICTURES`] names a folder for them; without it a test looks at the text alone.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use k8s_openapi::ByteString;
use quorate::cli::companion::find_on_path;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe::{OpenOptions, Receiver, Sender};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::support::directory::directory;
use crate::support::quorate::TestReplica;
use crate::support::wait::{SOON, eventually, same};

/// Names the folder of the pictures.
const PICTURES: &str = "QUORATE_PAGE_PICTURES";

/// Of a desk, and of a phone.
const WIDTHS: [u64; 2] = [1280, 390];

/// Takes the pictures of a replica's page, `NAME-WIDTH-SCHEME.png`, if they are asked for. Panics where the page is wider than the
/// screen, so that a reader would have to scroll sideways.
pub async fn take(name: &str, replica: &TestReplica) {
    let Some(folder) = std::env::var_os(PICTURES).map(PathBuf::from) else {
        return;
    };
    std::fs::create_dir_all(&folder).unwrap();
    let address = format!("http://127.0.0.1:{}/", replica.port);
    let mut browser = Browser::start().await;
    for width in WIDTHS {
        for scheme in ["light", "dark"] {
            browser.open(&address, width, scheme).await;
            let needed = browser.value("document.documentElement.scrollWidth").await;
            assert!(
                needed.as_u64().unwrap() <= width,
                "{name} is {needed} pixels wide on a screen of {width}"
            );
            let file = folder.join(format!("{name}-{width}-{scheme}.png"));
            std::fs::write(file, browser.picture().await).unwrap();
        }
    }
    browser.close().await;
}

/// A browser without a screen, asked by the DevTools protocol over two pipes.
struct Browser {
    process: Child,
    requests: Sender,
    answers: BufReader<Receiver>,
    /// The last number of a request.
    number: u64,
    /// The session with its one page.
    session: Option<String>,
    _directory: TempDir,
}

impl Browser {
    async fn start() -> Self {
        let chromium = find_on_path("chromium").expect("chromium is not installed (Debian package chromium)");
        let directory = directory();
        let place = |name: &str| directory.path().join(name);
        let (requests, answers) = (place("requests"), place("answers"));
        let made = std::process::Command::new("mkfifo")
            .args([&requests, &answers])
            .status();
        assert!(made.unwrap().success());
        // Open for both directions, an end does not wait for the other one.
        let mut open = OpenOptions::new();
        open.read_write(true);
        let sender = open.open_sender(&requests).unwrap();
        let receiver = open.open_receiver(&answers).unwrap();
        let mut browser = Self {
            process: run(&chromium, &requests, &answers, &place("profile")),
            requests: sender,
            answers: BufReader::new(receiver),
            number: 0,
            session: None,
            _directory: directory,
        };
        let page = browser
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach).await;
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        browser
    }

    /// Opens an address on a screen of this width, and waits until it is loaded.
    async fn open(&mut self, address: &str, width: u64, scheme: &str) {
        let is_phone = width < 500;
        let screen = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": is_phone});
        self.call("Emulation.setDeviceMetricsOverride", screen).await;
        let scheme = json!({"name": "prefers-color-scheme", "value": scheme});
        self.call("Emulation.setEmulatedMedia", json!({"features": [scheme]}))
            .await;
        self.call("Page.navigate", json!({"url": address})).await;
        eventually(SOON, "the page is loaded", async || {
            same(self.value("document.readyState").await, "complete".into())
        })
        .await;
    }

    /// The value of an expression of the page.
    async fn value(&mut self, expression: &str) -> Value {
        let evaluated = self
            .call("Runtime.evaluate", json!({"expression": expression}))
            .await;
        evaluated["result"]["value"].clone()
    }

    /// The whole page, as PNG.
    async fn picture(&mut self) -> Vec<u8> {
        let options = json!({"format": "png", "captureBeyondViewport": true});
        let taken = self.call("Page.captureScreenshot", options).await;
        // In base64, like the bytes of Kubernetes.
        let ByteString(bytes) = serde_json::from_value(taken["data"].clone()).unwrap();
        bytes
    }

    async fn close(mut self) {
        self.session = None;
        self.call("Browser.close", json!({})).await;
        let ended = timeout(SOON, self.process.wait()).await;
        ended.expect("chromium ends").unwrap();
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.number += 1;
        let mut request = json!({"id": self.number, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        let request = format!("{request}\0");
        self.requests.write_all(request.as_bytes()).await.unwrap();
        loop {
            let mut answer = Vec::new();
            let read = timeout(SOON, self.answers.read_until(0, &mut answer)).await;
            read.expect("chromium answers").unwrap();
            let answer: Value = serde_json::from_slice(answer.strip_suffix(b"\0").unwrap()).unwrap();
            // Between the answers are events.
            if answer["id"] == self.number {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }
}

/// Runs chromium, which reads requests from its file 3 and writes answers to its file 4.
fn run(chromium: &Path, requests: &Path, answers: &Path, profile: &Path) -> Child {
    let script = r#"exec "$0" --headless=new --no-sandbox --disable-gpu --remote-debugging-pipe \
        --user-data-dir="$3" about:blank 3<"$1" 4>"$2""#;
    Command::new("sh")
        .arg("-c")
        .arg(script)
        .args([chromium, requests, answers, profile])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}
