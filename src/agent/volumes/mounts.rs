//! What is mounted, from the text of `/proc/self/mountinfo`. Pure.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::paths::MOUNTS;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is mounted. Without links, as the kernel knows it.
    pub path: PathBuf,
    /// The device, as `major:minor`.
    pub device: String,
    /// The directory or file of the device that is mounted: `/`, or another one for a bind mount.
    pub root: PathBuf,
    /// The type of the file system.
    pub fs_type: String,
    /// Whether the mount is read-only, whatever the file system is.
    pub read_only: bool,
}

/// What is mounted at one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Nothing.
    Nothing,
    /// One mount, or the same one several times.
    Mounted,
    /// A mount that hides another one.
    Covered,
}

/// A line is not as the kernel writes it. What is mounted is then unknown: a table that cannot be read proves nothing (INV-12).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line of the table of mounts is malformed: {0:?}")]
pub struct Malformed(String);

/// Every mount that a process sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounts {
    /// By their paths, those at one path in the order of the table.
    mounts: Vec<Mount>,
    /// The places in `mounts` of those below the directory of a volume, wherever that is, by the uid of the volume.
    of_volumes: BTreeMap<OsString, Vec<usize>>,
}

impl Mounts {
    /// Reads the whole table.
    ///
    /// # Errors
    /// [`Malformed`], for one line that cannot be read.
    pub fn parse(text: &[u8]) -> Result<Self, Malformed> {
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let mounts = lines
            .map(|line| mount(line).ok_or_else(|| Malformed(String::from_utf8_lossy(line).into_owned())));
        let mut mounts = mounts.collect::<Result<Vec<_>, _>>()?;
        mounts.sort_by(|one, other| one.path.cmp(&other.path));
        let mut of_volumes: BTreeMap<OsString, Vec<usize>> = BTreeMap::new();
        for (place, mount) in mounts.iter().enumerate() {
            let names: Vec<_> = mount.path.iter().collect();
            for pair in names.windows(2).filter(|pair| pair[0] == MOUNTS) {
                of_volumes.entry(pair[1].to_owned()).or_default().push(place);
            }
        }
        Ok(Self { mounts, of_volumes })
    }

    /// What is mounted at exactly this path.
    pub fn at(&self, path: &Path) -> At {
        let mut here = self.below(path).take_while(|mount| mount.path == path);
        let Some(first) = here.next() else {
            return At::Nothing;
        };
        // A mount that was propagated from elsewhere may be listed twice.
        let same = |other: &Mount| (&other.device, &other.root) == (&first.device, &first.root);
        match here.all(same) {
            true => At::Mounted,
            false => At::Covered,
        }
    }

    /// What is mounted where a volume is staged: at the path that its plugin got, or below it, where some plugins put it (the path
    /// is theirs).
    pub fn within(&self, path: &Path) -> At {
        match self.at(path) {
            At::Nothing if self.below(path).next().is_some() => At::Mounted,
            at => at,
        }
    }

    /// The mounts at this path and below it.
    pub fn below(&self, path: &Path) -> impl Iterator<Item = &Mount> {
        // Paths compare by their names, so that those below one follow it.
        let first = self.mounts.partition_point(|mount| mount.path.as_path() < path);
        let rest = self.mounts[first..].iter();
        rest.take_while(move |mount| mount.path.starts_with(path))
    }

    /// The mounts of the volume of this directory ([`Paths::home`](super::paths::Paths::home)), also where the directory of all
    /// volumes was another one when they were made: the uid of a volume is its own.
    pub fn of_volume(&self, home: &Path) -> impl Iterator<Item = &Mount> {
        let places = home.file_name().and_then(|uid| self.of_volumes.get(uid));
        places.into_iter().flatten().map(|place| &self.mounts[*place])
    }
}

/// What the kernel appends to the path of a mount whose directory was removed in another mount namespace.
const DELETED: &[u8] = b"//deleted";

/// `36 35 98:0 /root /path rw,noatime shared:1 - ext4 /dev/sda rw`: any number of optional fields stand before the dash.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let _id = number(fields.next()?)?;
    let _parent = number(fields.next()?)?;
    let device = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let (major, minor) = device.split_once(':')?;
    number(major.as_bytes())?;
    number(minor.as_bytes())?;
    let root = path(fields.next()?)?;
    let at = fields.next()?;
    let at = path(at.strip_suffix(DELETED).unwrap_or(at))?;
    let mut options = fields.next()?.split(|byte| *byte == b',');
    let read_only = options.any(|option| option == b"ro");
    fields.find(|field| *field == b"-")?;
    let fs_type = String::from_utf8(fields.next()?.to_vec()).ok()?;
    // The source, which may be empty, and the options of the file system.
    fields.next()?;
    fields.next()?;
    Some(Mount {
        path: at,
        device,
        root,
        fs_type,
        read_only,
    })
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// The kernel writes a space, a tab, a newline and a backslash as a backslash and three octal digits.
fn path(field: &[u8]) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        if *first != b'\\' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let digits = std::str::from_utf8(after.get(..3)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 8).ok()?);
        rest = &after[3..];
    }
    (!bytes.is_empty()).then(|| PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 254:0 /data/v1 /var/q/v1 rw,relatime shared:1 master:7 - ext4 /dev/vda rw
41 27 254:0 /data/v2 /var/q/v2 ro,relatime - ext4 /dev/vda rw
42 27 0:50 / /var/q/with\\040a\\134space rw - tmpfs  rw
43 27 254:0 /data/v1 /var/q/v1 rw,relatime shared:1 - ext4 /dev/vda rw
44 41 0:51 / /var/q/v2 rw - tmpfs tmpfs rw
45 27 0:52 / /var/q/gone//deleted rw - tmpfs tmpfs rw
";

    fn table() -> Mounts {
        Mounts::parse(TABLE.as_bytes()).unwrap()
    }

    fn at(path: &str) -> At {
        table().at(Path::new(path))
    }

    #[test]
    fn a_path_has_nothing_or_a_mount_or_one_that_hides_another() {
        assert_eq!(at("/proc"), At::Mounted);
        assert_eq!(at("/var/q"), At::Nothing, "mounts below it are not at it");
        assert_eq!(at("/var/q/v1"), At::Mounted, "the same one twice");
        assert_eq!(at("/var/q/v2"), At::Covered);
        assert_eq!(
            at("/var/q/with a\\space"),
            At::Mounted,
            "escaped, and without a source"
        );
        assert_eq!(
            at("/var/q/gone"),
            At::Mounted,
            "its directory was removed elsewhere"
        );
    }

    #[test]
    fn mounts_below_a_path_are_those_of_whole_names() {
        let table = Mounts::parse(
            b"1 0 0:1 / /a/b rw - t s rw\n2 1 0:2 / /a/b/c rw - t s rw\n3 1 0:3 / /a/bc ro - t s rw\n",
        );
        let table = table.unwrap();
        let below = |path: &str| -> Vec<PathBuf> {
            table
                .below(Path::new(path))
                .map(|mount| mount.path.clone())
                .collect()
        };
        assert_eq!(below("/a/b"), [Path::new("/a/b"), Path::new("/a/b/c")]);
        assert_eq!(below("/a/bc"), [Path::new("/a/bc")]);
        assert!(table.below(Path::new("/a/bc")).all(|mount| mount.read_only));
        assert_eq!(table.within(Path::new("/a/b")), At::Mounted);
        assert_eq!(table.within(Path::new("/a")), At::Mounted);
        assert_eq!(table.within(Path::new("/a/b/c/d")), At::Nothing);
    }

    #[test]
    fn the_mounts_of_a_volume_are_found_wherever_its_directory_is() {
        let table = b"1 0 0:1 / /old/.mounts/u/p rw - t s rw\n2 1 0:2 / /new/.mounts/u/staging rw - t s rw\n\
            3 1 0:3 / /new/.mounts/u rw - t s rw\n4 1 0:3 / /new/.mounts/u2/p rw - t s rw\n\
            5 1 0:3 / /elsewhere/u/p rw - t s rw\n6 1 0:3 / /new/.mounts rw - t s rw\n";
        let table = Mounts::parse(table).unwrap();
        let of = |home: &str| -> Vec<&Path> {
            let found = table.of_volume(Path::new(home));
            found.map(|mount| mount.path.as_path()).collect()
        };
        let expected = ["/new/.mounts/u", "/new/.mounts/u/staging", "/old/.mounts/u/p"];
        assert_eq!(of("/new/.mounts/u"), expected.map(Path::new));
        assert_eq!(of("/other/.mounts/u2"), [Path::new("/new/.mounts/u2/p")]);
        assert_eq!(of("/new/.mounts/u3"), [] as [&Path; 0]);
    }

    #[test]
    fn the_parts_of_a_line_are_those_of_the_kernel() {
        let expected = Mount {
            path: "/var/q/v1".into(),
            device: "254:0".to_owned(),
            root: "/data/v1".into(),
            fs_type: "ext4".to_owned(),
            read_only: false,
        };
        let table = table();
        let found = table.below(Path::new("/var/q/v1")).next();
        assert_eq!(found, Some(&expected));
    }

    /// INV-12: half a table would say that less is mounted.
    #[test]
    fn a_table_with_a_line_that_cannot_be_read_says_nothing() {
        for line in [
            "27 1 254:0 / /",
            "27 1 254:0 / /x rw,relatime shared:1 ext4 /dev/vda rw",
            "x 1 254:0 / /x rw - ext4 /dev/vda rw",
            "27 1 254 / /x rw - ext4 /dev/vda rw",
            "27 1 254:0 / /x\\04 rw - ext4 /dev/vda rw",
            "27 1 254:0 / /x rw - ext4",
            "nonsense",
        ] {
            let text = format!("{TABLE}{line}\n");
            let malformed = Mounts::parse(text.as_bytes()).unwrap_err();
            assert!(malformed.to_string().contains("is malformed"), "{line}");
        }
        assert_eq!(Mounts::parse(b"").unwrap(), Mounts::default());
    }

    #[test]
    fn the_table_of_this_process_can_be_read() {
        let text = std::fs::read("/proc/self/mountinfo").unwrap();
        assert_eq!(Mounts::parse(&text).unwrap().at(Path::new("/proc")), At::Mounted);
    }
}
