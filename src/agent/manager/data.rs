//! The data directory of etcd: whose it is, and how it is set aside. Nothing here deletes.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::log_header;
use super::plan::Data;
use crate::etcd::MemberId;

/// Looks at the directory. What cannot be looked at is unreadable, and no reason to do anything.
pub fn look(directory: &Path) -> Data {
    match log(directory) {
        Ok(Logged::Missing) => Data::Missing,
        Ok(Logged::No) => Data::NoLog,
        Ok(Logged::Database) => Data::Unowned,
        Ok(Logged::File(path)) => match beginning(&path) {
            Ok(bytes) => log_header::owner(&bytes).map_or_else(
                || Data::Unreadable(format!("{} is no log of etcd", path.display())),
                Data::Of,
            ),
            Err(error) => Data::Unreadable(format!("{}: {error}", path.display())),
        },
        Err(error) => Data::Unreadable(error.to_string()),
    }
}

enum Logged {
    Missing,
    No,
    /// None, beside a database.
    Database,
    File(PathBuf),
}

/// The oldest file of the log. Etcd gives a file its name only once its beginning is written.
fn log(directory: &Path) -> io::Result<Logged> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Logged::Missing),
        entries => {
            if entries?.next().transpose()?.is_none() {
                return Ok(Logged::Missing);
            }
        }
    }
    let entries = match fs::read_dir(directory.join("member").join("wal")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return without_log(directory),
        entries => entries?,
    };
    let mut oldest: Option<PathBuf> = None;
    for entry in entries {
        let path = entry?.path();
        let is_log = path.extension().is_some_and(|extension| extension == "wal");
        if is_log && oldest.as_ref().is_none_or(|oldest| path < *oldest) {
            oldest = Some(path);
        }
    }
    oldest.map_or_else(|| without_log(directory), |path| Ok(Logged::File(path)))
}

/// Etcd makes its database before its log, and a member that starts without a log goes on with the database that it finds.
fn without_log(directory: &Path) -> io::Result<Logged> {
    let database = directory.join("member").join("snap").join("db");
    Ok(match database.try_exists()? {
        true => Logged::Database,
        false => Logged::No,
    })
}

fn beginning(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(log_header::READ_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Renames the directory to `<directory>.<member id>.<time>`, and returns that path. Etcd must not run on it.
///
/// # Errors
/// It cannot be renamed: as where it is a mount, or where another one was set aside in this very second.
pub fn set_aside(directory: &Path, member: MemberId, now: Timestamp) -> io::Result<PathBuf> {
    let mut name = directory.as_os_str().to_owned();
    name.push(format!(".{member}.{}", now.strftime("%Y%m%dT%H%M%SZ")));
    let aside = PathBuf::from(name);
    fs::rename(directory, &aside).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot set {} aside: {error}", directory.display()),
        )
    })?;
    // Over a loss of power, the next member must not find it here again.
    if let Some(parent) = directory.parent() {
        File::open(parent)?.sync_all()?;
    }
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::manager::plan::OwnMember;
    use crate::etcd::ClusterId;

    const OWN: OwnMember = OwnMember {
        cluster: ClusterId(0xc0_ffee),
        id: MemberId(0x8e9e),
    };

    fn write_log(directory: &Path, name: &str, bytes: &[u8]) {
        let log = directory.join("member/wal");
        fs::create_dir_all(&log).unwrap();
        fs::write(log.join(name), bytes).unwrap();
    }

    #[test]
    fn a_directory_is_missing_without_a_log_or_that_of_a_member() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("etcd");
        assert_eq!(look(&directory), Data::Missing);
        fs::create_dir(&directory).unwrap();
        assert_eq!(look(&directory), Data::Missing);
        fs::create_dir_all(directory.join("member/snap")).unwrap();
        assert_eq!(look(&directory), Data::NoLog);
        write_log(&directory, "0.tmp", &[]);
        assert_eq!(look(&directory), Data::NoLog);
        write_log(&directory, "0000000000000001-00000000000000a0.wal", b"rubbish");
        assert!(matches!(look(&directory), Data::Unreadable(_)));
        let log = log_header::written(OWN);
        write_log(&directory, "0000000000000000-0000000000000000.wal", &log);
        assert_eq!(look(&directory), Data::Of(OWN));
    }

    #[test]
    fn a_database_without_a_log_is_owned_by_no_member() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("etcd");
        let snap = directory.join("member/snap");
        fs::create_dir_all(&snap).unwrap();
        fs::write(snap.join("db"), "database").unwrap();
        assert_eq!(look(&directory), Data::Unowned);
        write_log(&directory, "0.tmp", &[]);
        assert_eq!(look(&directory), Data::Unowned);
        write_log(&directory, "0.wal", &log_header::written(OWN));
        assert_eq!(look(&directory), Data::Of(OWN));
    }

    #[test]
    fn what_is_no_directory_cannot_be_read() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("etcd");
        fs::write(&file, "").unwrap();
        assert!(matches!(look(&file), Data::Unreadable(_)));
    }

    #[test]
    fn data_is_set_aside_whole_under_its_member_and_time_and_never_over_another() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("etcd");
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        let log = log_header::written(OWN);
        write_log(&directory, "0.wal", &log);
        let aside = set_aside(&directory, OWN.id, now).unwrap();
        assert_eq!(aside, home.path().join("etcd.0000000000008e9e.20260301T120000Z"));
        assert_eq!((look(&directory), look(&aside)), (Data::Missing, Data::Of(OWN)));
        write_log(&directory, "0.wal", &log);
        set_aside(&directory, OWN.id, now).unwrap_err();
        assert_eq!(look(&directory), Data::Of(OWN), "it stays where it is");
    }
}
