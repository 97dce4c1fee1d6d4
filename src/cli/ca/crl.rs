//! `quorate ca crl`.

use clap::{Args, ValueEnum};
use jiff::Timestamp;

use crate::cli::connection::{EtcdArgs, connect_to_show};
use crate::cli::exit::Failure;
use crate::cli::output::{Description, NONE, one_line, or_none, print, print_bytes};
use crate::identity::crl;
use crate::proto::{RevocationList, RevokedCertificate};
use crate::store::object::{message, time};

/// Arguments of `quorate ca crl`.
#[derive(Args, Debug)]
#[command(after_help = "\
The leader keeps the list: the certificates of etcd that agents had whose nodes are workers now, or were removed. Agents write it \
for their members. A member that was started by hand reads it with --client-crl-file and --peer-crl-file, at every handshake, so \
replace the file at once and never delete it: without it, etcd refuses everybody.

Examples:
  quorate ca crl
  quorate ca crl -o der > crl.new && mv crl.new /etc/etcd/crl.der

Exit codes: 0 done, 1 failed, 3 there is no list: no leader has made one, 4 it cannot be read.")]
pub struct CrlArgs {
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: CrlFormat,
}

/// How the list is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum CrlFormat {
    /// For people
    #[default]
    Text,
    /// X.509 in DER, which every etcd reads
    Der,
    /// X.509 in PEM, which etcd reads up to 3.5
    Pem,
}

pub async fn run(args: &CrlArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect_to_show(etcd).await?;
    let (stored, _) = store.etcd.get(&store.keys.revocation_list()).await?;
    let stored = stored.ok_or_else(|| {
        Failure::not_found("there is no list of revoked certificates")
            .hint("a leader with --ca-dir makes it, once the etcd authority can sign (quorate ca show)")
    })?;
    let list: RevocationList = message("RevocationList", &stored.value)
        .map_err(|malformed| Failure::refused("Malformed", malformed))?;
    let printed = match args.output {
        CrlFormat::Text => print(&text(&list, Timestamp::now())),
        CrlFormat::Der => print_bytes(&list.crl),
        CrlFormat::Pem => print(&crl::to_pem(list.crl)),
    };
    printed.map(drop)
}

fn text(list: &RevocationList, now: Timestamp) -> String {
    let mut shown = Description::default();
    let signed = time::from_proto(list.this_update.as_ref());
    let until = time::from_proto(list.next_update.as_ref());
    shown
        .field("Number", list.number.to_string())
        .field(
            "Signed",
            signed.map_or_else(|| NONE.to_owned(), |at| time::since(at, now)),
        )
        .field(
            "Valid Until",
            until.map_or_else(|| NONE.to_owned(), |at| time::until(at, now)),
        );
    match list.revoked.is_empty() {
        true => shown.field("Revoked", NONE),
        false => shown.field("Revoked", ""),
    };
    for revoked in &list.revoked {
        shown.nested(&serial(revoked), whose(revoked, now));
    }
    shown.render()
}

/// As `openssl x509 -serial` prints it, in lower case.
fn serial(revoked: &RevokedCertificate) -> String {
    let hex = |byte: &u8| format!("{byte:02x}");
    let digits: String = revoked.serial.iter().map(hex).collect();
    let significant = digits.trim_start_matches("00");
    or_none(significant).to_owned()
}

fn whose(revoked: &RevokedCertificate, now: Timestamp) -> String {
    let end = time::from_proto(revoked.not_after.as_ref());
    let end = end.map_or_else(String::new, |end| format!(", ends {}", time::until(end, now)));
    let (node, uid) = (one_line(&revoked.node), one_line(&revoked.node_uid));
    format!("node {node} ({uid}){end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_shown_with_the_nodes_that_had_the_certificates() {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let mut list = RevocationList {
            number: 77,
            this_update: Some(time::to_proto(now)),
            ..RevocationList::default()
        };
        let lines = |list: &RevocationList| -> Vec<String> {
            let shown = text(list, now);
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            shown.lines().map(words).collect()
        };
        assert!(lines(&list).contains(&"Revoked: <none>".to_owned()));
        list.revoked.push(RevokedCertificate {
            serial: vec![0, 0x0a, 0xff],
            node: "n1".to_owned(),
            node_uid: "u".to_owned(),
            ..RevokedCertificate::default()
        });
        let shown = lines(&list);
        for line in ["Number: 77", "0aff: node n1 (u)"] {
            assert!(shown.contains(&line.to_owned()), "{shown:?}");
        }
    }
}
