//! One etcd client and what it was made from.

use etcd_client::{Client, ConnectOptions};

use super::config::{Config, Credentials};
use super::error::Error;

/// A balanced channel. Replaced as a whole when the credentials change.
pub(super) struct Connection {
    pub client: Client,
    /// For further clients with the same credentials, each of one endpoint.
    pub options: ConnectOptions,
    pub credentials: Credentials,
}

impl Connection {
    /// Opens it within the time that an endpoint may take to answer: the log-in has no limit of its own.
    pub async fn open(
        config: &Config,
        endpoints: &[String],
        credentials: Credentials,
    ) -> Result<Self, Error> {
        let limit = config.connect_timeout + config.request_timeout / 2;
        let opening = Self::open_without_a_limit(config, endpoints, credentials);
        let opened = tokio::time::timeout(limit, opening).await;
        opened.unwrap_or_else(|_| Err(Error::timed_out("connect", limit)))
    }

    async fn open_without_a_limit(
        config: &Config,
        endpoints: &[String],
        credentials: Credentials,
    ) -> Result<Self, Error> {
        let options = config.connect_options(&credentials);
        let client = Client::connect(endpoints, Some(options.clone()))
            .await
            .map_err(|error| Error::from_client("connect", error))?;
        Ok(Self {
            client,
            options,
            credentials,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    /// As where the credentials change while a member hangs: what waits for the connection must not wait for ever.
    #[tokio::test]
    async fn a_log_in_that_is_never_answered_ends_with_the_time_of_an_endpoint() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", silent.local_addr().unwrap());
        let password = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(password.path(), "secret").unwrap();
        let config = Config {
            user: Some(("a".to_owned(), password.path().to_owned())),
            connect_timeout: Duration::from_millis(100),
            request_timeout: Duration::from_millis(200),
            ..Config::new(vec![endpoint])
        };
        let credentials = config.load().unwrap();
        let opening = Connection::open(&config, &config.endpoints, credentials);
        let opened = timeout(Duration::from_secs(10), opening).await.expect("it ends");
        let error = opened.map(drop).unwrap_err();
        assert_eq!(error.message(), "no answer within 200ms");
    }
}
