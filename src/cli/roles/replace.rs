//! `quorate replace`: a node whose member has lost its data joins again as a new member, and stays a manager.

use clap::Args;
use jiff::Timestamp;
use prost::Message;

use super::facts::Facts;
use super::join::{JoinOptions, Requested, follow, stored_join, url};
use super::refused;
use super::request::read_node;
use crate::cli::commit::{Proposal, settle_from};
use crate::cli::confirm;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::output::note;
use crate::etcd::{MemberId, Txn};
use crate::proto::{Join, JoinRequest};
use crate::roles::checks::{Refusal, check_manager};
use crate::roles::membership::Member;
use crate::roles::owner::NodeRoles;
use crate::store::object::{Object, member, time};
use crate::store::{Name, Store};

/// Arguments of `quorate replace`.
#[derive(Args, Debug)]
#[command(after_help = "\
For a member whose data directory is lost or damaged. The leader removes the member from etcd, adds the node's etcd as a new \
learner, and promotes it to a voter once it has caught up. The node stays a manager. As soon as etcd can be started, the \
command prints the settings for that; the data directory must be empty.

The same command again goes on where the replacement is, also if the leader or the command ended in between. A member that \
came by a replacement is itself replaced only if --member names it.

A replacement is refused for a member that answers, also when the leader comes to it (rule MemberHealthy; --force replaces \
it all the same), for the only voter \
(LastVoter), if it would leave etcd without a healthy quorum (QuorumRisk), and for a node without a member (NotAMember). \
Without a quorum no member can be replaced: see quorate recover plan.

Examples:
  quorate replace n2 -o env > etcd.env.new && mv etcd.env.new /etc/etcd.env
  quorate replace n2 --yes --wait --timeout 10m    # until the new member votes
  quorate join n2 --peer-url https://10.0.0.2:2380 -o env > etcd.env.new && mv etcd.env.new /etc/etcd.env    # then")]
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
    let again = async || {
        let next = propose(&store, &args).await?;
        if next.txn.is_some() && next.statement != statement {
            return Err(Failure::conflict(format!(
                "something changed meanwhile; now: {}",
                next.statement
            )));
        }
        Ok(next.into())
    };
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
    let earlier = before.request.clone().unwrap_or_default();
    let continues = earlier.replaces != 0 && earlier.node_uid == uid;
    let facts = Facts::with_health(store).await?;
    let own = facts.membership.member_of_node(name.as_str(), uid);
    let named = args.member.is_none_or(|member| member.0 == earlier.replaces);
    let came = own.filter(|own| named && own.id.0 != earlier.replaces);
    if continues && (came.is_some() || !member::is_ended(&before)) {
        return Ok(Proposal {
            statement: match came {
                Some(came) => format!(
                    "member {} of node {name} is replaced by {}; if that one is lost as well, name it: --member {}",
                    MemberId(earlier.replaces),
                    came.id,
                    came.id
                ),
                None => format!("node/{name} is being replaced already"),
            },
            outcome: Requested {
                id: earlier.id,
                peer_urls: earlier.peer_urls,
                client_urls: client_urls(&facts, args, earlier.replaces),
                replaces: earlier.replaces,
            },
            txn: None,
        });
    }
    let (replaces, known) = match own {
        Some(own) => (own.id.0, own.peer_urls()),
        // It was removed, and could not join again.
        None if continues => (earlier.replaces, &earlier.peer_urls[..]),
        None => (0, &[][..]),
    };
    let peer_urls = match args.peer_urls.is_empty() {
        true => known.to_vec(),
        false => args.peer_urls.clone(),
    };
    check(&facts, args, found.roles(), own, replaces, &peer_urls).map_err(|refusal| refused(&refusal))?;
    let request = JoinRequest {
        id: uuid::Uuid::new_v4().to_string(),
        node_uid: uid.to_owned(),
        peer_urls,
        requested_at: Some(time::to_proto(Timestamp::now())),
        no_dial: args.options.no_dial,
        replaces,
        forced: args.force,
    };
    let outcome = Requested {
        id: request.id.clone(),
        peer_urls: request.peer_urls.clone(),
        client_urls: client_urls(&facts, args, replaces),
        replaces,
    };
    let removed = store.keys.removed(uid);
    // The leader's part stays: it says what became of an add that is under way.
    let join = Join {
        request: Some(request),
        ..before
    };
    let key = store.keys.join(name);
    let txn = Txn::new()
        .when_unchanged(&found.key, found.revision)
        .when_unchanged(&key, read_at)
        .when_absent(&removed)
        .put(&key, join.encode_to_vec());
    Ok(Proposal {
        statement: statement(name, own),
        outcome,
        txn: Some(facts.compare(txn, store, name)),
    })
}

/// The client URLs for the settings: those given, else those of the lost member, as long as etcd lists it.
fn client_urls(facts: &Facts, args: &ReplaceArgs, lost: u64) -> Vec<String> {
    let given = &args.options.client_urls;
    let member = facts.membership.member(MemberId(lost));
    match member.and_then(|member| member.listed.as_ref()) {
        Some(listed) if given.is_empty() => listed.client_urls.clone(),
        _ => given.clone(),
    }
}

fn check(
    facts: &Facts,
    args: &ReplaceArgs,
    roles: NodeRoles,
    own: Option<&Member>,
    replaces: u64,
    peer_urls: &[String],
) -> Result<(), Refusal> {
    let (membership, name) = (&facts.membership, args.node.as_str());
    check_manager(name, Some(roles))?;
    if replaces == 0 || args.member.is_some_and(|member| member.0 != replaces) {
        return Err(Refusal::not_a_member(name));
    }
    membership.check_join(name, Some(roles), false, peer_urls)?;
    own.map_or(Ok(()), |own| membership.check_replacement(own, args.force))
}

fn statement(name: &Name, own: Option<&Member>) -> String {
    let removed = own.map_or_else(
        || "its member was removed from etcd".to_owned(),
        |own| format!("its member {} is removed from etcd for good", own.id),
    );
    format!(
        "node/{name}: {removed}, and the node joins again as a new member with an empty data directory; it stays a manager"
    )
}
