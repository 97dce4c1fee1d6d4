//! The programs of this workspace, for tests and benchmarks.
//!
//! Cargo passes a test the programs of its own package (`CARGO_BIN_EXE_…`); those of other packages may be stale. So the
//! first call here has cargo build both programs with the profile of the calling executable, which takes a fraction of a
//! second if they are fresh.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;

use super::Error;

/// The program files of a build.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The controller and its commands.
    pub quorate: PathBuf,
    /// The cluster on one machine, and the CSI plugin.
    pub quorate_dev: PathBuf,
}

static BUILT: Mutex<Option<Programs>> = Mutex::new(None);

/// The folder of the workspace.
pub fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

/// The programs, built from the present sources, once a process.
///
/// # Errors
/// [`Error::Build`] if the calling executable is not in a target directory of cargo, or if cargo fails. Cargo prints the
/// reason to stderr.
pub fn programs() -> Result<Programs, Error> {
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(programs) = &*built {
        return Ok(programs.clone());
    }
    let this = env::current_exe()
        .map_err(|error| failed(format!("cannot find the file of this program: {error}")))?;
    let programs = build(&this)?;
    Ok(built.insert(programs).clone())
}

/// Cargo in the folder of the workspace, without the variables by which it describes the package of a test to the test. Build
/// scripts that read them, such as ring's, would run again, and whatever depends on theirs would be built again, each time
/// that a test and a person call cargo in turn.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo.current_dir(root()).stdin(Stdio::null());
    cargo
}

/// Builds with the profile and the target directory of `executable`, which is `<target directory>/<profile>/deps/<file>`.
fn build(executable: &Path) -> Result<Programs, Error> {
    let mut folders = executable.ancestors().skip(1);
    let (Some(deps), Some(profile), Some(target)) = (folders.next(), folders.next(), folders.next()) else {
        return Err(outside(executable));
    };
    if deps.file_name() != Some(OsStr::new("deps")) {
        return Err(outside(executable));
    }
    let profile = match profile.file_name() {
        Some(folder) if folder == "debug" => OsStr::new("dev"),
        Some(folder) => folder,
        None => return Err(outside(executable)),
    };
    let output = cargo()
        .args(["build", "--locked", "--workspace", "--bins", "--quiet"])
        .arg("--message-format=json-render-diagnostics")
        .arg("--profile")
        .arg(profile)
        .arg("--target-dir")
        .arg(target)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| failed(format!("cannot start cargo: {error}")))?;
    if !output.status.success() {
        return Err(failed(format!("cargo build: {}", output.status)));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let program = |name| {
        let found = executable_of(name, &said);
        found.ok_or_else(|| failed(format!("cargo build names no program {name}")))
    };
    Ok(Programs {
        quorate: program("quorate")?,
        quorate_dev: program("quorate-dev")?,
    })
}

/// Cargo's message about an artifact that it has built or found fresh.
#[derive(Deserialize)]
struct Artifact {
    target: Target,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// The file of this program according to cargo's messages, a JSON document a line. Skips other messages.
fn executable_of(program: &str, messages: &str) -> Option<PathBuf> {
    let artifacts = messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    artifacts
        .filter(|artifact: &Artifact| artifact.target.name == program)
        .find_map(|artifact| artifact.executable)
}

fn outside(executable: &Path) -> Error {
    failed(format!(
        "{} is not in a target directory of cargo",
        executable.display()
    ))
}

fn failed(reason: String) -> Error {
    Error::Build { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"quorate","kind":["lib"]},"executable":null}
{"reason":"build-script-executed","package_id":"a"}
{"reason":"compiler-artifact","target":{"name":"quorate","kind":["bin"]},"executable":"/target/debug/quorate"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(
            executable_of("quorate", messages),
            Some("/target/debug/quorate".into())
        );
        assert_eq!(executable_of("quorate-dev", messages), None);
    }

    #[test]
    fn an_executable_elsewhere_has_no_build_to_follow() {
        let error = build(Path::new("/usr/bin/integration")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot build the programs of this workspace: /usr/bin/integration is not in a target directory of cargo"
        );
    }
}
