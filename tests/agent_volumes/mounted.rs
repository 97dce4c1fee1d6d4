//! What is mounted on this machine, where the tests of volumes on a node look, and mounts that hang.
//!
//! Where this process may mount, the plugin makes real bind mounts below the test's own directory, and whatever is left there is
//! unmounted at the end. Elsewhere its targets are links: then the tests cover calls, paths, files and confirmations, and say so.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use quorate::agent::volumes::mounts::{At, Mounts};
use tokio::time::timeout;

/// How long a look at a mount lasts that waits. Another one takes a millisecond.
const WAITS: Duration = Duration::from_millis(500);

/// The end of a FUSE for its daemon.
const FUSE: &str = "/dev/fuse";

/// Unmounts what is left below a directory.
pub struct Unmounted(PathBuf);

impl Unmounted {
    /// Whatever is below this directory when the value is dropped. The directory exists.
    pub fn below(directory: &Path) -> Self {
        // The table of mounts has no links.
        Self(fs::canonicalize(directory).unwrap())
    }
}

impl Drop for Unmounted {
    fn drop(&mut self) {
        let left: Vec<PathBuf> = mounts().below(&self.0).map(|mount| mount.path.clone()).collect();
        for path in left.iter().rev() {
            // Lazily: a program of the test may still be in it.
            let _ = Command::new("umount").arg("-l").arg(path).status();
        }
    }
}

fn mounts() -> Mounts {
    Mounts::parse(&fs::read("/proc/self/mountinfo").unwrap()).unwrap()
}

/// Whether something is mounted there.
pub fn is_mounted(path: &Path) -> bool {
    mounts().at(path) != At::Nothing
}

/// Whether a mount there is read-only.
pub fn is_read_only(path: &Path) -> bool {
    mounts()
        .below(path)
        .any(|mount| mount.path == path && mount.read_only)
}

/// The mounts at this path and below it.
pub fn mounted_below(path: &Path) -> Vec<PathBuf> {
    mounts().below(path).map(|mount| mount.path.clone()).collect()
}

/// The lines of the kernel's table about these mounts. A mount that was made again has another number.
pub fn mount_lines(path: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let path = path.to_str().unwrap();
    let about = table.lines().filter(|line| line.contains(path));
    about.map(str::to_owned).collect()
}

/// Mounts one directory at another.
pub fn mount(from: &Path, to: &Path) {
    assert!(
        Command::new("mount")
            .arg("--bind")
            .args([from, to])
            .status()
            .unwrap()
            .success()
    );
}

/// Unmounts what is there, also where it is in use.
pub fn unmount(path: &Path) {
    assert!(
        Command::new("umount")
            .arg("-l")
            .arg(path)
            .status()
            .unwrap()
            .success()
    );
}

/// Whether this process may mount. Says once which parts of the tests links cover where it may not.
pub fn can_mount() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let tried = Command::new("mount").arg("--bind").args([directory.path(); 2]).output();
        let can = tried.is_ok_and(|output| output.status.success());
        if can {
            unmount(directory.path());
        } else {
            eprintln!(
                "no mounts here (root is missing): the plugin makes links. Calls, paths, files and confirmations are covered; \
                 that the kernel refuses writes, and that a volume in use stays mounted, is not"
            );
        }
        can
    })
}

/// A mount whose server never answers, as that of a network file system that is gone: a FUSE without a daemon. Whatever touches it
/// waits in the kernel until this is dropped, or until it is killed.
pub struct Hung {
    /// The daemon's end. The kernel gives up for all that wait once it is closed, also by the end of this process.
    device: Option<File>,
    path: PathBuf,
}

impl Hung {
    /// Mounts one at a directory, and checks that it hangs.
    pub async fn at(path: &Path) -> Self {
        let device = File::options().read(true).write(true).open(FUSE).unwrap();
        // As stdin: no other process that this one starts meanwhile gets it.
        let stdin = Stdio::from(device.try_clone().unwrap());
        let mounted = Command::new("mount")
            .args(["--internal-only", "-t", "fuse", "-o"])
            .args(["fd=0,rootmode=40000,user_id=0,group_id=0", "hung"])
            .arg(path)
            .stdin(stdin)
            .status();
        assert!(mounted.unwrap().success());
        let hung = Self {
            device: Some(device),
            path: path.to_owned(),
        };
        let mut looks = tokio::process::Command::new("stat");
        let mut looks = looks
            .arg(path)
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let ended = timeout(WAITS, looks.wait()).await;
        assert!(ended.is_err(), "a look at it does not wait: {ended:?}");
        hung
    }
}

/// Whether a mount can hang here. Says so where it cannot.
pub fn can_hang() -> bool {
    let can = can_mount() && File::options().read(true).write(true).open(FUSE).is_ok();
    if !can {
        eprintln!("no mount hangs here: that takes root and {FUSE}");
    }
    can
}

impl Drop for Hung {
    fn drop(&mut self) {
        // Before it is unmounted: that may look at it.
        self.device = None;
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
