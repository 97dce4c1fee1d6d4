//! tmp
#![allow(missing_docs)]
#[derive(Clone)]
pub struct KubeClient;
impl KubeClient {
    pub async fn connect(_: Option<&std::path::Path>) -> Result<Self, String> {
        Ok(Self)
    }
}
