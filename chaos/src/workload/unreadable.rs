//! Records that cannot be read, in a cluster that nothing else disturbs: services have to end all the same.

use std::time::{Duration, Instant};

use etcd_client::GetOptions;
use tokio::time::{sleep, timeout};

use crate::admin;
use crate::watch::client;

/// They belong to no object of the workload.
const KEYS: [&str; 3] = [
    "/quorate/services/unread",
    "/quorate/networks/unread",
    "/quorate/tasks/unread/t0",
];

/// How long services may take to end: a little longer than a check takes for a delay.
const LIMIT: Duration = Duration::from_secs(75);

/// How long a member may take to answer.
const ANSWER: Duration = Duration::from_secs(3);

/// Writes them.
pub async fn write(endpoints: &[String]) {
    for key in KEYS {
        admin::put_garbage(endpoints.to_vec(), key.to_owned()).await;
    }
}

/// Waits until all other services are gone, but not for ever, and deletes them. A network that is marked waits for that.
pub async fn outlast(endpoints: &[String]) {
    let begun = Instant::now();
    while begun.elapsed() < LIMIT && !are_alone(endpoints).await {
        sleep(Duration::from_millis(500)).await;
    }
    for key in KEYS {
        admin::delete(endpoints.to_vec(), key.to_owned()).await;
    }
}

async fn are_alone(endpoints: &[String]) -> bool {
    for endpoint in endpoints {
        let count = async {
            let options = GetOptions::new().with_prefix().with_count_only();
            let mut client = client(endpoint).await?;
            client.get("/quorate/services/", Some(options)).await
        };
        if let Ok(Ok(services)) = timeout(ANSWER, count).await {
            return services.count() <= 1;
        }
    }
    false
}
