//! What the network does to connections, and from whom they are. Pure.

use std::time::Duration;

use super::Network;

/// What the network does to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// From which member of etcd they are, by its id; none: all of them. Only a proxy
    /// [between members](super::Proxy::between_members) knows from whom a connection is.
    pub from: Option<u64>,
    /// What happens to them.
    pub network: Network,
}

/// All that is in force at once: what one of them loses is lost.
#[derive(Clone, Debug, Default)]
pub(super) struct Cuts(pub Vec<Cut>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Request,
    Reply,
}

impl Cuts {
    fn of(&self, source: u64) -> impl Iterator<Item = Network> {
        let concern = self
            .0
            .iter()
            .filter(move |cut| cut.from.is_none_or(|from| from == source));
        concern.map(|cut| cut.network)
    }

    pub fn passes(&self, source: u64, direction: Direction) -> bool {
        self.of(source).all(|network| match network {
            Network::Passes | Network::Delays(_) => true,
            Network::LosesReplies => direction == Direction::Request,
            Network::LosesRequests => direction == Direction::Reply,
            Network::BlackHole | Network::Resets | Network::Gone => false,
        })
    }

    pub fn delay(&self, source: u64) -> Duration {
        let delays = self.of(source).map(|network| match network {
            Network::Delays(delay) => delay,
            _ => Duration::ZERO,
        });
        delays.max().unwrap_or_default()
    }

    pub fn resets(&self, source: u64) -> bool {
        self.of(source).any(|network| network == Network::Resets)
    }

    pub fn is_gone(&self) -> bool {
        self.0.iter().any(|cut| cut.network == Network::Gone)
    }
}

/// Finds in the requests of a connection from which member of etcd it is: members say so in a header.
#[derive(Debug, Default)]
pub(super) struct Scan {
    tail: Vec<u8>,
}

/// The header by which members name themselves, as their library writes it.
const HEADER: &[u8] = b"X-Server-From: ";

/// A header that two pieces share is no longer than this, in bytes.
const KEPT: usize = 64;

impl Scan {
    /// Takes the next piece of the requests; the id of the member, once its header is complete.
    pub fn next(&mut self, piece: &[u8]) -> Option<u64> {
        self.tail.extend_from_slice(piece);
        let mut places = self.tail.windows(HEADER.len());
        let found = places.position(|place| place == HEADER).and_then(|at| {
            let rest = &self.tail[at + HEADER.len()..];
            let end = rest.iter().position(|byte| *byte == b'\r')?;
            u64::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok()
        });
        let surplus = self.tail.len().saturating_sub(KEPT);
        self.tail.drain(..surplus);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_way_loses_what_goes_that_way_and_all_cuts_of_a_source_hold_at_once() {
        let cut = |from, network| Cut { from, network };
        let cuts = Cuts(vec![
            cut(Some(1), Network::LosesRequests),
            cut(Some(2), Network::LosesRequests),
            cut(None, Network::Delays(Duration::from_secs(1))),
            cut(Some(2), Network::LosesReplies),
        ]);
        let passes = |source| [Direction::Request, Direction::Reply].map(|way| cuts.passes(source, way));
        assert_eq!(passes(1), [false, true]);
        assert_eq!(passes(2), [false, false]);
        assert_eq!(passes(3), [true, true]);
        assert_eq!(cuts.delay(3), Duration::from_secs(1));
        assert!(!cuts.resets(1) && !cuts.is_gone());
    }

    #[test]
    fn a_member_is_found_by_its_header_also_where_that_comes_in_pieces() {
        let request =
            "GET /raft/stream/msgapp/8e9e HTTP/1.1\r\nX-Server-From: 8e9e05c52164694d\r\nX-Raft-To: 1\r\n";
        assert_eq!(
            Scan::default().next(request.as_bytes()),
            Some(0x8e9e_05c5_2164_694d)
        );
        for at in 0..request.len() {
            let (first, second) = request.as_bytes().split_at(at);
            let mut scan = Scan::default();
            let found = scan.next(first).or_else(|| scan.next(second));
            assert_eq!(found, Some(0x8e9e_05c5_2164_694d), "in two pieces at {at}");
        }
        assert_eq!(Scan::default().next(b"GET /raft/probing HTTP/1.1\r\n"), None);
    }
}
