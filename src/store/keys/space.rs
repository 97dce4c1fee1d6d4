//! Where the objects of one kind lie: the builder, the range and the parser of their keys, from one definition each.

use super::{Id, Keys};
use crate::etcd::KeyRange;

/// Where the objects of a kind are stored: `/volumes/<name>`, `/tasks/<owner>/<name>`, `/nodes/<name>/release`.
#[derive(Clone, Copy, Debug)]
pub struct KeySpace {
    pub(super) folder: &'static str,
    pub(super) suffix: &'static str,
    /// Whether what stands between the two is a name or an id. Most kinds take any text, so that a value under a key that no
    /// object can have is shown as one that cannot be read.
    pub(super) takes: fn(&str) -> bool,
}

impl KeySpace {
    /// The key of an object.
    pub fn key(&self, keys: &Keys, id: &Id) -> Vec<u8> {
        keys.below(format_args!("{}{id}{}", self.folder, self.suffix))
    }

    /// The range of all objects.
    pub fn all(&self, keys: &Keys) -> KeyRange {
        KeyRange::prefix(keys.below(format_args!("{}", self.folder)))
    }

    /// The name in the key of an object, `OWNER/NAME` if the kind is owned; `None` for any other key.
    pub fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str> {
        let name = keys.parse_below(key, self.folder)?.strip_suffix(self.suffix)?;
        (self.takes)(name).then_some(name)
    }
}

/// `key_space!(VOLUMES, "/volumes/", "Volume", volume, volumes, parse_volume)` defines the keys `/volumes/<name>`;
/// `key_space!(TASKS, "/tasks/", "Task", task, tasks, parse_task, tasks_of)` those of objects that have an owner,
/// `/tasks/<owner>/<name>`.
macro_rules! key_space {
    ($space:ident, $folder:literal, $kind:literal, $one:ident, $all:ident, $parse:ident) => {
        key_space!(@shared $space, $folder, $kind, $all, $parse, |_| true);

        impl super::Keys {
            #[doc = concat!("`", $folder, "<name>`: a `", $kind, "`.")]
            pub fn $one(&self, name: &super::Name) -> Vec<u8> {
                self.below(format_args!(concat!($folder, "{}"), name))
            }
        }
    };
    ($space:ident, $folder:literal, $kind:literal, $one:ident, $all:ident, $parse:ident, $of:ident) => {
        key_space!(@shared $space, $folder, $kind, $all, $parse, |id| id.contains('/'));

        impl super::Keys {
            #[doc = concat!("`", $folder, "<owner>/<name>`: a `", $kind, "`.")]
            pub fn $one(&self, owner: &super::Name, name: &super::Name) -> Vec<u8> {
                self.below(format_args!(concat!($folder, "{}/{}"), owner, name))
            }

            #[doc = concat!("The range of every `", $kind, "` of one owner. The deletion of the owner proves it empty.")]
            pub fn $of(&self, owner: &super::Name) -> crate::etcd::KeyRange {
                crate::etcd::KeyRange::prefix(self.below(format_args!(concat!($folder, "{}/"), owner)))
            }
        }
    };
    (@shared $space:ident, $folder:literal, $kind:literal, $all:ident, $parse:ident, $takes:expr) => {
        impl super::KeySpace {
            #[doc = concat!("The keys of every `", $kind, "`.")]
            pub const $space: Self = Self { folder: $folder, suffix: "", takes: $takes };
        }

        impl super::Keys {
            #[doc = concat!("The range of every `", $kind, "`.")]
            pub fn $all(&self) -> crate::etcd::KeyRange {
                super::KeySpace::$space.all(self)
            }

            #[doc = concat!("The name, or `<owner>/<name>`, in a key of [`Keys::", stringify!($all), "`].")]
            pub fn $parse<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
                super::KeySpace::$space.name(self, key)
            }
        }
    };
}

pub(super) use key_space;
