//! Releases and versions: their order, their stored form and their text.

use std::fmt;
use std::str::FromStr;

use crate::proto;

/// A release, ordered as semver orders it. Each part is from 0 to `i64::MAX`, as the status key stores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    major: i64,
    minor: i64,
    patch: i64,
}

/// Why a text is not a release, or a message not a version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The text is not `MAJOR.MINOR.PATCH`.
    #[error("\"{0}\" is not a release: expected MAJOR.MINOR.PATCH, for example 1.4.0")]
    Release(String),
    /// A part of the release is below zero.
    #[error("release {0}.{1}.{2} has a negative part")]
    Negative(i64, i64, i64),
    /// The message has no version.
    #[error("the version is missing")]
    NoVersion,
}

impl Release {
    /// A release from its three numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self {
            major: major as i64,
            minor: minor as i64,
            patch: patch as i64,
        }
    }

    /// Decodes a stored release; an unset one is 0.0.0.
    ///
    /// # Errors
    /// [`Malformed::Negative`] if a part is below zero.
    pub fn from_proto(stored: Option<&proto::version::Release>) -> Result<Self, Malformed> {
        let Some(&proto::version::Release { major, minor, patch }) = stored else {
            return Ok(Self::default());
        };
        if major < 0 || minor < 0 || patch < 0 {
            return Err(Malformed::Negative(major, minor, patch));
        }
        Ok(Self { major, minor, patch })
    }

    /// The stored form.
    pub fn to_proto(self) -> proto::version::Release {
        proto::version::Release {
            major: self.major,
            minor: self.minor,
            patch: self.patch,
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for Release {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let malformed = || Malformed::Release(text.to_owned());
        let parsed = semver::Version::parse(text.trim()).map_err(|_| malformed())?;
        if !parsed.pre.is_empty() || !parsed.build.is_empty() {
            return Err(malformed());
        }
        let part = |number: u64| i64::try_from(number).map_err(|_| malformed());
        Ok(Self {
            major: part(parsed.major)?,
            minor: part(parsed.minor)?,
            patch: part(parsed.patch)?,
        })
    }
}

/// A release, and the commit of a build relative to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// The release, which is all that the gate compares.
    pub release: Release,
    /// The commit; unset for a bundle that names only its release.
    pub git: Option<proto::version::GitInformation>,
}

impl Version {
    /// Decodes a stored version.
    ///
    /// # Errors
    /// [`Malformed`] if it is missing or its release is out of range.
    pub fn from_proto(stored: Option<&proto::Version>) -> Result<Self, Malformed> {
        let stored = stored.ok_or(Malformed::NoVersion)?;
        Ok(Self {
            release: Release::from_proto(stored.release.as_ref())?,
            git: stored.git_information.clone(),
        })
    }

    /// The stored form.
    pub fn to_proto(&self) -> proto::Version {
        proto::Version {
            release: Some(self.release.to_proto()),
            git_information: self.git.clone(),
        }
    }
}

impl From<Release> for Version {
    fn from(release: Release) -> Self {
        Self { release, git: None }
    }
}

impl fmt::Display for Version {
    /// Semver: `1.2.3`, or with git information `1.2.3-dev4.gabcdef12.dirty`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.release)?;
        let Some(git) = &self.git else { return Ok(()) };
        let mut parts = Vec::new();
        if git.commits_since_release > 0 {
            parts.push(format!("dev{}", git.commits_since_release));
        }
        // Eight digits are enough for a reader. A stored hash may hold any text, so it is cut by characters, not bytes.
        let short: String = git
            .commit_hash
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(8)
            .collect();
        if !short.is_empty() {
            parts.push(format!("g{short}"));
        }
        if git.build_tree_state() == proto::version::BuildTreeState::Dirty {
            parts.push("dirty".to_owned());
        }
        if parts.is_empty() {
            Ok(())
        } else {
            write!(f, "-{}", parts.join("."))
        }
    }
}

/// The version of this build: the crate's release, and the commit if the build knows it.
pub fn own_version() -> Version {
    let release = env!("CARGO_PKG_VERSION").parse().unwrap_or_default();
    let git = option_env!("QUORATE_GIT_COMMIT")
        .filter(|commit| !commit.is_empty())
        .map(|commit| proto::version::GitInformation {
            commit_hash: commit.to_owned(),
            commits_since_release: 0,
            build_tree_state: proto::version::BuildTreeState::Clean as i32,
        });
    Version { release, git }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_order_by_number_and_not_by_text() {
        let release = |text: &str| text.parse::<Release>().unwrap();
        assert!(release("0.10.0") > release("0.9.9"));
        assert!(release("2.0.0") > release("1.99.99"));
    }

    #[test]
    fn a_text_that_is_no_plain_release_is_refused_with_an_example() {
        for text in [
            "",
            "1",
            "1.2",
            "v1.2.3",
            "1.2.3-rc1",
            "1.2.3+x",
            "-1.0.0",
            "1.2.99999999999999999999",
        ] {
            let error = text.parse::<Release>().unwrap_err().to_string();
            assert!(error.contains("MAJOR.MINOR.PATCH"), "{text}: {error}");
        }
    }

    #[test]
    fn an_unset_release_is_zero_and_a_negative_one_malformed() {
        assert_eq!(Release::from_proto(None), Ok(Release::new(0, 0, 0)));
        let negative = proto::version::Release {
            major: 1,
            minor: -2,
            patch: 0,
        };
        assert_eq!(
            Release::from_proto(Some(&negative)),
            Err(Malformed::Negative(1, -2, 0))
        );
    }

    #[test]
    fn a_version_prints_as_semver() {
        let mut version = Version::from(Release::new(1, 2, 3));
        assert_eq!(version.to_string(), "1.2.3");
        version.git = Some(proto::version::GitInformation {
            commit_hash: "abcdef1234567890".to_owned(),
            commits_since_release: 4,
            build_tree_state: proto::version::BuildTreeState::Dirty as i32,
        });
        assert_eq!(version.to_string(), "1.2.3-dev4.gabcdef12.dirty");
        assert!(semver::Version::parse(&version.to_string()).is_ok());
    }

    #[test]
    fn the_own_version_is_the_crates() {
        assert_eq!(own_version().release.to_string(), env!("CARGO_PKG_VERSION"));
    }
}
