//! Free ports on 127.0.0.1.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use super::Error;

/// The lowest port given out. Well-known services use lower ones.
const LOWEST: u16 = 10_000;

/// Ports that this process has given out. Each is given out once, so that two tests of one process never get the same port
/// before either has bound it.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port that was free a moment ago and that this process has not given out before.
///
/// It is below the kernel's range for outgoing connections, for two reasons: a server that restarts must find its port
/// free, and a client that keeps dialling a port of that range can connect to itself. Another process may still bind it
/// first: see [`Error::is_address_in_use`].
pub fn free_port() -> Result<u16, Error> {
    let highest = first_ephemeral_port().saturating_sub(1).max(LOWEST);
    let span = u64::from(highest - LOWEST) + 1;
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..span.max(1_000) {
        // Below `span`, which fits, so the fallback is never used.
        let offset = u16::try_from(random() % span).unwrap_or(0);
        let port = LOWEST + offset;
        if given.contains(&port) {
            continue;
        }
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => {
                given.insert(port);
                return Ok(port);
            }
            Err(error) => last = error,
        }
    }
    Err(Error::Ports(last))
}

/// Whether a process has bound this port of 127.0.0.1.
pub fn is_taken(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err()
}

/// The first port of the kernel's range for outgoing connections, or Linux's default where it cannot be read.
fn first_ephemeral_port() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768)
}

/// A random number from the keys of a `RandomState`, which is random enough for a choice of ports.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_out_twice() {
        let mut seen = BTreeSet::new();
        for _ in 0..200 {
            let port = free_port().unwrap();
            assert!(port >= LOWEST && port < first_ephemeral_port(), "{port}");
            assert!(seen.insert(port), "{port} came twice");
        }
    }

    #[test]
    fn a_bound_port_is_taken() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port().unwrap())).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_taken(port));
        drop(listener);
        assert!(!is_taken(port));
    }
}
