//! The values of a Secret. No message has one in it.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use serde::Deserialize;

use super::calls::get;
use super::client::{KubeClient, Representation};
use super::discovery::Resource;
use super::error::{Cause, Error};
use super::object::ObjectRef;
use crate::wipe::wipe;

/// What counts of a Secret.
#[derive(Deserialize)]
struct Answer {
    data: Option<BTreeMap<String, ByteString>>,
}

impl KubeClient {
    /// Reads the values of a Secret; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error`] if the server did not say whether it exists.
    pub async fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<BTreeMap<String, Vec<u8>>>, Error> {
        let resource = Resource {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "Secret".to_owned(),
            plural: "secrets".to_owned(),
            namespaced: true,
        };
        let object = ObjectRef {
            group: String::new(),
            kind: "Secret".to_owned(),
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        };
        let call = get(&resource, &object, Representation::Full);
        let mut body = match self.call(&call).await {
            Ok(body) => body,
            Err(error) if matches!(error.cause, Cause::Absent(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let read = serde_json::from_slice::<Answer>(&body);
        wipe(&mut body);
        // The parser's message may quote a value.
        let answer = read.map_err(|_| call.error(Cause::Malformed("it is no Secret".to_owned())))?;
        let data = answer.data.unwrap_or_default();
        let values = data.into_iter().map(|(key, ByteString(value))| (key, value));
        Ok(Some(values.collect()))
    }
}
