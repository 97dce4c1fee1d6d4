//! The calls of the API, each counted by its code.

use std::future::Future;
use std::sync::Arc;

use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::acceptor::Client;
use super::session::SessionStream;
use super::{Site, certificates, confirm, deadline, etcd_certificate, join, member, refusal, report};
use crate::grpc_code::{self, Code};
use crate::metrics::ControlCall;
use crate::proto::control_server::Control;
use crate::proto::{
    CertificateStatusRequest, CertificateStatusResponse, ConfirmExpandedRequest, ConfirmExpandedResponse,
    ConfirmUnpublishedRequest, ConfirmUnpublishedResponse, EtcdCertificateRequest, EtcdCertificateResponse,
    JoinMemberRequest, JoinMemberResponse, NodeJoinRequest, NodeJoinResponse, RenewRequest, RenewResponse,
    ReportRequest, ReportResponse, SessionRequest,
};

/// The API.
pub struct Service(pub Arc<Site>);

impl Service {
    /// Makes an answer, unless the replica stops meanwhile: nothing is written after that.
    async fn answer<T>(
        &self,
        method: &'static str,
        work: impl Future<Output = Result<T, Status>> + Send,
    ) -> Result<Response<T>, Status> {
        let answer = tokio::select! {
            biased;
            () = self.0.stop.cancelled() => Err(Status::unavailable("this replica stops")),
            answer = work => answer,
        };
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        let call = ControlCall {
            method,
            code: grpc_code::name(code),
        };
        let metrics = self.0.store.etcd.metrics();
        metrics.control_calls.get_or_create(&call).inc();
        answer.map(Response::new)
    }
}

/// The other side of the connection that a request came over.
fn client<T>(request: &Request<T>) -> Option<Client> {
    request.extensions().get().cloned()
}

/// Until when a call that arrives now may wait. Its deadline counts from here, before its caller is known.
fn patience_end<T>(request: &Request<T>) -> Instant {
    let given = request.metadata().get("grpc-timeout");
    Instant::now() + deadline::patience(given.and_then(|given| given.to_str().ok()))
}

#[tonic::async_trait]
impl Control for Service {
    async fn join(&self, request: Request<NodeJoinRequest>) -> Result<Response<NodeJoinResponse>, Status> {
        self.answer("Join", join::join(&self.0, request.into_inner()))
            .await
    }

    async fn certificate_status(
        &self,
        request: Request<CertificateStatusRequest>,
    ) -> Result<Response<CertificateStatusResponse>, Status> {
        let end = patience_end(&request);
        let uid = request.into_inner().node_uid;
        self.answer("CertificateStatus", certificates::status(&self.0, &uid, end))
            .await
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<RenewResponse>, Status> {
        let (site, client) = (&self.0, client(&request));
        self.answer("Renew", async {
            let caller = site.caller(client).await?;
            certificates::renew(site, caller, request.into_inner()).await
        })
        .await
    }

    type SessionStream = SessionStream;

    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (site, client) = (&self.0, client(&request));
        self.answer("Session", site.open_session(client, request.into_inner()))
            .await
    }

    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        let (site, client) = (&self.0, client(&request));
        self.answer("Report", async {
            let caller = site.caller(client).await?;
            report::report(site, caller, request.into_inner()).await
        })
        .await
    }

    async fn confirm_unpublished(
        &self,
        request: Request<ConfirmUnpublishedRequest>,
    ) -> Result<Response<ConfirmUnpublishedResponse>, Status> {
        let (site, client) = (&self.0, client(&request));
        self.answer("ConfirmUnpublished", async {
            let caller = site.caller(client).await?;
            confirm::unpublished(site, caller, request.into_inner()).await
        })
        .await
    }

    async fn confirm_expanded(
        &self,
        request: Request<ConfirmExpandedRequest>,
    ) -> Result<Response<ConfirmExpandedResponse>, Status> {
        let (site, client) = (&self.0, client(&request));
        self.answer("ConfirmExpanded", async {
            let caller = site.caller(client).await?;
            confirm::expanded(site, caller, request.into_inner()).await
        })
        .await
    }

    async fn join_member(
        &self,
        request: Request<JoinMemberRequest>,
    ) -> Result<Response<JoinMemberResponse>, Status> {
        let (site, client, end) = (&self.0, client(&request), patience_end(&request));
        self.answer("JoinMember", async {
            let caller = site.caller(client).await?;
            let answer = member::join(site, caller, request.into_inner(), end).await?;
            refusal::unless_lost("control.join-member-reply")?;
            Ok(answer)
        })
        .await
    }

    async fn etcd_certificate(
        &self,
        request: Request<EtcdCertificateRequest>,
    ) -> Result<Response<EtcdCertificateResponse>, Status> {
        let (site, client, end) = (&self.0, client(&request), patience_end(&request));
        self.answer("EtcdCertificate", async {
            let caller = site.caller(client).await?;
            let request = request.into_inner();
            let answer = etcd_certificate::certificate(site, caller, request, end).await?;
            refusal::unless_lost("control.etcd-certificate-reply")?;
            Ok(answer)
        })
        .await
    }
}
