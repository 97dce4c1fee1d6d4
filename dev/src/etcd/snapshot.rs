//! Snapshots of a cluster, and clusters that are restored from one.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::Stdio;

use serde::Deserialize;
use tokio::process::Command;

use super::{Etcd, RECORD, Record};
use crate::{Error, record};

impl Etcd {
    /// The token of the cluster. A restore that keeps it and the URLs keeps the id of the cluster.
    ///
    /// # Errors
    /// The record of its start cannot be read.
    pub fn token(&self) -> Result<String, Error> {
        let file = self.directory.join(RECORD);
        let record = record::read::<Record>(&file)?;
        Ok(record.map(|record| record.token).unwrap_or_default())
    }

    /// Saves a snapshot of the member at this URL, with this `etcdctl`.
    ///
    /// # Errors
    /// The member does not give it.
    pub async fn save_snapshot(etcdctl: &Path, endpoint: &str, file: &Path) -> Result<(), Error> {
        let endpoint = format!("--endpoints={endpoint}");
        let args = ["snapshot".as_ref(), "save".as_ref(), file.as_os_str()];
        run(etcdctl, args.into_iter().chain([OsStr::new(&endpoint)])).await?;
        Ok(())
    }

    /// The revision that a snapshot is of.
    ///
    /// # Errors
    /// The file is no snapshot.
    pub async fn snapshot_revision(etcdctl: &Path, file: &Path) -> Result<i64, Error> {
        let args = ["snapshot".as_ref(), "status".as_ref(), file.as_os_str()];
        let json = OsStr::new("--write-out=json");
        let status = run(etcdctl, args.into_iter().chain([json])).await?;
        let status: Status = serde_json::from_slice(&status).map_err(Error::malformed(file))?;
        Ok(status.revision)
    }

    /// Kills all members and starts them again from a snapshot as a cluster of this token, with the same URLs. `restorer` is the
    /// program that restores: `etcdutl`, or `etcdctl` before 3.5.
    ///
    /// # Errors
    /// The snapshot is not restored, or a member does not start from it.
    pub async fn restore(&mut self, restorer: &Path, token: &str, snapshot: &Path) -> Result<(), Error> {
        let peers = self.members.iter();
        let peers: Vec<_> = peers
            .map(|member| format!("{}={}", member.name, member.peer_url))
            .collect();
        for member in &mut self.members {
            member.kill().await?;
            let data = &member.data;
            fs::remove_dir_all(data).map_err(Error::write(data))?;
            let flags = [
                format!("--name={}", member.name),
                format!("--initial-cluster={}", peers.join(",")),
                format!("--initial-cluster-token={token}"),
                format!("--initial-advertise-peer-urls={}", member.peer_url),
                format!("--data-dir={}", data.display()),
            ];
            let args = ["snapshot".into(), "restore".into(), snapshot.into()];
            let args: Vec<OsString> = args.into_iter().chain(flags.map(OsString::from)).collect();
            run(restorer, args.iter().map(OsString::as_os_str)).await?;
        }
        for member in &mut self.members {
            member.launch()?;
        }
        for member in &mut self.members {
            member.wait_healthy().await?;
        }
        Ok(())
    }
}

/// What etcd says about a snapshot.
#[derive(Deserialize)]
struct Status {
    revision: i64,
}

/// Runs a program of etcd's on version 3 of its API.
async fn run<'a>(program: &Path, args: impl Iterator<Item = &'a OsStr>) -> Result<Vec<u8>, Error> {
    let name = program
        .file_name()
        .unwrap_or(program.as_os_str())
        .to_string_lossy();
    let failed = |source| Error::Start {
        name: name.clone().into_owned(),
        path: program.to_owned(),
        source,
    };
    let output = Command::new(program)
        .env("ETCDCTL_API", "3")
        .args(args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(failed)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(Error::Command {
        command: format!("{name} snapshot"),
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}
