//! The URLs of an etcd. Pure.

use std::net::SocketAddr;

use crate::identity::etcd::Host;

/// Whether any of these is reached by TLS.
pub fn any_is_encrypted(urls: &[String]) -> bool {
    urls.iter().any(|url| url.starts_with("https://"))
}

/// The hosts of these URLs, as far as a certificate can say them.
pub fn hosts<'u>(urls: impl IntoIterator<Item = &'u String>) -> Vec<Host> {
    urls.into_iter().filter_map(|url| Host::of_url(url)).collect()
}

/// Where etcd listens to be reached at these URLs: it listens on addresses, not on names of hosts.
pub fn listened(urls: &[String]) -> Vec<String> {
    let mut listened: Vec<String> = Vec::new();
    for url in urls {
        let (scheme, authority) = url.split_once("://").unwrap_or(("http", url));
        let url = match (authority.parse::<SocketAddr>(), authority.rsplit_once(':')) {
            (Err(_), Some((_, port))) => format!("{scheme}://0.0.0.0:{port}"),
            _ => url.clone(),
        };
        if !listened.contains(&url) {
            listened.push(url);
        }
    }
    listened
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(urls: &[&str]) -> Vec<String> {
        urls.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn etcd_listens_on_addresses_and_on_all_of_them_where_it_is_reached_by_a_name() {
        let listens = listened(&urls(&[
            "https://10.0.0.1:2380",
            "https://n1.example:2380",
            "https://n1.other:2380",
            "http://[::1]:2381",
        ]));
        assert_eq!(
            listens,
            [
                "https://10.0.0.1:2380",
                "https://0.0.0.0:2380",
                "http://[::1]:2381"
            ]
        );
    }

    #[test]
    fn the_hosts_of_urls_are_names_and_addresses() {
        let all = urls(&[
            "https://n1.example:2380",
            "https://10.0.0.1:1",
            "http://[::1]:2379",
        ]);
        let expected = ["n1.example", "10.0.0.1", "::1"].map(|host| Host::parse(host).unwrap());
        assert_eq!(hosts(&all), expected);
        assert!(any_is_encrypted(&all));
        assert!(!any_is_encrypted(&all[2..]));
    }
}
