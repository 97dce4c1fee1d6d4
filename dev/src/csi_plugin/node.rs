//! Volumes on the plugin's own node: bind mounts where it may mount, and links elsewhere.
//!
//! A staged volume is mounted at its staging path, a device below that, and a published one at its target from there, so that each
//! is really used through what came before it. With links, the target is a link to the data of the volume, and staging leaves a file.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use quorate::agent::volumes::mounts::{At, Mounts};

/// What a staged volume has at its staging path where nothing is mounted: this file.
const STAGED: &str = ".staged";

/// Where a device is mounted below its staging path, which is a directory.
const DEVICE: &str = "device";

/// Puts volumes at paths of this machine.
#[derive(Clone, Copy, Debug)]
pub(super) enum Node {
    /// By bind mounts, which need root.
    Mounts,
    /// By links, which everybody may make.
    Links,
}

/// Where a volume of the backend is, and what it is.
pub(super) struct Data {
    pub path: PathBuf,
    pub block: bool,
}

impl Node {
    /// Stages a volume, if it is not staged.
    pub fn stage(self, data: &Data, staging: &Path) -> io::Result<()> {
        match self {
            Self::Mounts if data.block => {
                let device = staging.join(DEVICE);
                make_file(&device)?;
                bind(&data.path, &device, false)
            }
            Self::Mounts => bind(&data.path, staging, false),
            Self::Links => File::create(staging.join(STAGED)).map(drop),
        }
    }

    /// Whether a volume is staged.
    pub fn is_staged(self, data: &Data, staging: &Path) -> io::Result<bool> {
        match self {
            Self::Mounts if data.block => is_mounted(&staging.join(DEVICE)),
            Self::Mounts => is_mounted(staging),
            Self::Links => Ok(staging.join(STAGED).exists()),
        }
    }

    /// Undoes [`stage`](Self::stage).
    pub fn unstage(self, staging: &Path) -> io::Result<()> {
        match self {
            Self::Mounts => {
                unmount(staging)?;
                let device = staging.join(DEVICE);
                unmount(&device)?;
                ignore_missing(fs::remove_file(device))
            }
            Self::Links => ignore_missing(fs::remove_file(staging.join(STAGED))),
        }
    }

    /// Publishes a volume at a path whose parent exists. `staging` is where it is staged, if it is.
    pub fn publish(
        self,
        data: &Data,
        staging: Option<&Path>,
        target: &Path,
        read_only: bool,
    ) -> io::Result<()> {
        let from = match staging {
            Some(staging) if data.block => &staging.join(DEVICE),
            Some(staging) => staging,
            None => &data.path,
        };
        match self {
            Self::Mounts => {
                let made = match data.block {
                    true => make_file(target),
                    false => fs::create_dir(target),
                };
                match made {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    made => made?,
                }
                bind(from, target, read_only)
            }
            Self::Links => {
                ignore_missing(fs::remove_file(target))?;
                symlink(&data.path, target)
            }
        }
    }

    /// Undoes [`publish`](Self::publish).
    pub fn unpublish(self, target: &Path) -> io::Result<()> {
        if matches!(self, Self::Mounts) {
            unmount(target)?;
        }
        match fs::symlink_metadata(target) {
            Ok(found) if found.is_dir() => fs::remove_dir(target),
            Ok(_) => fs::remove_file(target),
            Err(error) => ignore_missing(Err(error)),
        }
    }
}

/// Makes an empty file, unless there is one.
fn make_file(path: &Path) -> io::Result<()> {
    File::options().create(true).append(true).open(path).map(drop)
}

/// Mounts what is at one path at another, unless something is mounted there: as careless plugins do, it then takes that for its own.
fn bind(from: &Path, to: &Path, read_only: bool) -> io::Result<()> {
    if is_mounted(to)? {
        return Ok(());
    }
    run(Command::new("mount").arg("--bind").arg(from).arg(to))?;
    if read_only {
        // A bind mount takes its options in a second step.
        run(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(to))?;
    }
    Ok(())
}

fn unmount(path: &Path) -> io::Result<()> {
    match is_mounted(path)? {
        true => run(Command::new("umount").arg(path)),
        false => Ok(()),
    }
}

fn is_mounted(path: &Path) -> io::Result<bool> {
    let table = fs::read("/proc/self/mountinfo")?;
    let mounts = Mounts::parse(&table).map_err(io::Error::other)?;
    Ok(mounts.at(path) != At::Nothing)
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )),
    }
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_at_its_path_by_a_link_from_publication_to_unpublication() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("data")).unwrap();
        fs::create_dir(at("staging")).unwrap();
        let data = Data {
            path: at("data"),
            block: false,
        };
        let node = Node::Links;
        assert!(!node.is_staged(&data, &at("staging")).unwrap());
        for _ in 0..2 {
            node.stage(&data, &at("staging")).unwrap();
            node.publish(&data, Some(&at("staging")), &at("target"), false)
                .unwrap();
        }
        assert!(node.is_staged(&data, &at("staging")).unwrap());
        fs::write(at("target").join("file"), "text").unwrap();
        assert_eq!(fs::read_to_string(at("data").join("file")).unwrap(), "text");
        for _ in 0..2 {
            node.unpublish(&at("target")).unwrap();
            node.unstage(&at("staging")).unwrap();
        }
        assert!(!at("target").exists() && at("data").join("file").exists());
        assert!(!node.is_staged(&data, &at("staging")).unwrap());
    }
}
