//! What the controller reports: certificates that were issued or refused, revocations, new nodes, and several agents of one node.

use std::collections::BTreeSet;

use tracing::{info, warn};

use super::TermState;
use crate::clock;
use crate::identity::answer::Recorded;
use crate::identity::authority::AuthorityKind;
use crate::identity::revoke::Revoked;
use crate::kube::events::Severity;
use crate::store::object::node::role_word;

impl TermState<'_> {
    pub(super) fn report_answer(&mut self, uid: &str, recorded: &Recorded) {
        let Recorded {
            kind,
            node,
            is_first,
            answer,
        } = recorded;
        let what = match kind {
            AuthorityKind::Node => "a certificate",
            AuthorityKind::Etcd => "a certificate of etcd",
        };
        match answer {
            Ok(role) => {
                let role = role_word(role.to_proto().into());
                self.gauges.issued(*kind);
                info!("issued {what} for node {node} ({uid}), {role}");
                if *kind == AuthorityKind::Node && *is_first {
                    self.new_nodes.add(node);
                    self.report_new_nodes();
                }
            }
            Err(refusal) => {
                let note = format!("refused the request of node {node} ({uid}) for {what}: {refusal}");
                warn!("{note}");
                self.certifier
                    .notify(Severity::Warning, "CertificateRefused", note);
            }
        }
    }

    pub(super) fn report_revoked(&self, revoked: &Revoked) {
        let Revoked {
            number,
            certificates,
            nodes,
        } = revoked;
        if *certificates == 0 {
            return info!("signed the list of revoked certificates of etcd, number {number}");
        }
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let note = format!(
            "revoked {certificates} certificates of the etcd of node {} (list {number})",
            nodes.join(", ")
        );
        info!("{note}");
        self.certifier
            .notify(Severity::Normal, "CertificatesRevoked", note);
    }

    /// Reports the nodes that got their first certificate.
    pub(super) fn report_new_nodes(&mut self) {
        if let Some(note) = self.new_nodes.due(clock::now()) {
            self.certifier.notify(Severity::Normal, "NodeJoined", note);
        }
    }

    /// Reports nodes that several agents run as, each once until it is one again. The replica that has found it has logged it.
    pub(super) fn report_duplicates(&mut self) {
        if !self.index.synced().is_complete() {
            return;
        }
        let now: BTreeSet<Box<str>> = self.index.duplicates().map(Box::from).collect();
        for node in now.difference(&self.duplicates) {
            let note = format!(
                "sessions of node {node} end one another: several agents run with its certificate (quorate describe node {node})"
            );
            self.certifier.notify(Severity::Warning, "DuplicateAgent", note);
        }
        self.duplicates = now;
    }
}
