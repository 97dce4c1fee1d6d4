//! The status page of a replica: what it shows, and under which address others find it.

use std::net::SocketAddr;

use super::{RunArgs, host_name};
use crate::page::{About, Sources};
use crate::replica::ReplicaStatus;
use crate::resources::Bundle;
use crate::serve::Page;
use crate::store::Name;

/// The page; `None` with `--no-page`.
pub(super) fn page(args: &RunArgs, node: &Name, bundle: &Bundle, status: &ReplicaStatus) -> Option<Page> {
    let about = About {
        replica: node.to_string(),
        bundle: format!("{} {}", bundle.name, bundle.version),
        kubernetes: !args.no_kubernetes,
        serves_agents: args.serves_agents(),
    };
    (!args.no_page).then(|| Page {
        sources: Sources::new(about, status),
        // Its own name leads to a loopback address on many machines.
        hosts: args.page_hosts.iter().cloned().chain([host_name()]).collect(),
    })
}

/// The address of the page of a replica that listens here; `None` with `--no-page`. One that listens on every address of its
/// machine is found at that of its pod, or by the name of its host.
pub(super) fn address(args: &RunArgs, listens: SocketAddr) -> Option<String> {
    (!args.no_page).then(|| {
        let host = match (listens.ip().is_unspecified(), args.pod_address()) {
            (false, _) => return format!("http://{listens}/"),
            (true, Some(pod)) => return format!("http://{}/", SocketAddr::new(pod, listens.port())),
            (true, None) => host_name(),
        };
        format!("http://{host}:{}/", listens.port())
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        run: RunArgs,
    }

    fn address_with(flags: &[&str], listens: &str) -> Option<String> {
        let words = ["quorate"].iter().chain(flags);
        let args = Alone::try_parse_from(words).map(|alone| alone.run);
        address(
            &args.unwrap_or_else(|error| panic!("{error}")),
            listens.parse().unwrap(),
        )
    }

    #[test]
    fn a_page_is_found_where_the_replica_listens_or_at_its_pod_or_host() {
        let found = |flags: &[&str], listens: &str| address_with(flags, listens).unwrap();
        assert_eq!(found(&[], "127.0.0.1:81"), "http://127.0.0.1:81/");
        assert_eq!(
            found(&["--pod-ip=10.1.2.3"], "127.0.0.1:81"),
            "http://127.0.0.1:81/"
        );
        assert_eq!(found(&["--pod-ip=10.1.2.3"], "0.0.0.0:81"), "http://10.1.2.3:81/");
        assert_eq!(found(&["--pod-ip=fd00::1"], "[::]:81"), "http://[fd00::1]:81/");
        let host = found(&[], "0.0.0.0:81");
        assert!(host.starts_with("http://") && host.ends_with(":81/"), "{host}");
        assert!(!host.contains("0.0.0.0"), "{host}");
        assert_eq!(address_with(&["--no-page"], "127.0.0.1:81"), None);
    }
}
