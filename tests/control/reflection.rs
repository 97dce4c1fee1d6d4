//! A client that is not ours: it knows the API by reflection alone.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt as _};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::site::{Client, Key, Serving, Site};
use crate::support::proxy::Network;
use crate::support::quorate::TestReplica;
use crate::support::wait::{SOON, eventually, same};

const SERVICE: &str = "quorate.v1.Control";

/// The value of a field of a request.
enum Value {
    Text(String),
    Bytes(Vec<u8>),
    Number(u64),
}

/// Messages as bytes: the client knows none of their types.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        prost::bytes::BufMut::put_slice(into, &item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let length = prost::bytes::Buf::remaining(from);
        Ok(Some(prost::bytes::Buf::copy_to_bytes(from, length).to_vec()))
    }
}

/// What reflection says of the API.
struct Described {
    /// The type of the request and of the answer, by method.
    methods: BTreeMap<String, (String, String)>,
    messages: BTreeMap<String, DescriptorProto>,
}

async fn ask(channel: &Channel, request: MessageRequest) -> MessageResponse {
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(request),
    };
    let mut client = ServerReflectionClient::new(channel.clone());
    let answers = client.server_reflection_info(futures::stream::iter([request]));
    let answer = answers.await.unwrap().into_inner().message().await.unwrap();
    answer.unwrap().message_response.unwrap()
}

async fn describe(channel: &Channel) -> Described {
    let MessageResponse::ListServicesResponse(list) =
        ask(channel, MessageRequest::ListServices(String::new())).await
    else {
        panic!("no list of services");
    };
    let services: Vec<_> = list.service.iter().map(|service| &*service.name).collect();
    assert!(services.contains(&SERVICE), "{services:?}");
    assert!(services.contains(&"grpc.health.v1.Health"), "{services:?}");
    let mut described = Described {
        methods: BTreeMap::new(),
        messages: BTreeMap::new(),
    };
    let symbol = MessageRequest::FileContainingSymbol(SERVICE.to_owned());
    let MessageResponse::FileDescriptorResponse(files) = ask(channel, symbol).await else {
        panic!("no file has the service");
    };
    for file in files.file_descriptor_proto {
        let file = FileDescriptorProto::decode(&*file).unwrap();
        for message in file.message_type {
            let name = format!(".quorate.v1.{}", message.name());
            described.messages.insert(name, message);
        }
        for method in file.service.into_iter().flat_map(|service| service.method) {
            let types = (method.input_type().to_owned(), method.output_type().to_owned());
            described.methods.insert(method.name().to_owned(), types);
        }
    }
    described
}

impl Described {
    fn field<'d>(&'d self, message: &str, name: &str) -> &'d FieldDescriptorProto {
        let mut fields = self.messages[message].field.iter();
        fields
            .find(|field| field.name() == name)
            .unwrap_or_else(|| panic!("{message} has no {name}"))
    }

    fn request(&self, method: &str, values: &[(&str, Value)]) -> Vec<u8> {
        let (input, _) = &self.methods[method];
        let mut bytes = Vec::new();
        for (name, value) in values {
            let field = self.field(input, name);
            let number = u32::try_from(field.number()).unwrap();
            match (field.r#type(), value) {
                (Type::String, Value::Text(text)) => put(number, text.as_bytes(), &mut bytes),
                (Type::Bytes, Value::Bytes(content)) => put(number, content, &mut bytes),
                (Type::Int64 | Type::Enum, Value::Number(value)) => {
                    encode_key(number, WireType::Varint, &mut bytes);
                    encode_varint(*value, &mut bytes);
                }
                (other, _) => panic!("{name} is of type {other:?}"),
            }
        }
        bytes
    }

    /// Calls a method; the bytes of the answer.
    async fn call(
        &self,
        channel: &Channel,
        method: &str,
        values: &[(&str, Value)],
    ) -> Result<Vec<u8>, Status> {
        let mut client = Grpc::new(channel.clone());
        client
            .ready()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::try_from(format!("/{SERVICE}/{method}")).unwrap();
        let mut request = Request::new(self.request(method, values));
        request.set_timeout(SOON);
        let answer = client.unary(request, path, Raw).await?;
        Ok(answer.into_inner())
    }

    /// Calls the method whose both sides are streams, with one empty message and then silence; the answers.
    async fn stream(&self, channel: &Channel, method: &str) -> Result<Streaming<Vec<u8>>, Status> {
        let mut client = Grpc::new(channel.clone());
        client
            .ready()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::try_from(format!("/{SERVICE}/{method}")).unwrap();
        let messages = stream::iter([self.request(method, &[])]).chain(stream::pending());
        let answers = client.streaming(Request::new(messages), path, Raw).await?;
        Ok(answers.into_inner())
    }

    /// The text in a field of an answer.
    fn text(&self, method: &str, answer: &[u8], name: &str) -> String {
        let (_, output) = &self.methods[method];
        let number = self.field(output, name).number();
        let key = u8::try_from(number << 3 | 2).unwrap();
        let (head, rest) = answer.split_first().unwrap();
        assert_eq!(*head, key, "{answer:?}");
        let (length, text) = rest.split_first().unwrap();
        assert_eq!(usize::from(*length), text.len());
        String::from_utf8(text.to_vec()).unwrap()
    }
}

fn put(number: u32, content: &[u8], bytes: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, bytes);
    encode_varint(content.len() as u64, bytes);
    bytes.extend_from_slice(content);
}

fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

#[track_caller]
fn expect_code(answer: Result<Vec<u8>, Status>, code: Code) {
    let refused = answer.expect_err("it is refused");
    assert_eq!(refused.code(), code, "{refused:?}");
}

#[tokio::test]
async fn a_client_that_knows_the_api_by_reflection_alone_joins_and_meets_each_code() {
    let (serving, proxy) = Serving::behind_proxy(&["--etcd-request-timeout-ms=2000"]).await;
    let Serving {
        site,
        token,
        mut replica,
        client: _client,
    } = serving;
    let channel = site.channel(&mut replica, None).await;
    let api = describe(&channel).await;
    let calls: Vec<_> = api.methods.keys().map(String::as_str).collect();
    let all = [
        "CertificateStatus",
        "ConfirmExpanded",
        "ConfirmUnpublished",
        "EtcdCertificate",
        "Join",
        "JoinMember",
        "Renew",
        "Report",
        "Session",
    ];
    assert_eq!(calls, all);

    let join = |name: &str, token: &str, key: &Key| {
        [
            ("token", text(token)),
            ("name", text(name)),
            ("csr", Value::Bytes(key.csr.clone())),
        ]
    };
    let key = Key::new();
    let joined = api
        .call(&channel, "Join", &join("n1", &token, &key))
        .await
        .unwrap();
    let uid = api.text("Join", &joined, "node_uid");
    assert_eq!(uid, site.node("n1").await.metadata.unwrap().uid);
    let status = async |uid: &str| {
        api.call(&channel, "CertificateStatus", &[("node_uid", text(uid))])
            .await
    };
    let issued = status(&uid).await.unwrap();
    let chain = b"-----BEGIN CERTIFICATE-----";
    assert!(issued.windows(chain.len()).any(|part| part == chain));

    expect_code(
        api.call(&channel, "Join", &join("n1", "x", &key)).await,
        Code::InvalidArgument,
    );
    expect_code(api.call(&channel, "Join", &[]).await, Code::InvalidArgument);
    let other = Key::new();
    expect_code(
        api.call(&channel, "Join", &join("n1", &token, &other)).await,
        Code::AlreadyExists,
    );
    let unknown = "0b3a2f0e-55a6-4a3e-9d0c-2f6f4d1c9b11";
    expect_code(status(unknown).await, Code::NotFound);
    let unpublished = [("volume", text("data")), ("publication_uid", text("u"))];
    for (method, values) in [
        (
            "Renew",
            &[("csr", Value::Bytes(key.csr.clone())), ("role", Value::Number(1))][..],
        ),
        ("Report", &[]),
        ("ConfirmUnpublished", &unpublished),
        ("JoinMember", &[("peer_urls", text("http://127.0.0.1:1"))]),
        ("EtcdCertificate", &[]),
        (
            "ConfirmExpanded",
            &[("volume", text("data")), ("capacity_bytes", Value::Number(1))],
        ),
    ] {
        expect_code(api.call(&channel, method, values).await, Code::PermissionDenied);
    }
    site.remove("n1").await;
    expect_code(status(&uid).await, Code::PermissionDenied);
    proxy.set(Network::Resets);
    expect_code(status(&uid).await, Code::Unavailable);
    expect_code(
        api.call(&channel, "Join", &join("n2", &token, &key)).await,
        Code::Unavailable,
    );
    for (result, count) in [
        ("created", 1.0),
        ("refused", 2.0),
        ("name_in_use", 1.0),
        ("failed", 1.0),
    ] {
        let series = format!("quorate_node_joins_total{{result=\"{result}\"}}");
        assert_eq!(replica.metric(&series).await, count, "{series}");
    }
    expect_one_call_of_each(
        &replica,
        &[
            ("Join", "AlreadyExists"),
            ("CertificateStatus", "NotFound"),
            ("Report", "PermissionDenied"),
            ("Join", "Unavailable"),
        ],
    )
    .await;
}

/// Checks that one call of each of these methods was answered with each of these codes.
async fn expect_one_call_of_each(replica: &TestReplica, calls: &[(&str, &str)]) {
    for (method, code) in calls {
        let series = format!("quorate_control_calls_total{{method=\"{method}\",code=\"{code}\"}}");
        assert_eq!(replica.metric(&series).await, 1.0, "{series}");
    }
}

#[tokio::test]
async fn a_node_whose_client_knows_the_api_by_reflection_alone_meets_the_codes_of_its_calls_and_its_session()
{
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let mut replica = site.replica().await;
    let strange = site.channel(&mut replica, None).await;
    let node = site.member(&mut Client::new(strange.clone()), "n1", &token).await;
    let channel = site.channel(&mut replica, Some(node.identity())).await;
    let api = describe(&channel).await;

    let unpublished = [("volume", text("data")), ("publication_uid", text("u"))];
    let expanded = [("volume", text("data")), ("capacity_bytes", Value::Number(1))];
    for (method, values) in [("ConfirmUnpublished", unpublished), ("ConfirmExpanded", expanded)] {
        let answer = api.call(&channel, method, &values).await;
        expect_code(answer, Code::FailedPrecondition);
    }

    let refused = api.stream(&strange, "Session").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    let mut first = api.stream(&channel, "Session").await.unwrap();
    let shown = timeout(SOON, first.message()).await.expect("it begins");
    assert!(shown.unwrap().is_some());
    let mut second = api.stream(&channel, "Session").await.unwrap();
    let shown = timeout(SOON, second.message()).await.expect("it begins");
    assert!(shown.unwrap().is_some());
    let ended = timeout(SOON, first.message()).await.expect("it ends");
    let ended = ended.expect_err("the other session has begun");
    assert_eq!(ended.code(), Code::Aborted, "{ended:?}");

    let renew = async |csr: Vec<u8>| {
        let values = [("csr", Value::Bytes(csr)), ("role", Value::Number(1))];
        api.call(&channel, "Renew", &values).await
    };
    expect_code(renew(vec![b'x'; 70_000]).await, Code::OutOfRange);
    // Twenty at once, and no more within the next seconds.
    let mut renewed = 0;
    let refused = loop {
        match renew(Key::new().csr).await {
            Ok(_) => renewed += 1,
            Err(refused) => break refused,
        }
        assert!(renewed <= 30, "it is never refused");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    expect_one_call_of_each(
        &replica,
        &[
            ("ConfirmUnpublished", "FailedPrecondition"),
            ("Session", "PermissionDenied"),
            ("Renew", "ResourceExhausted"),
        ],
    )
    .await;
}

#[tokio::test]
async fn the_health_service_follows_whether_etcd_can_be_asked() {
    let flags = [
        "--etcd-request-timeout-ms=1000",
        "--etcd-endpoint-interval-ms=300",
    ];
    let (serving, proxy) = Serving::behind_proxy(&flags).await;
    let Serving {
        site, mut replica, ..
    } = serving;
    let client = HealthClient::new(site.channel(&mut replica, None).await);
    let reaches = async |wanted: ServingStatus, service: &str| {
        let what = format!("{service:?} is {wanted:?}");
        eventually(SOON, &what, async || {
            let request = HealthCheckRequest {
                service: service.to_owned(),
            };
            let answer = client.clone().check(request).await;
            same(
                answer.map_err(|error| error.to_string())?.into_inner().status(),
                wanted,
            )
        })
        .await;
    };
    for service in ["", SERVICE] {
        reaches(ServingStatus::Serving, service).await;
    }
    proxy.set(Network::Resets);
    for service in ["", SERVICE] {
        reaches(ServingStatus::NotServing, service).await;
    }
    proxy.set(Network::Passes);
    reaches(ServingStatus::Serving, SERVICE).await;
}
