//! Which process is at the other end of a connection on this machine, as the kernel says.

use std::fs;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;

use crate::history::Process;
use crate::recorder::Recorder;

/// How often the table of connections is read. It is no snapshot: while others come and go, a read may miss a row.
const READS: usize = 5;

/// The process that made the connection between these addresses, the first one being its own; none for one that the recorder does not
/// know, such as a command, and for one that has ended already.
pub fn caller(from: SocketAddr, at: SocketAddr, recorder: &Recorder) -> Option<Process> {
    let (SocketAddr::V4(from), SocketAddr::V4(at)) = (from, at) else {
        return None;
    };
    let look = |_| {
        let table = fs::read_to_string("/proc/net/tcp").ok()?;
        Some(format!("socket:[{}]", socket_between(&table, from, at)?))
    };
    let socket = (0..READS).find_map(look)?;
    let mut running = recorder.running().into_iter();
    running
        .find(|(id, _)| has_open(*id, &socket))
        .map(|(_, process)| process)
}

/// The number of the socket at the first of these ends of a connection, from the kernel's table. Connections to other ends may have the
/// same address, also of other processes.
fn socket_between(table: &str, from: SocketAddrV4, at: SocketAddrV4) -> Option<&str> {
    let (local, remote) = (in_table(from), in_table(at));
    let mut rows = table.lines().map(|line| line.split_whitespace());
    rows.find_map(|mut row| {
        let is_it = row.nth(1)? == local && row.next()? == remote;
        is_it.then(|| row.nth(6)).flatten()
    })
}

/// The table has the bytes of an address as the machine keeps them in memory.
fn in_table(address: SocketAddrV4) -> String {
    let ip = u32::from_ne_bytes(address.ip().octets());
    format!("{ip:08X}:{:04X}", address.port())
}

/// Whether the process with this id has the file open that the kernel gives this name.
fn has_open(id: i32, name: &str) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{id}/fd")) else {
        return false;
    };
    let mut targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    targets.any(|target: PathBuf| target.as_os_str() == name)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;
    use crate::history::Role;
    use crate::run::tests::described;

    #[test]
    fn a_socket_is_found_by_both_ends_of_its_connection() {
        let address = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let ip = format!("{:08X}", u32::from_ne_bytes([127, 0, 0, 1]));
        let row = |local: &str, remote: &str, socket: u64| {
            format!(
                "   0: {ip}:{local} {ip}:{remote} 01 00000000:00000000 00:00000000 00000000  1000        0 {socket} 1\n"
            )
        };
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let table = [
            head.to_owned(),
            // The same address at the own end, towards another server.
            row("1F90", "1F92", 4710),
            row("1F90", "1F91", 4711),
            row("1F91", "1F90", 4712),
        ];
        let table = table.concat();
        assert_eq!(
            socket_between(&table, address(0x1F90), address(0x1F91)),
            Some("4711")
        );
        assert_eq!(
            socket_between(&table, address(0x1F91), address(0x1F90)),
            Some("4712")
        );
        assert_eq!(socket_between(&table, address(0x1F92), address(0x1F90)), None);
    }

    #[test]
    fn a_connection_is_of_the_process_that_made_it_while_that_runs() {
        let directory = tempfile::tempdir().unwrap();
        let recorder = Recorder::begin(&directory.path().join("history.jsonl"), &described()).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_server, from) = listener.accept().unwrap();
        let at = listener.local_addr().unwrap();
        assert_eq!(caller(from, at, &recorder), None);
        let node = "agent-1".to_owned();
        recorder.started("agent-1", Role::Agent { node });
        recorder.runs_as("agent-1", i32::try_from(std::process::id()).ok());
        assert_eq!(caller(from, at, &recorder), Some(Process("agent-1#1".to_owned())));
        recorder.exited("agent-1", None);
        assert_eq!(caller(from, at, &recorder), None);
    }
}
