//! Directories that lead to a volume: programs of every user pass through them.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Others pass through, and see nothing else there: they cannot list the directory, and each file of the agent is its owner's alone.
pub const MODE: u32 = 0o711;

/// The right of others to pass through.
const OTHERS_PASS: u32 = 0o001;

/// Makes a directory, and those above it that are missing, with [`MODE`] whatever the umask of the process is. A directory that
/// exists stays as it is.
pub fn make(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.mode(MODE);
    let made = match builder.create(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(path.parent().ok_or(error)?)?;
            builder.create(path)
        }
        made => made,
    };
    match made {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(MODE)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// The lowest directory on the way to this one, or this one itself, through which others do not pass.
pub fn closed(path: &Path) -> Option<PathBuf> {
    let is_closed = |directory: &&Path| {
        let found = fs::metadata(directory);
        found.is_ok_and(|found| found.mode() & OTHERS_PASS == 0)
    };
    path.ancestors().find(is_closed).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    fn home_of_its_owner_alone() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), Permissions::from_mode(0o700)).unwrap();
        home
    }

    #[test]
    fn a_directory_and_those_that_were_missing_above_it_let_others_through_and_existing_ones_stay() {
        let home = home_of_its_owner_alone();
        let path = home.path().join("a/b");
        make(&path).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (MODE, MODE));
        assert_eq!(mode(home.path()), 0o700);
        fs::set_permissions(&path, Permissions::from_mode(0o750)).unwrap();
        make(&path).unwrap();
        assert_eq!(mode(&path), 0o750);
        fs::write(path.join("file"), "").unwrap();
        make(&path.join("file")).unwrap_err();
        make(&path.join("file/below")).unwrap_err();
    }

    #[test]
    fn the_directory_that_lets_no_others_through_is_found_wherever_it_is() {
        let home = home_of_its_owner_alone();
        let path = home.path().join("a/b");
        make(&path).unwrap();
        assert_eq!(closed(&path).as_deref(), Some(home.path()));
        fs::set_permissions(home.path(), Permissions::from_mode(0o711)).unwrap();
        assert_ne!(closed(&path).as_deref(), Some(home.path()));
        fs::set_permissions(&path, Permissions::from_mode(0o770)).unwrap();
        assert_eq!(closed(&path), Some(path));
    }
}
