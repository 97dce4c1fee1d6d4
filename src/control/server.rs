//! The gRPC server: the control API, and the health and reflection services beside it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

use super::Site;
use super::acceptor::Connection;
use super::service::Service;
use crate::proto::control_server::{ControlServer, SERVICE_NAME};

/// The descriptions of the messages and calls, for reflection.
const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("quorate");

/// The most bytes of a request: a certificate request has up to 8 KiB, a report a few plugins.
const LARGEST_REQUEST: usize = 64 * 1024;

/// The most bytes of the headers of a call.
const LARGEST_HEADERS: u32 = 16 * 1024;

/// Calls of one connection at a time: an agent makes a handful.
const MOST_CALLS: u32 = 32;

/// Pings on an idle connection, and the limit of an answer: agents that are gone leave no connection behind.
const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// After this long a connection is closed once its calls have ended, so that agents spread over the replicas again after a rollout.
const OLDEST_CONNECTION: Duration = Duration::from_secs(3600);

/// The answer of the health service follows the state this closely.
const HEALTH_EVERY: Duration = Duration::from_secs(1);

/// Why the server failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The descriptions cannot be served.
    #[error("the descriptions of the API cannot be read")]
    Descriptors(#[from] tonic_reflection::server::Error),
    /// A connection failed in a way that ends the server.
    #[error("the server ended")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves these connections until the stop, and then until their calls have ended.
///
/// # Errors
/// If the server itself fails.
pub async fn serve(
    site: &Arc<Site>,
    connections: impl Stream<Item = Result<Connection, Infallible>>,
) -> Result<(), ServeError> {
    let (reporter, health) = health_reporter();
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let service = Service(Arc::clone(site));
    let routes = Routes::new(ControlServer::new(service).max_decoding_message_size(LARGEST_REQUEST))
        .add_service(health)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    let serving = Server::builder()
        .http2_keepalive_interval(Some(PING.0))
        .http2_keepalive_timeout(Some(PING.1))
        .http2_max_header_list_size(LARGEST_HEADERS)
        .max_concurrent_streams(MOST_CALLS)
        .max_connection_age(OLDEST_CONNECTION)
        .add_routes(routes)
        .serve_with_incoming_shutdown(connections, site.stop.cancelled());
    tokio::select! {
        served = serving => Ok(served?),
        never = report_health(site, &reporter) => match never {},
    }
}

/// Keeps the health service current: the API serves while etcd has a quorum, until the stop.
async fn report_health(site: &Site, reporter: &HealthReporter) -> Infallible {
    let mut every = tokio::time::interval(HEALTH_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        every.tick().await;
        let serves = !site.stop.is_cancelled() && site.store.etcd.metrics().etcd_quorum_lost.get() == 0;
        let status = match serves {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        // The empty name is that of the whole server.
        for service in ["", SERVICE_NAME] {
            reporter.set_service_status(service, status).await;
        }
    }
}
