//! Small bundles of several releases, for tests of upgrades.

use std::fs;
use std::path::Path;

use super::Error;

/// Writes the bundle `name` of a release with these minimums into a directory: three ConfigMaps in the namespace `default` that
/// name the release. One is the same object in all releases, one is immutable and so replaced by each release, one is in this
/// release alone.
///
/// # Errors
/// The files cannot be written.
pub fn write(
    directory: &Path,
    name: &str,
    release: &str,
    min_reconciler: &str,
    min_apiserver: &str,
) -> Result<(), Error> {
    fs::create_dir_all(directory).map_err(Error::write(directory))?;
    let description = format!(
        "name: {name}\nrelease: {release}\nminReconcilerRelease: {min_reconciler}\n\
         minApiserverRelease: {min_apiserver}\n"
    );
    let only = format!("only-{}", release.replace('.', "-"));
    let objects: Vec<String> = [("changes", false), ("recreated", true), (&only, false)]
        .iter()
        .map(|(object, immutable)| {
            format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}-{object}, namespace: default}}\n\
                 immutable: {immutable}\ndata: {{release: \"{release}\"}}\n"
            )
        })
        .collect();
    for (file, text) in [
        ("bundle.yaml", description),
        ("objects.yaml", objects.join("---\n")),
    ] {
        let file = directory.join(file);
        fs::write(&file, text).map_err(Error::write(&file))?;
    }
    Ok(())
}
