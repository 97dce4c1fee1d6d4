//! What kinds and fields mean, in words. A test holds the paths to those that documents may have.

/// A path, and what its field means.
type Meanings = &'static [(&'static str, &'static str)];

/// What every document has.
const HEADER: Meanings = &[
    ("kind", "The kind of the object."),
    (
        "apiVersion",
        "The version of the form of documents: quorate.dev/v1.",
    ),
    ("metadata", "What every object has."),
    (
        "metadata.name",
        "The name: an RFC 1123 subdomain. It cannot change.",
    ),
    (
        "metadata.labels",
        "Words to select objects by. A document without labels leaves them as they are.",
    ),
    (
        "metadata.creationTimestamp",
        "When the object was made. Written by Quorate.",
    ),
    (
        "metadata.generation",
        "Grows with each other spec. Written by Quorate.",
    ),
    (
        "metadata.uid",
        "Tells the object from an earlier one of its name. In a document it must be that of the object.",
    ),
    (
        "metadata.resourceVersion",
        "The revision in etcd of the last write. In a document it must be that of the object.",
    ),
];

/// The conditions of an object.
const CONDITIONS: Meanings = &[
    (
        "status.conditions",
        "What holds of the object, each with its reason. Written by the leader.",
    ),
    ("status.conditions[].type", "What is said, as one word."),
    ("status.conditions[].status", "Whether it holds."),
    ("status.conditions[].reason", "Why, as one word for machines."),
    ("status.conditions[].message", "Why, in a sentence."),
    ("status.conditions[].lastTransitionTime", "Since when it is so."),
    (
        "status.conditions[].observedGeneration",
        "The generation of the spec that it was decided from.",
    ),
];

/// The delete mark of services and networks.
const MARK: Meanings = &[
    ("status", "Written by Quorate."),
    (
        "status.deleting",
        "Whether it is marked for deletion. A mark is never taken back.",
    ),
    ("status.deletingSince", "When it was marked."),
    (
        "status.blockers",
        "What still uses it, and so holds its deletion back. Computed when it is shown.",
    ),
];

const NODE: Meanings = &[
    ("spec", "What operators want of the node."),
    (
        "spec.desiredRole",
        "A manager may have an etcd member; a worker has none. A change is a promotion or a demotion, with its checks. Required for a node that exists.",
    ),
    (
        "spec.availability",
        "pause and drain: nothing new is published to the node.",
    ),
    (
        "spec.outOfService",
        "The node is gone for good or stopped for sure: its volumes are unpublished without its confirmation.",
    ),
    (
        "spec.membership",
        "pending: the node gets no certificate until quorate accept.",
    ),
    ("status", "What the node reports, and what Quorate observed."),
    (
        "status.release",
        "The release that the node's own controller runs. Written by its reporter.",
    ),
    (
        "status.controller",
        "Whether a controller runs on the node that the gate waits for. Written by its reporter.",
    ),
    (
        "status.csi",
        "The CSI plugins on the node. Written by its reporter or its agent.",
    ),
    ("status.csi[].plugin", "The name of the driver."),
    (
        "status.csi[].nodeID",
        "The node's id at that driver (NodeGetInfo).",
    ),
    ("status.csi[].topology", "The place of the node at that driver."),
    ("status.role", "The observed role. Written by the leader."),
    ("status.ready", "Whether the node holds its lease."),
    ("status.memberID", "The id of its etcd member, in hexadecimal."),
];

const SERVICE: Meanings = &[
    ("spec", "What operators want of the service."),
    ("spec.networks", "The networks that the service uses."),
    (
        "spec.taskNetworks",
        "The networks that its tasks use. If it is not empty, it is the list in force.",
    ),
];

const NETWORK: Meanings = &[("spec", "Has no fields.")];

const TASK: Meanings = &[
    ("spec", "Where the task belongs."),
    (
        "spec.service",
        "The name of its service; with the name of the task it is the id: SERVICE/NAME. Required.",
    ),
    ("spec.node", "The node that it runs on."),
    ("status", "What the program that runs the task reports."),
    (
        "status.state",
        "A task in a terminal state (complete, failed, shutdown, rejected, orphaned, removed) does not run any more.",
    ),
];

const VOLUME: Meanings = &[
    ("spec", "What operators want of the volume."),
    ("spec.driver", "The plugin that the volume belongs to."),
    (
        "spec.driver.name",
        "The name of a Plugin, which need not exist yet.",
    ),
    ("spec.driver.options", "The parameters of CreateVolume."),
    (
        "spec.accessMode",
        "How the volume is used. It cannot change. One of mount and block is needed.",
    ),
    (
        "spec.accessMode.scope",
        "Whether one node or several may have it at a time.",
    ),
    (
        "spec.accessMode.sharing",
        "How several may use it at a time. With multiNode, none is refused.",
    ),
    ("spec.accessMode.mount", "It is used as a file system."),
    (
        "spec.accessMode.mount.fsType",
        "The file system; without it, the plugin chooses.",
    ),
    ("spec.accessMode.mount.mountFlags", "Flags of the mount."),
    ("spec.accessMode.block", "It is used as a block device."),
    ("spec.capacity", "How large it is."),
    (
        "spec.capacity.required",
        "At least so much: a number of bytes, or like 1Gi. It may grow later.",
    ),
    ("spec.capacity.limit", "At most so much."),
    ("spec.secrets", "What the plugin gets as secrets with its calls."),
    (
        "spec.secrets[].key",
        "The name of the entry, in the call and in the Secret.",
    ),
    ("spec.secrets[].secret", "The name of a Secret."),
    (
        "spec.secrets[].calls",
        "The calls that get it: create, delete, publish, unpublish, expand, nodeStage, nodePublish, nodeExpand [default: every call].",
    ),
    ("spec.topology", "Where the volume must be reachable."),
    (
        "spec.topology.requisite",
        "The volume must be reachable from one of these places.",
    ),
    ("spec.topology.preferred", "The plugin tries these places first."),
    ("spec.group", "A word to group volumes by."),
    (
        "spec.availability",
        "pause and drain: the volume is published to no further node.",
    ),
    (
        "spec.source",
        "A volume that exists at the backend: it is taken in instead of created.",
    ),
    ("spec.source.volumeID", "The plugin's id of it."),
    ("spec.source.context", "The context that the plugin gave with it."),
    (
        "spec.reclaimPolicy",
        "Whether the volume at the backend is deleted with its record [default: delete; retain for one that was taken in].",
    ),
    ("status", "Written by the leader."),
    ("status.volumeID", "The plugin's id of the volume."),
    (
        "status.context",
        "What the plugin gave with the volume, for every publication.",
    ),
    (
        "status.backend",
        "Where the volume was made. No call about it goes to another backend.",
    ),
    ("status.backend.endpoint", "The endpoint of the plugin then."),
    (
        "status.backend.id",
        "The identity that the backend reported then.",
    ),
    ("status.capacityBytes", "The capacity that the plugin reported."),
    (
        "status.nodeExpansionBytes",
        "The capacity up to which nodes have yet to expand what is on the volume.",
    ),
    (
        "status.detachNodeIDs",
        "Node ids that the volume is unpublished from, although no publication stores them.",
    ),
    (
        "status.createAttempted",
        "Whether the backend may hold a volume whose id is not known yet.",
    ),
    (
        "status.deleteAttempted",
        "Whether its deletion was begun at the backend.",
    ),
    (
        "status.static",
        "Whether the plugin did not create it. It is never deleted at the backend then.",
    ),
    (
        "status.deleting",
        "Whether it is marked for deletion. A mark is never taken back.",
    ),
    ("status.deletingSince", "When it was marked."),
    (
        "status.topology",
        "The places that can reach it, as the plugin said.",
    ),
];

const PLUGIN: Meanings = &[
    ("spec", "How the leader calls the plugin."),
    (
        "spec.endpoint",
        "unix:///PATH, http://HOST:PORT or https://HOST:PORT.",
    ),
    (
        "spec.concurrency",
        "Calls at a time in each lane: unpublish, publish, delete, create and expand [default: 16].",
    ),
    (
        "spec.timeout",
        "The limit of a call: like 15s or 2m [default: 15s].",
    ),
    (
        "spec.perNode",
        "Publications and unpublications of one node at a time [default: no limit].",
    ),
    ("spec.timeouts", "Limits of single calls."),
    ("spec.timeouts.create", "Of CreateVolume."),
    ("spec.timeouts.delete", "Of DeleteVolume."),
    ("spec.timeouts.publish", "Of ControllerPublishVolume."),
    ("spec.timeouts.unpublish", "Of ControllerUnpublishVolume."),
    ("spec.timeouts.expand", "Of ControllerExpandVolume."),
    ("spec.timeouts.list", "Of ListVolumes."),
    (
        "spec.tls",
        "How a connection to https:// is made. The files lie where the replicas run.",
    ),
    (
        "spec.tls.caFile",
        "The authorities to trust [default: those of the system].",
    ),
    ("spec.tls.certFile", "The certificate to show to the plugin."),
    ("spec.tls.keyFile", "The key of that certificate."),
    (
        "spec.tls.serverName",
        "The name to expect in the plugin's certificate [default: the host of the endpoint].",
    ),
    (
        "spec.allowPlaintextSecrets",
        "Whether secrets may go to an http:// endpoint.",
    ),
    (
        "spec.checkCapacity",
        "Whether the plugin is asked for its capacity before a volume is created (GetCapacity).",
    ),
    (
        "spec.sameBackendAs",
        "Endpoints at which the same backend answered before.",
    ),
    ("status", "Written by the leader."),
    ("status.state", "How the leader's session with the plugin is."),
    ("status.message", "The state in a sentence."),
    ("status.version", "The version that the plugin reports."),
    (
        "status.backendID",
        "The identity of the backend that the plugin reports.",
    ),
    ("status.since", "Since when the state is so."),
    ("status.capabilities", "What the plugin offers."),
    ("status.volumes", "How many volumes it has."),
    ("status.waiting", "How many volumes and publications wait for it."),
    ("status.inFlight", "How many calls are under way."),
];

const SECRET: Meanings = &[
    (
        "data",
        "The values, each encoded in base64. They are never shown.",
    ),
    (
        "stringData",
        "The values as plain text. Where both have a key, this one is meant.",
    ),
    ("keys", "What is shown in the place of the values."),
    (
        "kubernetes",
        "A Secret of Kubernetes that has the values; etcd then has none.",
    ),
    ("kubernetes.namespace", "The namespace of that Secret."),
    ("kubernetes.name", "The name of that Secret."),
    (
        "encryptionKey",
        "The id of the key that the values are encrypted with. Shown only.",
    ),
];

/// The tables of a kind's fields.
fn tables(kind: &str) -> &'static [Meanings] {
    match kind {
        "Node" => &[HEADER, NODE, CONDITIONS],
        "Service" => &[HEADER, SERVICE, MARK],
        "Network" => &[HEADER, NETWORK, MARK],
        "Task" => &[HEADER, TASK],
        "Volume" => &[HEADER, VOLUME, CONDITIONS],
        "Plugin" => &[HEADER, PLUGIN],
        "Secret" => &[HEADER, SECRET],
        _ => &[],
    }
}

/// What a kind is; empty for one that is none.
pub fn of_kind(kind: &str) -> &'static str {
    match kind {
        "Node" => {
            "A machine of the cluster, with its role: a worker, or a manager, which may have an etcd member."
        }
        "Member" => "A member of etcd, as etcd itself lists it, with the node that Quorate records for it.",
        "Certificate" => "The certificate of a node, or its request for one.",
        "Replica" => "A running replica of Quorate, from its registration.",
        "Service" => "A set of tasks that uses networks. It is deleted once it has no task.",
        "Network" => "What services are connected by. It is deleted once no service uses it.",
        "Task" => "One run of a service on a node.",
        "Volume" => "Storage at a CSI plugin.",
        "Publication" => "A volume on a node: from the request to publish it until it is unpublished.",
        "Plugin" => "A CSI controller plugin that the leader calls.",
        "Secret" => "Values that plugins need. They are never shown.",
        "Tombstone" => "What a forced deletion may have left at a backend.",
        "Resource" => "A Kubernetes object of the bundle, with its outcome.",
        _ => "",
    }
}

/// What a field of a kind means; empty for one that it does not have.
pub fn of_field(kind: &str, path: &str) -> &'static str {
    let mut all = tables(kind).iter().flat_map(|table| table.iter());
    all.find(|(known, _)| *known == path)
        .map_or("", |(_, meaning)| meaning)
}

/// The paths of a kind's fields.
#[cfg(test)]
pub fn fields_of(kind: &str) -> impl Iterator<Item = &'static str> {
    tables(kind)
        .iter()
        .flat_map(|table| table.iter().map(|(path, _)| *path))
}
