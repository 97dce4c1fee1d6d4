//! The members of etcd that are not asked for their status.

use std::collections::BTreeSet;

use prost::Message;

use crate::etcd::{KeyValue, MemberId, Stop};
use crate::proto::Member;
use crate::volumes::operation::Env;

/// The members whose removal is decided, or may be. A call for it may be under way: the status can end the member then.
pub(super) async fn leaving(env: &Env) -> Result<BTreeSet<MemberId>, Stop> {
    let keys = &env.store.keys;
    let (records, _) = env.store.etcd.list(&keys.members()).await?;
    // A record that cannot be read may hold the intent.
    let stays = |kv: &KeyValue| {
        let member = Member::decode(&*kv.value);
        member.is_ok_and(|member| member.removal.is_none())
    };
    let leaving = records.iter().filter(|kv| !stays(kv));
    Ok(leaving.filter_map(|kv| keys.parse_member(&kv.key)).collect())
}
