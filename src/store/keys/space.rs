//! Where the objects of one kind lie: the builder, the range and the parser of their keys, from one definition each.

/// `key_space!("/volumes/", "Volume", volume, volumes, parse_volume)` defines the keys `/volumes/<name>`;
/// `key_space!("/tasks/", "Task", task, tasks, parse_task, tasks_of)` those of objects that have an owner,
/// `/tasks/<owner>/<name>`.
macro_rules! key_space {
    ($folder:literal, $kind:literal, $one:ident, $all:ident, $parse:ident) => {
        impl $crate::store::keys::Keys {
            #[doc = concat!("`", $folder, "<name>`: a `", $kind, "`.")]
            pub fn $one(&self, name: &$crate::store::keys::Name) -> Vec<u8> {
                self.below(format_args!(concat!($folder, "{}"), name))
            }

            #[doc = concat!("The range of every `", $kind, "`.")]
            pub fn $all(&self) -> $crate::etcd::KeyRange {
                $crate::etcd::KeyRange::prefix(self.below(format_args!($folder)))
            }

            #[doc = concat!("The name in a key of [`Keys::", stringify!($all), "`].")]
            pub fn $parse<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
                self.parse_below(key, $folder)
            }
        }
    };
    ($folder:literal, $kind:literal, $one:ident, $all:ident, $parse:ident, $of:ident) => {
        impl $crate::store::keys::Keys {
            #[doc = concat!("`", $folder, "<owner>/<name>`: a `", $kind, "`.")]
            pub fn $one(&self, owner: &$crate::store::keys::Name, name: &$crate::store::keys::Name) -> Vec<u8> {
                self.below(format_args!(concat!($folder, "{}/{}"), owner, name))
            }

            #[doc = concat!("The range of every `", $kind, "`.")]
            pub fn $all(&self) -> $crate::etcd::KeyRange {
                $crate::etcd::KeyRange::prefix(self.below(format_args!($folder)))
            }

            #[doc = concat!("The range of every `", $kind, "` of one owner. The deletion of the owner proves it empty.")]
            pub fn $of(&self, owner: &$crate::store::keys::Name) -> $crate::etcd::KeyRange {
                $crate::etcd::KeyRange::prefix(self.below(format_args!(concat!($folder, "{}/"), owner)))
            }

            #[doc = concat!("`<owner>/<name>` in a key of [`Keys::", stringify!($all), "`].")]
            pub fn $parse<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
                self.parse_below(key, $folder).filter(|id| id.contains('/'))
            }
        }
    };
}

pub(super) use key_space;
