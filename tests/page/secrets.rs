//! Nothing secret is on the page.

use super::viewer::Viewer;
use super::{content, page, shown};
use crate::support::base::{Base, document};
use crate::support::quorate::Launch;

#[tokio::test]
async fn no_value_of_a_secret_is_in_the_page_the_state_or_an_event() {
    const VALUE: &str = "correct-horse-battery-staple";
    let base = Base::start().await;
    let secret = format!(
        "apiVersion: quorate.dev/v1\nkind: Secret\nmetadata: {{name: credentials}}\nstringData: {{password: {VALUE}}}\n---\n"
    );
    let plugin = document(
        "Plugin",
        "demo.csi",
        "{endpoint: \"unix:///nonexistent/csi.sock\"}",
    );
    let volume = document(
        "Volume",
        "data",
        "{driver: {name: demo.csi}, secrets: [{key: password, secret: credentials}], \
          accessMode: {scope: singleNode, sharing: none, mount: {fsType: ext4}}}",
    );
    base.apply(&format!("{secret}{plugin}{volume}")).await;
    let mut replica = Launch::on(&base.etcd).start("r1");
    replica.wait_leading().await;
    let state = shown(&replica, "the volume is shown", |state| {
        content(state, "volumes")["states"]["creating"] == 1
    })
    .await;
    let mut viewer = Viewer::open(replica.port).await;
    let event = format!("{:?}", viewer.next().await);
    for text in [state.to_string(), page(&replica).await, event] {
        assert!(text.contains("demo.csi"), "the plugin is shown: {text}");
        assert!(!text.contains(VALUE) && !text.contains("credentials"), "{text}");
    }
}
