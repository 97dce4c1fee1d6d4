//! `quorate replace`: a node whose member has lost its data joins again as a new member, and stays a manager.

use clap::Args;
use jiff::Timestamp;
use prost::Message;

use super::join::{JoinOptions, Requested, follow, stored_join, url};
use super::refused;
use super::request::read_node;
use crate::cli::commit::{Proposal, settle_from};
use crate::cli::confirm;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::output::note;
use crate::etcd::members::same_urls;
use crate::etcd::{MemberId, Txn};
use crate::proto::{Join, JoinRequest};
use crate::roles::checks::{Refusal, check_manager};
use crate::roles::facts::Facts;
use crate::roles::membership::Member;
use crate::roles::owner::NodeRoles;
use crate::roles::reason::Reason;
use crate::store::object::{Object, member, time};
use crate::store::{Name, Store};

/// Arguments of `quorate replace`.
#[derive(Args, Debug)]
#[command(after_help = "\
For a member whose data directory is lost or damaged. The leader removes the member from etcd, adds the node's etcd as a new \
learner, and promotes it to a voter once it has caught up. The node stays a manager. As soon as etcd can be started, the \
command prints the settings for that; the data directory must be empty.

The same command again goes on where the replacement is, also if the leader or the command ended in between; with another \
--peer-url, or with --force, that is what holds from then on. A member that came by a replacement is itself replaced only if \
--member names it.

A replacement is refused for a member that answers, also when the leader comes to it (rule MemberHealthy; --force replaces \
it all the same), for the only voter \
(LastVoter), if it would leave etcd without a healthy quorum (QuorumRisk), and for a node without a member (NotAMember). \
Without a quorum no member can be replaced: see quorate recover plan.

Examples:
  quorate replace n2 -o env > etcd.env.new && mv etcd.env.new /etc/etcd.env
  quorate replace n2 --yes --wait --timeout 10m    # until the new member votes
  quorate join n2 --peer-url https://10.0.0.2:2380 -o env \\
    > etcd.env.new && mv etcd.env.new /etc/etcd.env    # then")]
pub struct ReplaceArgs {
    /// The node, a manager
    #[arg(value_name = "NODE")]
    node: Name,

    /// URL at which the other members reach its etcd [default: that of the lost member]
    #[arg(long = "peer-url", value_name = "URL", value_delimiter = ',', value_parser = url)]
    peer_urls: Vec<String>,

    /// The member that is lost, by its id [default: the node's member, unless it came by a replacement]
    #[arg(long, value_name = "ID", value_parser = member_id)]
    member: Option<MemberId>,

    /// Replace a member that answers
    #[arg(long)]
    force: bool,

    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,

    #[command(flatten)]
    options: JoinOptions,
}

fn member_id(text: &str) -> Result<MemberId, String> {
    let id = u64::from_str_radix(text, 16);
    id.map(MemberId)
        .map_err(|_| "expected hexadecimal digits, as quorate get members shows them".to_owned())
}

/// Runs the command.
///
/// # Errors
/// 3 for a node that does not exist, 4 if the command or the leader refuses it, 5 if another join of this node is requested
/// meanwhile, 2 if the time is over, 64 if standard input is not a terminal and `--yes` is not given.
pub async fn run(args: ReplaceArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    confirm::require(args.yes, "replace")?;
    let store = connect(etcd).await?;
    let agreed = propose(&store, &args).await?;
    match agreed.txn {
        Some(_) if args.yes => {}
        Some(_) => confirm::ask(&[&agreed.statement], "nothing was changed")?,
        None => note(&agreed.statement),
    }
    let statement = agreed.statement.clone();
    let again = async || propose(&store, &args).await?.still_means(&statement);
    let requested = settle_from(&store, "requested", agreed.into(), again).await?;
    follow(&store, &args.node, &requested, &args.options).await
}

/// Checks the replacement, and makes the request.
async fn propose(store: &Store, args: &ReplaceArgs) -> Result<Proposal<Requested>, Failure> {
    let name = &args.node;
    let found = read_node(store, name).await?;
    let uid = found.object.uid();
    // Before the members: a join that ends meanwhile is seen by the compare.
    let (before, read_at) = stored_join(store, name).await?;
    let facts = Facts::with_health(store).await?;
    let seen = Seen {
        args,
        facts: &facts,
        own: facts.membership.member_of_node(name.as_str(), uid),
        is_under_way: !member::is_ended(&before),
        earlier: before
            .request
            .clone()
            .filter(|earlier| earlier.replaces != 0 && earlier.node_uid == uid),
    };
    if let Some(going_on) = seen.going_on() {
        return Ok(going_on);
    }
    let request = seen.request(uid);
    check(&seen, found.roles(), &request).map_err(|refusal| refused(&refusal))?;
    let outcome = Requested {
        id: request.id.clone(),
        peer_urls: request.peer_urls.clone(),
        client_urls: request.client_urls.clone(),
        replaces: request.replaces,
    };
    let removed = store.keys.removed(uid);
    // The leader's part stays: it says what became of an add that is under way.
    let join = Join {
        request: Some(request),
        ..before.clone()
    };
    let key = store.keys.join(name);
    let txn = Txn::new()
        .when_unchanged(&found.key, found.revision)
        .when_unchanged(&key, read_at)
        .when_absent(&removed)
        .put(&key, join.encode_to_vec());
    Ok(Proposal {
        statement: statement(name, seen.lost()),
        outcome,
        txn: Some(facts.compare(txn, store, name)),
    })
}

/// What a replacement is decided from.
struct Seen<'a> {
    args: &'a ReplaceArgs,
    facts: &'a Facts,
    /// The node's member in etcd's list.
    own: Option<&'a Member>,
    /// The replacement that was requested last for this node.
    earlier: Option<JoinRequest>,
    /// Whether the last join of the node has not ended.
    is_under_way: bool,
}

impl<'a> Seen<'a> {
    /// The member that has come in the place of a lost one.
    fn came(&self) -> Option<&'a Member> {
        let earlier = self.earlier.as_ref()?;
        self.own.filter(|own| own.id.0 != earlier.replaces)
    }

    /// The member that is removed first, if it is listed. One that has come may be lost as well, before or after it votes: then
    /// it is named.
    fn lost(&self) -> Option<&'a Member> {
        let is_named = |own: &&Member| self.args.member == Some(own.id);
        self.own.filter(|own| self.came().is_none() || is_named(own))
    }

    /// What is asked for already; `None` if a request is written.
    fn going_on(&self) -> Option<Proposal<Requested>> {
        let (args, earlier, came) = (self.args, self.earlier.as_ref()?, self.came());
        let names_another = args.member.is_some_and(|member| member.0 != earlier.replaces);
        let moves = !args.peer_urls.is_empty() && !same_urls(&args.peer_urls, &earlier.peer_urls);
        let forces = args.force && !earlier.forced && came.is_none();
        let differs = self.is_under_way && (moves || forces);
        if names_another || differs || (came.is_none() && !self.is_under_way) {
            return None;
        }
        let (name, replaces) = (&args.node, MemberId(earlier.replaces));
        let statement = match came {
            Some(Member { id, .. }) => format!(
                "member {replaces} of node {name} is replaced by {id}; if that one is lost as well, name it: --member {id}"
            ),
            None => format!("node/{name} is being replaced already"),
        };
        let outcome = Requested {
            id: earlier.id.clone(),
            peer_urls: earlier.peer_urls.clone(),
            client_urls: self.client_urls(earlier.replaces),
            replaces: earlier.replaces,
        };
        Some(Proposal {
            statement,
            outcome,
            txn: None,
        })
    }

    fn request(&self, uid: &str) -> JoinRequest {
        let args = self.args;
        let lost = self.lost().map(|lost| JoinRequest {
            replaces: lost.id.0,
            peer_urls: lost.peer_urls().to_vec(),
            voters: u32::try_from(self.facts.membership.voters().count()).unwrap_or(u32::MAX),
            ..JoinRequest::default()
        });
        // Without one it was removed, and could not join again.
        let known = lost.or_else(|| self.earlier.clone()).unwrap_or_default();
        let is_same = |earlier: &JoinRequest| self.is_under_way && earlier.replaces == known.replaces;
        let was_forced = self
            .earlier
            .as_ref()
            .is_some_and(|earlier| is_same(earlier) && earlier.forced);
        JoinRequest {
            id: uuid::Uuid::new_v4().to_string(),
            node_uid: uid.to_owned(),
            peer_urls: match args.peer_urls.is_empty() {
                true => known.peer_urls,
                false => args.peer_urls.clone(),
            },
            requested_at: Some(time::to_proto(Timestamp::now())),
            no_dial: args.options.no_dial,
            replaces: known.replaces,
            forced: args.force || was_forced,
            voters: known.voters,
            client_urls: self.client_urls(known.replaces),
        }
    }

    /// The client URLs for the settings: those given, else those of the lost member, as etcd lists them or as they were when
    /// its replacement was requested.
    fn client_urls(&self, lost: u64) -> Vec<String> {
        let given = &self.args.options.client_urls;
        let listed = self.facts.membership.member(MemberId(lost));
        let earlier = self.earlier.as_ref().filter(|earlier| earlier.replaces == lost);
        match listed.and_then(|lost| lost.listed.as_ref()) {
            _ if !given.is_empty() => given.clone(),
            Some(listed) => listed.client_urls.clone(),
            None => earlier.map_or_else(Vec::new, |earlier| earlier.client_urls.clone()),
        }
    }
}

fn check(seen: &Seen<'_>, roles: NodeRoles, request: &JoinRequest) -> Result<(), Refusal> {
    let (args, membership) = (seen.args, &seen.facts.membership);
    let name = args.node.as_str();
    check_manager(name, Some(roles))?;
    let is_other = args.member.is_some_and(|named| named.0 != request.replaces);
    match (args.member, seen.own) {
        (Some(named), Some(own)) if is_other => {
            let message = format_args!("member {named} is not that of node {name}, which is {}", own.id);
            return Err(Refusal::new(Reason::NotAMember, message));
        }
        _ if is_other || request.replaces == 0 => return Err(Refusal::not_a_member(name)),
        _ => {}
    }
    membership.check_join(name, &request.node_uid, Some(roles), false, &request.peer_urls)?;
    let lost = seen.lost();
    lost.map_or(Ok(()), |lost| membership.check_replacement(lost, request.forced))
}

fn statement(name: &Name, lost: Option<&Member>) -> String {
    let removed = lost.map_or_else(
        || "its member was removed from etcd".to_owned(),
        |lost| format!("its member {} is removed from etcd for good", lost.id),
    );
    format!(
        "node/{name}: {removed}, and the node joins again as a new member with an empty data directory; it stays a manager"
    )
}
