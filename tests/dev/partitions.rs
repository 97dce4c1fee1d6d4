//! Proxies between members of etcd part them, both ways or one way.

use quorate_dev::etcd::{Etcd, Options};
use quorate_dev::http::Request;
use serde_json::Value;

use crate::support::directory::directory;
use crate::support::proxy::{Cut, Network};
use crate::support::wait::{SOON, eventually};

/// The id of the member of this name.
async fn id_of(etcd: &Etcd, name: &str) -> u64 {
    let port = etcd.members[0].client_url.rsplit(':').next().unwrap();
    let request = Request {
        port: port.parse().unwrap(),
        method: "POST",
        path: "/v3/cluster/member/list",
        ca: None,
        token: None,
        body: Some(("application/json", "{}")),
    };
    eventually(SOON, "it has published its name", async || {
        let answer = request.send().await.map_err(|error| error.to_string())?.body;
        let list: Value = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
        let members = list["members"].as_array().into_iter().flatten();
        let mut ids = members.filter(|member| member["name"] == name);
        let id = ids.next().and_then(|member| member["ID"].as_str());
        Ok::<_, String>(id.ok_or(answer)?.parse().unwrap())
    })
    .await
}

async fn expect_healthy(etcd: &Etcd, wanted: [bool; 3]) {
    eventually(SOON, "members are as wanted", async || {
        let mut seen = [false; 3];
        for (seen, member) in seen.iter_mut().zip(&etcd.members) {
            *seen = member.is_healthy().await;
        }
        match seen == wanted {
            true => Ok(()),
            false => Err(format!("{seen:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn a_member_that_is_parted_from_the_others_one_way_or_both_serves_nothing_and_they_do() {
    let directory = directory();
    let options = Options {
        members: 3,
        peer_proxies: true,
        ..Options::default()
    };
    let mut etcd = Etcd::start(directory.path(), &options).await.unwrap();
    let third = id_of(&etcd, "etcd-3").await;
    let proxies = || {
        let members = etcd.members.iter();
        members.map(|member| member.peer_proxy.as_ref().unwrap())
    };
    for (at_it, at_others) in [
        (Network::BlackHole, Network::BlackHole),
        (Network::LosesReplies, Network::LosesRequests),
        (Network::LosesRequests, Network::LosesReplies),
    ] {
        for (index, proxy) in proxies().enumerate() {
            let (from, network) = match index {
                2 => (None, at_it),
                _ => (Some(third), at_others),
            };
            proxy.cut([Cut { from, network }]);
        }
        expect_healthy(&etcd, [true, true, false]).await;
        for proxy in proxies() {
            proxy.set(Network::Passes);
        }
        expect_healthy(&etcd, [true; 3]).await;
    }
    etcd.stop().await.unwrap();
}
