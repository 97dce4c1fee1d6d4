//! Whether the etcd of a member was permitted a moment ago to start again, for a rotation of the authorities: then no voter is taken
//! out or moved, and none is made (INV-5). What members answer says nothing of that before the etcd has stopped.

use jiff::{SignedDuration, Timestamp};

use crate::etcd::MemberId;
use crate::proto::Rotation;
use crate::store::object::{message, time};

/// How long a permission holds changes up: much longer than an agent takes that has a session. A person may take days, and an agent
/// that is away longer finds its permission taken back while another voter is ill.
const HOLDS: SignedDuration = SignedDuration::from_secs(30);

/// The member whose etcd starts again about now, by what is recorded of a rotation, if it is another one than the `changed`,
/// which is removed or moved.
pub fn restarting(rotation: &[u8], changed: Option<MemberId>, now: Timestamp) -> Option<MemberId> {
    let rotation: Rotation = message("Rotation", rotation).ok()?;
    let restart = rotation.restart?;
    let since = now.duration_since(time::from_proto(restart.at.as_ref())?);
    let member = MemberId(restart.member_id);
    (since.abs() < HOLDS && changed != Some(member)).then_some(member)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::proto::EtcdRestart;

    /// INV-5.
    #[test]
    fn a_permission_to_start_again_holds_changes_up_but_neither_for_good_nor_those_of_that_very_member() {
        let at: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let restart = EtcdRestart {
            member_id: 7,
            at: Some(time::to_proto(at)),
            ..EtcdRestart::default()
        };
        let stored = Rotation {
            restart: Some(restart),
            ..Rotation::default()
        };
        let stored = stored.encode_to_vec();
        let seconds = SignedDuration::from_secs;
        assert_eq!(restarting(&stored, None, at), Some(MemberId(7)));
        assert_eq!(
            restarting(&stored, Some(MemberId(8)), at + seconds(29)),
            Some(MemberId(7))
        );
        assert_eq!(restarting(&stored, Some(MemberId(7)), at), None);
        assert_eq!(restarting(&stored, None, at + seconds(30)), None);
        assert_eq!(
            restarting(&stored, None, at - seconds(60)),
            None,
            "by a clock that is wrong"
        );
        assert_eq!(restarting(&Rotation::default().encode_to_vec(), None, at), None);
    }
}
