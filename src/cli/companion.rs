//! Programs that belong together, found as cargo and kubectl find theirs.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The program of this name: beside this one, since both are built and installed together, or else on `PATH`.
pub fn find(program: &str) -> Option<PathBuf> {
    let this = env::current_exe().ok();
    let beside = this.as_deref().and_then(Path::parent).map(Path::to_owned);
    first_in(beside, program).or_else(|| find_on_path(program))
}

/// The file that `program` starts in a shell.
pub fn find_on_path(program: &str) -> Option<PathBuf> {
    first_in(env::split_paths(&env::var_os("PATH")?), program)
}

/// Whether `file` is a file that may be executed.
pub fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn first_in(directories: impl IntoIterator<Item = PathBuf>, program: &str) -> Option<PathBuf> {
    let mut files = directories.into_iter().map(|directory| directory.join(program));
    files.find(|file| is_executable(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_first_file_that_may_be_executed_is_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let folders: Vec<PathBuf> = ["missing", "data", "folder", "first", "second"]
            .map(|name| directory.path().join(name))
            .into();
        for folder in &folders[1..] {
            fs::create_dir(folder).unwrap();
        }
        fs::write(folders[1].join("tool"), "no program").unwrap();
        fs::create_dir(folders[2].join("tool")).unwrap();
        assert_eq!(first_in(folders.clone(), "tool"), None);
        for folder in &folders[3..] {
            let file = folder.join("tool");
            fs::write(&file, "#!/bin/sh").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o700)).unwrap();
        }
        assert_eq!(first_in(folders.clone(), "tool"), Some(folders[3].join("tool")));
    }
}
