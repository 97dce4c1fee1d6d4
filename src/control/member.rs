//! `JoinMember`: asks that the etcd of the calling node becomes a member, as `quorate join` does for a person. The leader carries it
//! out; a replica writes the request, and reads what became of it.

use jiff::Timestamp;
use prost::Message;
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tracing::{debug, info};

use super::Site;
use super::caller::Caller;
use super::certificates::MOST_WAITING;
use super::refusal;
use super::wakes::Awaited;
use super::write::{Attempts, Decision};
use crate::etcd::{MemberId, Revision};
use crate::proto::{EtcdSetting, Join, JoinMemberRequest, JoinMemberResponse};
use crate::roles::checks::check_peer_url;
use crate::roles::facts::{Facts, NotRead};
use crate::roles::join_request::{Asked, Progressed, Wanted, Why, progressed};
use crate::roles::owner::NodeRoles;
use crate::roles::settings::EtcdSettings;
use crate::store::object::member::{decode_join, is_answered};
use crate::store::{Name, Store};

/// More URLs of a kind than a member has.
const MOST_URLS: usize = 16;

/// The most bytes of a URL: a host has up to 253.
const MOST_URL: usize = 512;

/// Answers `JoinMember`: waits until the member is in etcd's list, or until `end`.
///
/// # Errors
/// The refusal.
pub async fn join(
    site: &Site,
    caller: Caller,
    request: JoinMemberRequest,
    end: Instant,
) -> Result<JoinMemberResponse, Status> {
    caller.require_manager()?;
    let request = checked(request)?;
    let (caller, id) = ask(site, caller, &request).await?;
    let waiting = site.wakes.wait_for(Awaited::Join(caller.name().clone()));
    let mut waits = None;
    loop {
        // Before the join is read, so that no change after that is missed.
        let changed = waiting.changed.notified();
        let (join, _) = stored(&site.store, caller.name()).await?;
        let why = match progressed(&join, &id) {
            Progressed::Overtaken => {
                let why = "another request to join has taken the place of this one";
                return Err(Status::aborted(why));
            }
            Progressed::Ended(why) => return Err(refusal::join_refused(&why.reason, &why.message)),
            // The node may be none that joins any more.
            Progressed::Listed(member) => {
                let caller = caller.again(&site.store).await?;
                caller.require_manager()?;
                return listed(site, caller.name(), &join, member).await;
            }
            Progressed::Waits(why) => why,
        };
        if waits.is_none() {
            let Ok(permit) = site.waits.try_acquire() else {
                let why = format!("{MOST_WAITING} calls wait at this moment; try again");
                return Err(refusal::exhausted(why));
            };
            waits = Some(permit);
            debug!("a call waits for the join of node {}", caller.name());
        }
        tokio::select! {
            () = changed => {}
            () = sleep_until(end) => return Ok(unfinished(&join, why)),
        }
    }
}

/// The request with its URLs as etcd has them.
fn checked(mut request: JoinMemberRequest) -> Result<JoinMemberRequest, Status> {
    let (peer, client) = (&mut request.peer_urls, &mut request.client_urls);
    if peer.is_empty() {
        return Err(refusal::invalid("peer_urls is empty"));
    }
    for (field, urls) in [("peer_urls", peer), ("client_urls", client)] {
        if urls.len() > MOST_URLS {
            return Err(refusal::invalid(format_args!(
                "{field} has more than {MOST_URLS} URLs"
            )));
        }
        for url in urls {
            url.truncate(url.trim_end_matches('/').len());
            if url.len() > MOST_URL {
                return Err(refusal::invalid(format_args!(
                    "{field} has a URL of more than {MOST_URL} bytes"
                )));
            }
            check_peer_url(url).map_err(|why| refusal::invalid(format_args!("{field}: {url:?} {why}")))?;
        }
    }
    Ok(request)
}

/// Writes the request, unless it is on record, and returns its id.
async fn ask(
    site: &Site,
    mut caller: Caller,
    request: &JoinMemberRequest,
) -> Result<(Caller, String), Status> {
    let Store { etcd, keys } = &site.store;
    let new_id = uuid::Uuid::new_v4().to_string();
    let mut attempts = Attempts::default();
    let mut is_counted = false;
    loop {
        caller.require_manager()?;
        // Before etcd's list: a join that has led to a voter, beside an older list with a learner, would be asked for again.
        let (before, read_at) = stored(&site.store, caller.name()).await?;
        let facts = Facts::without_health(&site.store).await.map_err(unread)?;
        let roles = NodeRoles::of(caller.node(), caller.revision());
        facts
            .membership
            .check_join(
                caller.name().as_str(),
                caller.uid(),
                Some(roles),
                false,
                &request.peer_urls,
            )
            .map_err(|refusal| refusal::join_refused(refusal.rule.as_str(), &refusal))?;
        let wanted = Wanted {
            node: caller.name().as_str(),
            uid: caller.uid(),
            peer_urls: &request.peer_urls,
            client_urls: &request.client_urls,
            no_dial: request.no_dial,
        };
        let decision = match wanted.ask(before, &facts.membership, &new_id, Timestamp::now()) {
            Asked::Already(id) => Decision::Nothing(id),
            Asked::New(join) => {
                if !is_counted {
                    site.count_write(caller.uid())?;
                    is_counted = true;
                }
                let key = keys.join(caller.name());
                let txn = caller.writes_as_manager(keys).when_unchanged(&key, read_at);
                Decision::Write(txn.put(&key, join.encode_to_vec()), new_id.clone())
            }
        };
        let is_new = matches!(decision, Decision::Write(..));
        if let Some(id) = attempts.carry_out(etcd, decision).await? {
            if is_new {
                let urls = request.peer_urls.join(", ");
                info!("node {} asks to join etcd at {urls}", caller.name());
            }
            return Ok((caller, id));
        }
        caller = caller.again(&site.store).await?;
    }
}

fn unread(not_read: NotRead) -> Status {
    match not_read {
        NotRead::MemberList(error) | NotRead::Records(error) => refusal::unavailable(&error),
    }
}

/// The join of a node, an empty one if there is none, and when it was last written.
async fn stored(store: &Store, name: &Name) -> Result<(Join, Revision), Status> {
    let read = store.etcd.get(&store.keys.join(name)).await;
    let (stored, _) = read.map_err(|error| refusal::unavailable(&error))?;
    let Some(stored) = stored else {
        return Ok((Join::default(), Revision::ABSENT));
    };
    let join = decode_join(&stored.value)
        .map_err(|_| refusal::unreadable(format_args!("the join of node {name}")))?;
    Ok((join, stored.mod_revision))
}

/// The answer for a member in etcd's list.
async fn listed(
    site: &Site,
    name: &Name,
    join: &Join,
    member: MemberId,
) -> Result<JoinMemberResponse, Status> {
    let etcd = &site.store.etcd;
    let read = etcd.list_members().await;
    let list = read.map_err(|error| refusal::unavailable(&error))?;
    let request = join.request.clone().unwrap_or_default();
    let settings = EtcdSettings::new(name, member, &list, &request.peer_urls, &request.client_urls);
    let settings = settings.ok_or_else(|| {
        Status::unavailable(format!("member {member} is in etcd's list no more; try again"))
    })?;
    let EtcdSettings {
        learner,
        started,
        variables,
    } = settings;
    let variables = variables.into_iter().map(|(name, value)| EtcdSetting {
        name: name.to_owned(),
        value,
    });
    Ok(JoinMemberResponse {
        progress: join.progress,
        cluster_id: etcd.cluster_id().map_or(0, |cluster| cluster.0),
        member_id: member.0,
        learner,
        started,
        settings: variables.collect(),
        ..JoinMemberResponse::default()
    })
}

/// The answer for a join that waits still.
fn unfinished(join: &Join, Why { reason, message }: Why) -> JoinMemberResponse {
    let mut answer = JoinMemberResponse {
        reason,
        message,
        ..JoinMemberResponse::default()
    };
    if is_answered(join) {
        answer.progress = join.progress;
    }
    answer
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::proto::JoinRequest;
    use crate::proto::join::Progress;

    fn request(peer: &[&str], client: &[&str]) -> JoinMemberRequest {
        let owned = |urls: &[&str]| urls.iter().map(ToString::to_string).collect();
        JoinMemberRequest {
            peer_urls: owned(peer),
            client_urls: owned(client),
            no_dial: false,
        }
    }

    #[test]
    fn urls_are_those_that_etcd_takes_and_not_too_many() {
        let taken = checked(request(&["https://10.0.0.1:2380/"], &["http://n1:2379"])).unwrap();
        assert_eq!(taken.peer_urls, ["https://10.0.0.1:2380"]);
        let long = format!("https://{}:2380", "a".repeat(600));
        let many = ["https://10.0.0.1:2380"; 17];
        for (refused, why) in [
            (request(&[], &[]), "peer_urls is empty"),
            (request(&["10.0.0.1:2380"], &[]), "peer_urls: \"10.0.0.1:2380\""),
            (request(&many[..1], &["http://n1"]), "client_urls: \"http://n1\""),
            (request(&many, &[]), "more than 16 URLs"),
            (request(&[&long], &[]), "more than 512 bytes"),
        ] {
            let status = checked(refused).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().contains(why), "{status}");
        }
    }

    #[test]
    fn a_join_that_the_leader_has_not_looked_at_says_nothing_of_an_earlier_one() {
        let join = |answers: &str| Join {
            request: Some(JoinRequest {
                id: "2".to_owned(),
                ..JoinRequest::default()
            }),
            answers: answers.to_owned(),
            progress: Progress::Voter.into(),
            ..Join::default()
        };
        let progress = |answers| unfinished(&join(answers), Why::default()).progress();
        assert_eq!(progress("1"), Progress::Unspecified);
        assert_eq!(progress("2"), Progress::Voter);
    }
}
