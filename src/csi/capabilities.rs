//! What a plugin offers, by its own answers.

use std::collections::BTreeSet;

use super::wire::controller_service_capability::Type as ControllerType;
use super::wire::controller_service_capability::rpc::Type as Rpc;
use super::wire::node_service_capability::Type as NodeType;
use super::wire::node_service_capability::rpc::Type as NodeRpc;
use super::wire::plugin_capability::Type as PluginType;
use super::wire::plugin_capability::service::Type as Service;
use super::wire::plugin_capability::volume_expansion::Type as Expansion;
use super::wire::{ControllerServiceCapability, NodeServiceCapability, PluginCapability};

/// One thing that a plugin may offer. The specification has more; they change nothing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Capability {
    /// The plugin has a Controller service.
    ControllerService,
    /// Not every node can reach every volume; a topology may be asked for.
    AccessibilityConstraints,
    /// The plugin creates and deletes volumes.
    CreateDeleteVolume,
    /// Volumes are published to a node before they are used there, and unpublished after.
    PublishUnpublishVolume,
    /// The plugin enforces read-only publications.
    PublishReadonly,
    /// The plugin lists its volumes.
    ListVolumes,
    /// The list of volumes has the nodes that they are published to.
    ListPublishedNodes,
    /// The plugin reports how much capacity it has for volumes.
    GetCapacity,
    /// The plugin distinguishes one writer on a node from several.
    SingleNodeMultiWriter,
    /// The plugin expands volumes.
    ExpandVolume,
    /// The plugin expands only volumes that are published nowhere.
    ExpandOffline,
}

impl Capability {
    /// Its name in the specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::ControllerService => "CONTROLLER_SERVICE",
            Self::AccessibilityConstraints => "VOLUME_ACCESSIBILITY_CONSTRAINTS",
            Self::CreateDeleteVolume => "CREATE_DELETE_VOLUME",
            Self::PublishUnpublishVolume => "PUBLISH_UNPUBLISH_VOLUME",
            Self::PublishReadonly => "PUBLISH_READONLY",
            Self::ListVolumes => "LIST_VOLUMES",
            Self::ListPublishedNodes => "LIST_VOLUMES_PUBLISHED_NODES",
            Self::GetCapacity => "GET_CAPACITY",
            Self::SingleNodeMultiWriter => "SINGLE_NODE_MULTI_WRITER",
            Self::ExpandVolume => "EXPAND_VOLUME",
            Self::ExpandOffline => "OFFLINE",
        }
    }
}

/// The capabilities of a plugin in one session. Only a handshake makes them: they are never assumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities(BTreeSet<Capability>);

impl Capabilities {
    /// Whether the plugin offers it.
    pub fn offers(&self, capability: Capability) -> bool {
        self.0.contains(&capability)
    }

    /// The capabilities, in the order of [`Capability`].
    pub fn iter(&self) -> impl Iterator<Item = Capability> {
        self.0.iter().copied()
    }

    /// The answer to GetPluginCapabilities. Unknown numbers are left out.
    pub fn of_plugin(answer: &[PluginCapability]) -> Self {
        let known = answer.iter().filter_map(|one| match one.r#type.as_ref()? {
            PluginType::Service(service) => match service.r#type() {
                Service::Unknown => None,
                Service::ControllerService => Some(Capability::ControllerService),
                Service::VolumeAccessibilityConstraints => Some(Capability::AccessibilityConstraints),
            },
            PluginType::VolumeExpansion(expansion) => match expansion.r#type() {
                Expansion::Unknown | Expansion::Online => None,
                Expansion::Offline => Some(Capability::ExpandOffline),
            },
        });
        let online = |one: &PluginCapability| match one.r#type.as_ref() {
            Some(PluginType::VolumeExpansion(expansion)) => expansion.r#type() == Expansion::Online,
            Some(PluginType::Service(_)) | None => false,
        };
        let mut known: BTreeSet<Capability> = known.collect();
        if answer.iter().any(online) {
            known.remove(&Capability::ExpandOffline);
        }
        Self(known)
    }

    /// Adds the answer to ControllerGetCapabilities. Unknown numbers are left out.
    pub fn with_controller(mut self, answer: &[ControllerServiceCapability]) -> Self {
        self.0.extend(answer.iter().filter_map(|one| {
            let ControllerType::Rpc(rpc) = one.r#type.as_ref()?;
            match rpc.r#type() {
                Rpc::CreateDeleteVolume => Some(Capability::CreateDeleteVolume),
                Rpc::PublishUnpublishVolume => Some(Capability::PublishUnpublishVolume),
                Rpc::ListVolumes => Some(Capability::ListVolumes),
                Rpc::PublishReadonly => Some(Capability::PublishReadonly),
                Rpc::ExpandVolume => Some(Capability::ExpandVolume),
                Rpc::ListVolumesPublishedNodes => Some(Capability::ListPublishedNodes),
                Rpc::SingleNodeMultiWriter => Some(Capability::SingleNodeMultiWriter),
                Rpc::GetCapacity => Some(Capability::GetCapacity),
                Rpc::Unknown | Rpc::CreateDeleteSnapshot | Rpc::ListSnapshots | Rpc::CloneVolume => None,
            }
        }));
        self
    }
}

impl FromIterator<Capability> for Capabilities {
    fn from_iter<I: IntoIterator<Item = Capability>>(capabilities: I) -> Self {
        Self(capabilities.into_iter().collect())
    }
}

/// What the Node service of a plugin offers in one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCapabilities {
    /// STAGE_UNSTAGE_VOLUME: a volume is staged before it is published, and unstaged after it is unpublished.
    pub stage: bool,
    /// EXPAND_VOLUME: what is on a volume has to be expanded on the node.
    pub expand: bool,
    /// SINGLE_NODE_MULTI_WRITER: access modes tell one writer on a node from several.
    pub exact_access_mode: bool,
}

impl NodeCapabilities {
    /// The answer to NodeGetCapabilities. Unknown numbers are left out.
    pub fn of(answer: &[NodeServiceCapability]) -> Self {
        let mut known = Self::default();
        for one in answer {
            let Some(NodeType::Rpc(rpc)) = one.r#type.as_ref() else {
                continue;
            };
            match rpc.r#type() {
                NodeRpc::StageUnstageVolume => known.stage = true,
                NodeRpc::ExpandVolume => known.expand = true,
                NodeRpc::SingleNodeMultiWriter => known.exact_access_mode = true,
                NodeRpc::Unknown
                | NodeRpc::GetVolumeStats
                | NodeRpc::VolumeCondition
                | NodeRpc::VolumeMountGroup => {}
            }
        }
        known
    }

    /// The names in the specification of what is offered.
    pub fn names(self) -> Vec<&'static str> {
        let all = [
            (self.stage, "STAGE_UNSTAGE_VOLUME"),
            (self.expand, "EXPAND_VOLUME"),
            (self.exact_access_mode, "SINGLE_NODE_MULTI_WRITER"),
        ];
        let offered = all.into_iter().filter(|(offered, _)| *offered);
        offered.map(|(_, name)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::controller_service_capability::Rpc as RpcCapability;
    use super::super::wire::plugin_capability::{Service as ServiceCapability, VolumeExpansion};
    use super::*;

    fn plugin(r#type: PluginType) -> PluginCapability {
        PluginCapability { r#type: Some(r#type) }
    }

    fn controller(number: i32) -> ControllerServiceCapability {
        ControllerServiceCapability {
            r#type: Some(ControllerType::Rpc(RpcCapability { r#type: number })),
        }
    }

    #[test]
    fn capabilities_of_a_later_version_are_left_out() {
        let answer = [
            plugin(PluginType::Service(ServiceCapability { r#type: 1 })),
            plugin(PluginType::Service(ServiceCapability { r#type: 3 })),
            plugin(PluginType::VolumeExpansion(VolumeExpansion { r#type: 2 })),
            PluginCapability { r#type: None },
        ];
        let controllers = [controller(1), controller(9), controller(14), controller(-1)];
        let capabilities = Capabilities::of_plugin(&answer).with_controller(&controllers);
        assert_eq!(
            capabilities.iter().collect::<Vec<_>>(),
            [
                Capability::ControllerService,
                Capability::CreateDeleteVolume,
                Capability::ExpandVolume,
                Capability::ExpandOffline,
            ]
        );
        assert!(!capabilities.offers(Capability::PublishUnpublishVolume));
        let expands = |number| plugin(PluginType::VolumeExpansion(VolumeExpansion { r#type: number }));
        let both = Capabilities::of_plugin(&[expands(1), expands(2)]);
        assert!(
            !both.offers(Capability::ExpandOffline),
            "what expands online does so offline, too"
        );
    }

    #[test]
    fn a_node_offers_what_it_says_and_numbers_of_a_later_version_are_left_out() {
        use super::super::wire::node_service_capability::Rpc as RpcOfNode;
        let offers = |number: i32| NodeServiceCapability {
            r#type: Some(NodeType::Rpc(RpcOfNode { r#type: number })),
        };
        let none = NodeServiceCapability { r#type: None };
        let known = NodeCapabilities::of(&[offers(1), offers(2), offers(3), offers(99), none]);
        assert_eq!(known.names(), ["STAGE_UNSTAGE_VOLUME", "EXPAND_VOLUME"]);
        assert!(!known.exact_access_mode && NodeCapabilities::of(&[offers(5)]).exact_access_mode);
    }
}
