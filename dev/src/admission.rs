//! A webhook that a kube-apiserver asks before it writes, and that refuses what it is asked for while it is set to.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

use super::Error;
use super::pki::{Authority, CertificateFiles};

/// How long a question may take to arrive.
const LIMIT: Duration = Duration::from_secs(10);

/// The largest question in bytes: an object of Kubernetes, twice.
const LARGEST: usize = 8 << 20;

/// The webhook. It ends when dropped.
#[derive(Debug)]
pub struct Admission {
    /// `https://127.0.0.1:<port>/`
    pub url: String,
    /// The certificate (PEM) of the authority that signed the one of the webhook.
    pub authority: String,
    /// The status of its answers; 0: it admits everything.
    refuses: Arc<AtomicU16>,
    _serving: JoinSet<()>,
}

impl Admission {
    /// Starts it, with the files of its certificate in this directory. It admits everything.
    ///
    /// # Errors
    /// There is no port, or the certificate cannot be made or read.
    pub async fn start(directory: &Path) -> Result<Self, Error> {
        fs::create_dir_all(directory).map_err(Error::write(directory))?;
        let issuer = Authority::create(directory, "quorate-dev-admission")?;
        let acceptor = acceptor(&issuer.server("admission")?)?;
        let file = issuer.certificate_file();
        let authority = fs::read_to_string(&file).map_err(Error::read(&file))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .map_err(Error::Ports)?;
        let port = listener.local_addr().map_err(Error::Ports)?.port();
        let refuses = Arc::new(AtomicU16::new(0));
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, acceptor, refuses.clone()));
        Ok(Self {
            url: format!("https://127.0.0.1:{port}/"),
            authority,
            refuses,
            _serving: serving,
        })
    }

    /// Refuses everything with this status from now on; none: it admits everything again.
    pub fn refuse(&self, status: Option<u16>) {
        self.refuses.store(status.unwrap_or(0), Ordering::SeqCst);
    }
}

fn acceptor(files: &CertificateFiles) -> Result<TlsAcceptor, Error> {
    let invalid = |path: &Path| Error::read(path)(io::ErrorKind::InvalidData.into());
    let chain = CertificateDer::pem_file_iter(&files.cert).and_then(Iterator::collect);
    let chain: Vec<_> = chain.map_err(|_| invalid(&files.cert))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|_| invalid(&files.key))?;
    let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let config = config.map_err(|_| invalid(&files.cert))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, refuses: Arc<AtomicU16>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Descriptors have run out, for the moment.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let (acceptor, refuses) = (acceptor.clone(), refuses.clone());
        connections.spawn(async move {
            // What goes wrong with a connection is for the server to say.
            let _ = timeout(LIMIT, answer(stream, &acceptor, &refuses)).await;
        });
    }
}

/// Answers the one question of a connection.
async fn answer(stream: TcpStream, acceptor: &TlsAcceptor, refuses: &AtomicU16) -> io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut question = Vec::new();
    let body = loop {
        if let Some(body) = body(&question) {
            break body;
        }
        if question.len() > LARGEST || stream.read_buf(&mut question).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    };
    let review: Value = serde_json::from_slice(body)?;
    let answer = reviewed(&review, refuses.load(Ordering::SeqCst)).to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.len()
    );
    stream.write_all((head + &answer).as_bytes()).await?;
    stream.shutdown().await
}

/// The body of a request that has arrived as a whole.
fn body(request: &[u8]) -> Option<&[u8]> {
    const END: &[u8] = b"\r\n\r\n";
    let end = request.windows(END.len()).position(|bytes| bytes == END)?;
    let head = String::from_utf8_lossy(&request[..end]);
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>().ok())?
    })?;
    let begin = end + END.len();
    request.get(begin..begin.checked_add(length)?)
}

/// The answer to a question, which refuses with this status; 0: it admits.
fn reviewed(review: &Value, status: u16) -> Value {
    let mut response = json!({"uid": review["request"]["uid"], "allowed": status == 0});
    if status != 0 {
        let reason = match status {
            429 => "TooManyRequests",
            _ => "InternalError",
        };
        response["status"] = json!({
            "code": status, "reason": reason, "message": "refused for a while", "details": {"retryAfterSeconds": 1},
        });
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_whole_with_its_last_byte() {
        let request = b"POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\nbody";
        assert_eq!(body(request), Some(&b"body"[..]));
        for length in 0..request.len() {
            assert_eq!(body(&request[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn an_answer_has_the_uid_of_its_question_and_the_status() {
        let review = json!({"request": {"uid": "u1"}});
        let admitted = reviewed(&review, 0);
        assert_eq!(admitted["response"], json!({"uid": "u1", "allowed": true}));
        let refused = reviewed(&review, 429);
        assert_eq!(refused["response"]["allowed"], json!(false));
        assert_eq!(refused["response"]["status"]["code"], json!(429));
    }
}
