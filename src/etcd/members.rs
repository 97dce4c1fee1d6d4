//! The cluster's own members.

use super::connect::Etcd;
use super::error::Error;

impl Etcd {
    /// The names of all members, learners too; a member that was never started has none and is left out.
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer with a result.
    pub async fn member_names(&self) -> Result<Vec<String>, Error> {
        let listed = self
            .call("member_list", |link| async move {
                link.client.cluster_client().member_list().await
            })
            .await?;
        let names = listed.members().iter().map(|member| member.name().to_owned());
        Ok(names.filter(|name| !name.is_empty()).collect())
    }
}
