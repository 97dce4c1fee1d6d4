//! What is between the replica and its objects: a network that takes time, and a webhook that never answers.

use std::time::Duration;

use anyhow::{Context as _, Result};
use http::Request;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// A proxy of a server with TLS that delivers each piece later. Ends when dropped.
pub struct DelayingProxy {
    pub url: String,
    _serving: JoinSet<()>,
}

impl DelayingProxy {
    pub async fn start(server: &str, delay: Duration) -> Result<Self> {
        let target = server
            .strip_prefix("https://")
            .context("no https URL")?
            .to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}", listener.local_addr()?);
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let target = target.clone();
                connections.spawn(async move {
                    let Ok(server) = TcpStream::connect(target).await else {
                        return;
                    };
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let (client_in, client_out) = client.into_split();
                    let (server_in, server_out) = server.into_split();
                    tokio::join!(
                        pump(client_in, server_out, delay),
                        pump(server_in, client_out, delay)
                    );
                });
            }
        });
        Ok(Self {
            url,
            _serving: serving,
        })
    }
}

async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, delay: Duration) {
    let mut buffer = vec![0; 256 * 1024];
    while let Ok(read) = from.read(&mut buffer).await
        && read > 0
    {
        sleep(delay).await;
        if to.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// A webhook for Secrets whose server accepts connections and never answers.
pub struct HangingWebhook(JoinSet<()>);

pub async fn hanging_webhook(client: &kube::Client) -> Result<HangingWebhook> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("https://{}/", listener.local_addr()?);
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut connections = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            connections.push(connection);
        }
    });
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "hangs"},
        "webhooks": [{
            "name": "hangs.example.com",
            "clientConfig": {"url": url},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["secrets"]}],
            "failurePolicy": "Fail",
            "timeoutSeconds": 30,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    });
    let request = Request::post(CONFIGURATIONS)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(configuration.to_string().into_bytes())?;
    client.request_text(request).await?;
    // The server takes it in with a delay.
    sleep(Duration::from_secs(3)).await;
    Ok(HangingWebhook(serving))
}

impl HangingWebhook {
    pub async fn remove(mut self, client: &kube::Client) -> Result<()> {
        let request = Request::delete(format!("{CONFIGURATIONS}/hangs")).body(Vec::new())?;
        client.request_text(request).await?;
        self.0.shutdown().await;
        Ok(())
    }
}
