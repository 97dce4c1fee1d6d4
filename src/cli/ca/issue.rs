//! `quorate ca issue`.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};

use super::CaDir;
use crate::cli::duration::duration;
use crate::cli::exit::Failure;
use crate::cli::output::print;
use crate::identity::directory::{self, DirectoryError, write_private};
use crate::identity::etcd::{self, Host};
use crate::identity::issue::Issued;
use crate::identity::{Authority, AuthorityKind, NotMade};

/// Arguments of `quorate ca issue`.
#[derive(Args, Debug)]
pub struct IssueArgs {
    #[command(subcommand)]
    holder: Holder,
}

#[derive(Subcommand, Debug)]
enum Holder {
    /// For a member of etcd, towards its clients and its peers
    EtcdMember(MemberArgs),
    /// For a client of etcd: a controller, a kube-apiserver, etcdctl
    EtcdClient(ClientArgs),
}

#[derive(Args, Debug)]
struct Issuing {
    #[command(flatten)]
    ca: CaDir,

    /// Directory to write to; files of an earlier certificate are replaced
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    output: PathBuf,

    /// How long it is valid; no certificate outlives its authority
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = life)]
    life: SignedDuration,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Writes ca.crt, member.crt and member.key; while the authorities are rotated, by the next one, and ca.crt holds both. localhost, \
127.0.0.1 and ::1 are always among the hosts. The common name is quorate-etcd: start etcd with --peer-cert-allowed-cn=quorate-etcd, \
or the certificate of any client passes at its peer port.

Examples:
  quorate ca issue etcd-member --ca-dir ca --host 10.0.0.4 --host etcd-4.example.com -o etcd-4
  quorate ca issue etcd-member --ca-dir ca --host '*.etcd.example.com' --life 720h -o etcd")]
struct MemberArgs {
    /// A DNS name or an address of its peer and client URLs; may be given several times
    #[arg(long = "host", value_name = "HOST", required = true, value_delimiter = ',', value_parser = Host::parse)]
    hosts: Vec<Host>,

    #[command(flatten)]
    issuing: Issuing,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Writes ca.crt, client.crt and client.key; while the authorities are rotated, by the next one, and ca.crt holds both. Where etcd's \
authentication is on, the common name is the user.

Examples:
  quorate ca issue etcd-client --ca-dir ca -o controller
  quorate ca issue etcd-client --ca-dir ca --common-name kube-apiserver -o apiserver")]
struct ClientArgs {
    /// The common name
    #[arg(long, value_name = "NAME", default_value = "quorate", value_parser = common_name)]
    common_name: String,

    #[command(flatten)]
    issuing: Issuing,
}

pub fn run(args: IssueArgs) -> Result<(), Failure> {
    match args.holder {
        Holder::EtcdMember(MemberArgs { hosts, issuing }) => issuing
            .issue("member", |authority, life, now| {
                etcd::member(authority, hosts, life, now)
            }),
        Holder::EtcdClient(ClientArgs { common_name, issuing }) => issuing
            .issue("client", |authority, life, now| {
                etcd::client(authority, &common_name, life, now)
            }),
    }
}

impl Issuing {
    /// Issues a certificate and writes it as `<name>.crt` and `<name>.key`, with the authority's as `ca.crt`.
    fn issue(
        &self,
        name: &str,
        make: impl FnOnce(&Authority, SignedDuration, Timestamp) -> Result<Issued, NotMade>,
    ) -> Result<(), Failure> {
        let now = Timestamp::now();
        let (authority, trusted) = authority(&self.ca.ca_dir, now)?;
        let issued = make(&authority, self.life, now)?;
        make_directory(&self.output)?;
        let file = |name: String| self.output.join(name);
        let files = [
            (file("ca.crt".to_owned()), trusted.as_str()),
            (file(format!("{name}.key")), &issued.key_pem),
            (file(format!("{name}.crt")), &issued.chain_pem),
        ];
        write_all(&files)?;
        directory::sync(&self.output)?;
        for (path, _) in &files {
            print(&format!("wrote {}\n", path.display()))?;
        }
        print(&format!(
            "valid until {}\n",
            issued
                .not_after
                .round(jiff::Unit::Second)
                .unwrap_or(issued.not_after)
        ))?;
        Ok(())
    }
}

/// The authority that signs, and the certificates that its holder trusts. While authorities are rotated, the next one signs: who
/// trusts either takes what it signs, since the former one has signed it as well; and the holder trusts both.
fn authority(ca_dir: &Path, now: Timestamp) -> Result<(Authority, String), DirectoryError> {
    let kind = AuthorityKind::Etcd;
    if !directory::has_next(ca_dir) {
        let authority = directory::read(ca_dir, kind, now)?;
        let trusted = authority.certificates_pem().to_owned();
        return Ok((authority, trusted));
    }
    let next = directory::read_next(ca_dir, kind, now)?;
    let mut trusted = next.certificates_pem().to_owned();
    // One that has ended is trusted by none.
    if let Ok(former) = directory::read_certificate(ca_dir, kind, now) {
        trusted.push_str(former.certificates_pem());
    }
    Ok((next, trusted))
}

/// Writes private files. Each is complete before the first one takes its place: a full disk leaves the earlier ones as they are, and a
/// certificate with its key.
fn write_all(files: &[(PathBuf, &str)]) -> Result<(), DirectoryError> {
    let new = files.iter().map(|(path, _)| {
        let mut new = path.clone().into_os_string();
        new.push(".new");
        PathBuf::from(new)
    });
    let new: Vec<PathBuf> = new.collect();
    let write = || {
        for ((_, content), new) in files.iter().zip(&new) {
            write_private(new, content)?;
        }
        for ((path, _), new) in files.iter().zip(&new) {
            fs::rename(new, path).map_err(|source| DirectoryError::Write {
                path: path.clone(),
                source,
            })?;
        }
        Ok(())
    };
    write().inspect_err(|_| {
        for new in &new {
            // The first failure is the one to report.
            let _ = fs::remove_file(new);
        }
    })
}

fn make_directory(path: &Path) -> Result<(), DirectoryError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| DirectoryError::Write {
            path: path.to_owned(),
            source,
        })
}

/// The least life of a certificate: a shorter one ends before its holder can be set up.
const LEAST_LIFE: Duration = Duration::from_secs(3600);

fn life(text: &str) -> Result<SignedDuration, String> {
    let life = duration(text)?;
    if life < LEAST_LIFE {
        return Err("expected at least 1h".to_owned());
    }
    SignedDuration::try_from(life).map_err(|_| format!("\"{text}\" is too long"))
}

/// At most 64 characters, as X.509 has it (ub-common-name in RFC 5280).
fn common_name(text: &str) -> Result<String, String> {
    if text == etcd::MEMBER {
        return Err(format!(
            "{text} is the common name of members: a client with it would pass at the peer port"
        ));
    }
    let fits = (1..=64).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic() || c == ' ');
    match fits {
        true => Ok(text.to_owned()),
        false => Err("expected 1 to 64 printable ASCII characters".to_owned()),
    }
}
