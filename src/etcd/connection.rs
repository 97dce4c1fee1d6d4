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
    pub async fn open(
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
