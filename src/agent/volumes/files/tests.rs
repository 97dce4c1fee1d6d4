use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::proto::NodePublication;

fn publication(volume: &str, publication_uid: &str) -> NodePublication {
    NodePublication {
        volume: volume.to_owned(),
        volume_uid: "u-1".to_owned(),
        publication_uid: publication_uid.to_owned(),
        ..NodePublication::default()
    }
}

/// The files in a directory that ends with the first value, and the paths of the publication `p-1` of the volume `data`.
fn world() -> (tempfile::TempDir, Files, Paths) {
    let directory = tempfile::tempdir().unwrap();
    let files = Files::open(&directory.path().join("volumes")).unwrap();
    let paths = files.layout().paths(&publication("data", "p-1")).unwrap();
    (directory, files, paths)
}

#[test]
fn a_record_claims_the_mounts_of_this_boot_alone() {
    let (_directory, mut files, paths) = world();
    assert!(!files.has_asked(&paths.record));
    files.prepare(&paths, "data", "p", true).unwrap();
    files.prepare(&paths, "data", "p", true).unwrap();
    assert!(files.has_asked(&paths.record) && paths.staging.is_dir() && !paths.target.exists());
    assert!(files.has_asked_to_stage(&paths));
    files.prepare(&paths, "data", "p", false).unwrap();
    assert!(files.has_asked_to_stage(&paths), "it was staged before");
    let later = files.layout().paths(&publication("data", "p-2")).unwrap();
    assert!(!files.has_asked(&later.record) && files.has_asked_to_stage(&later));
    files.boot = "another".to_owned();
    assert!(!files.has_asked(&paths.record), "the node was rebooted");
    assert!(!files.has_asked_to_stage(&later));
    files.prepare(&paths, "data", "p", true).unwrap();
    assert!(files.has_asked(&paths.record));
    fs::write(&paths.record, "{").unwrap();
    assert!(
        !files.has_asked(&paths.record),
        "a record that cannot be read claims nothing"
    );
}

#[test]
fn the_path_for_programs_leads_to_the_target_of_the_latest_publication() {
    let (_directory, files, paths) = world();
    assert_eq!(files.link(&paths), Link::Absent);
    files.make_link(&paths).unwrap();
    assert_eq!(files.link(&paths), Link::Ours);
    fs::create_dir_all(&paths.target).unwrap();
    assert_eq!(fs::canonicalize(&paths.link).unwrap(), paths.target);

    let later = files.layout().paths(&publication("data", "p-2")).unwrap();
    assert_eq!(files.link(&later), Link::Absent, "that of an earlier one");
    files.remove_link(&later).unwrap();
    assert_eq!(
        files.link(&paths),
        Link::Ours,
        "it is not the later one's to remove"
    );
    files.make_link(&later).unwrap();
    assert_eq!(files.link(&later), Link::Ours);
    files.remove_link(&later).unwrap();
    assert_eq!(files.link(&later), Link::Absent);
}

/// INV-12.
#[test]
fn what_the_agent_did_not_make_is_never_replaced_or_removed() {
    let (_directory, files, paths) = world();
    fs::create_dir(&paths.link).unwrap();
    assert_eq!(files.link(&paths), Link::Taken);
    files.make_link(&paths).unwrap_err();
    files.remove_link(&paths).unwrap();
    assert!(paths.link.is_dir());
    fs::remove_dir(&paths.link).unwrap();
    std::os::unix::fs::symlink("/elsewhere", &paths.link).unwrap();
    assert_eq!(files.link(&paths), Link::Taken);
    files.make_link(&paths).unwrap_err();
}

#[test]
fn what_is_in_a_directory_is_never_removed() {
    let (_directory, files, paths) = world();
    files.prepare(&paths, "data", "p", true).unwrap();
    fs::create_dir(&paths.target).unwrap();
    fs::write(paths.target.join("file"), "precious").unwrap();
    files.tidy(&paths);
    assert!(paths.target.join("file").exists() && !paths.staging.exists());
    fs::remove_file(paths.target.join("file")).unwrap();
    files.tidy(&paths);
    assert!(!paths.home.exists());
}

/// A process may be killed at any moment, and the view may then have the volume no more.
#[test]
fn nothing_is_left_of_a_process_that_was_killed_while_it_wrote_or_before_it_tidied() {
    let (_directory, files, paths) = world();
    let leave = || {
        files.prepare(&paths, "data", "p", true).unwrap();
        fs::create_dir(&paths.target).unwrap();
        fs::write(paths.home.join("p-2.unfinished"), "{").unwrap();
    };
    leave();
    files.tidy(&paths);
    assert!(!paths.home.exists());
    leave();
    std::os::unix::fs::symlink("nowhere", files.layout().mounts().join(".link")).unwrap();
    files.tidy_unused(|_| false, &Mounts::default());
    assert!(!paths.home.exists());
    files.make_link(&paths).unwrap();
}

/// Whatever the umask was of the process that made the directories.
#[test]
fn others_pass_through_the_directories_to_a_volume_and_read_no_file_there() {
    let (_directory, files, paths) = world();
    files.prepare(&paths, "data", "p", true).unwrap();
    let directory = files.layout().directory().to_owned();
    let passages = [directory.clone(), files.layout().mounts(), paths.home.clone()];
    for passage in &passages {
        fs::set_permissions(passage, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let files = Files::open(&directory).unwrap();
    files.prepare(&paths, "data", "p", true).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(passages.each_ref().map(|path| mode(path)), [0o711; 3]);
    assert_eq!(mode(&files.layout().plugins()), 0o700);
    assert_eq!(mode(&paths.record), 0o600);
}

#[test]
fn what_is_left_of_volumes_without_a_publication_is_removed_unless_something_is_mounted_or_kept_there() {
    let (_directory, files, paths) = world();
    let mounted = format!("1 0 0:1 / {} rw - t s rw\n", paths.target.display());
    let mounted = Mounts::parse(mounted.as_bytes()).unwrap();
    files.prepare(&paths, "data", "p", true).unwrap();
    files.tidy_unused(|_| false, &mounted);
    files.tidy_unused(|home| home == paths.home, &Mounts::default());
    assert!(files.has_asked(&paths.record), "mounted, or used");
    files.tidy_unused(|_| false, &Mounts::default());
    assert!(!paths.home.exists());
    files.prepare(&paths, "data", "p", true).unwrap();
    fs::write(paths.staging.join("file"), "precious").unwrap();
    files.tidy_unused(|_| false, &Mounts::default());
    assert!(paths.staging.join("file").exists());
}

#[test]
fn the_node_of_a_plugin_is_known_to_the_next_process() {
    let (_directory, files, _) = world();
    assert_eq!(files.known_node("a/../b").unwrap(), None);
    let node = CsiNode {
        plugin: "a/../b".to_owned(),
        node_id: "n1".to_owned(),
        topology: [("zone".to_owned(), "a".to_owned())].into(),
    };
    files.keep_node(&node).unwrap();
    assert_eq!(files.known_node("a/../b").unwrap(), Some(node.clone()));
    fs::write(files.of_plugin("a/../b"), "").unwrap();
    files.known_node("a/../b").unwrap_err();
    files.keep_node(&node).unwrap();
    assert_eq!(files.known_node("a/../b").unwrap(), Some(node));
}
