//! Answers of other programs: CSI plugins, members of etcd, the kernel, servers and agents.

use std::path::Path;

use prost::Message;
use quorate::agent::manager::log_header;
use quorate::agent::volumes::mounts::Mounts;
use quorate::csi::wire::{
    ControllerGetCapabilitiesResponse, CreateVolumeResponse, GetCapacityResponse,
    GetPluginCapabilitiesResponse, ListVolumesResponse, NodeGetCapabilitiesResponse, NodeGetInfoResponse,
};
use quorate::csi::{Capabilities, Capability, NodeCapabilities, convert};
use quorate::etcd::member_http;
use quorate::grpc_status;
use quorate::proto::{JoinRefused, Removed, WrongRole};

/// Every answer of a CSI plugin of which something is used.
pub fn csi(data: &[u8]) {
    let plugin = GetPluginCapabilitiesResponse::decode(data).unwrap_or_default();
    let controller = ControllerGetCapabilitiesResponse::decode(data).unwrap_or_default();
    let known = Capabilities::of_plugin(&plugin.capabilities).with_controller(&controller.capabilities);
    let listed: Capabilities = known.iter().collect();
    assert_eq!(listed, known);
    if controller.capabilities.is_empty() {
        assert!(
            !known.offers(Capability::CreateDeleteVolume),
            "nothing is assumed"
        );
    }
    let node = NodeGetCapabilitiesResponse::decode(data).unwrap_or_default();
    assert!(NodeCapabilities::of(&node.capabilities).names().len() <= 3);
    if let Ok(answer) = CreateVolumeResponse::decode(data)
        && let Some(volume) = convert::created(answer.volume)
    {
        assert!(!volume.id.as_str().is_empty() && volume.capacity >= 0);
    }
    for entry in ListVolumesResponse::decode(data).unwrap_or_default().entries {
        if let Some(volume) = convert::listed(entry) {
            assert!(!volume.id.as_str().is_empty() && volume.capacity >= 0);
            assert!(volume.published_to.iter().all(|node| !node.as_str().is_empty()));
        }
    }
    if let Ok(answer) = GetCapacityResponse::decode(data) {
        assert!(convert::available(&answer) >= 0);
    }
    if let Ok(answer) = NodeGetInfoResponse::decode(data) {
        let is_named = !answer.node_id.is_empty();
        assert_eq!(convert::node_info(answer).is_ok(), is_named);
    }
}

/// A page of a member of etcd, and what is read of its body.
pub fn member_pages(data: &[u8]) {
    let answer = String::from_utf8_lossy(data);
    if let Some((_, body)) = member_http::parse(&answer) {
        assert!(answer.ends_with(&body));
    }
    assert_ne!(member_http::quota(&answer), Some(0));
    member_http::flags(&answer);
}

/// The beginning of a write-ahead log of etcd.
pub fn logs(data: &[u8]) {
    log_header::owner(data);
}

/// The mounts that the kernel lists.
pub fn mounts(data: &[u8]) {
    match Mounts::parse(data) {
        Ok(mounts) => {
            let all = mounts.below(Path::new("/")).count();
            let lines = data.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            assert!(all <= lines.count());
            mounts.at(Path::new("/a"));
            mounts.of_volume(Path::new("/a/b")).count();
        }
        Err(malformed) => assert!(!malformed.to_string().is_empty()),
    }
}

/// The details of an error of a call.
pub fn errors(data: &[u8]) {
    grpc_status::find::<Removed>("quorate.v1.Removed", data);
    grpc_status::find::<WrongRole>("quorate.v1.WrongRole", data);
    grpc_status::find::<JoinRefused>("quorate.v1.JoinRefused", data);
}
