//! What an agent exports.

use crate::managers::site::Managers;
use crate::support::collector::{Collector, text};

#[tokio::test]
async fn an_agent_exports_the_steps_that_it_takes_with_its_etcd() {
    let managers = Managers::start().await;
    let collector = Collector::start().await;
    let flags = ["--etcd-ends-with-agent", &collector.flag()];
    let mut n2 = managers.worker_with("n2", &flags).await;
    managers.voter(&n2).await;
    // One that was refused, such as for a port that was taken, is tried again.
    collector
        .finds("the start of its etcd", |spans| {
            let mut steps = spans.named("step etcd");
            steps.find(|step| {
                let of = |key| text(&step.attributes, key);
                (of("quorate.does"), of("quorate.code")) == ("start etcd", "OK")
            })?;
            Some(())
        })
        .await;
    let resource = collector.resource();
    assert_eq!(text(&resource, "service.name"), "quorate-agent");
    assert_eq!(text(&resource, "service.instance.id"), "n2");
    managers.demote("n2").await;
    n2.rests().await;
    // Etcd may have ended before it was stopped: its member was taken out.
    for does in ["note the member", "set the data aside", "forget the member"] {
        collector
            .finds(does, |spans| {
                let mut steps = spans.named("step etcd");
                steps.find(|step| text(&step.attributes, "quorate.does") == does)?;
                Some(())
            })
            .await;
    }
    n2.stop().await.unwrap();
}
