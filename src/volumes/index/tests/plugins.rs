//! Plugins and their statuses.

use prost::Message;

use super::*;

/// INV-12: it may be a volume of any plugin, and a status may be all that says where the volumes of its plugin were made.
#[test]
fn a_status_without_a_plugin_stays_while_a_volume_may_use_it() {
    let mut index = full();
    let status = kv(
        keys().plugin_status(&name("p")),
        PluginStatus::default().encode_to_vec(),
        20,
    );
    events(&mut index, Part::Plugins, vec![status]);
    let left_over = |index: &Index| index.statuses_left_over().count();
    assert_eq!(left_over(&index), 0, "two volumes use it");
    let [a, b] = ["a", "b"].map(|text| keys().volume(&name(text)));
    index.note(&a, Err(Revision(21)));
    events(&mut index, Part::Volumes, vec![kv(b.clone(), vec![0xff], 22)]);
    assert!(!index.is_used(&name("p")));
    assert_eq!(left_over(&index), 0, "one cannot be read");
    index.note(&b, Err(Revision(23)));
    assert_eq!(left_over(&index), 1);
}

#[test]
fn a_plugin_that_is_listed_again_unchanged_is_no_change() {
    let mut index = full();
    let plugin = |at| kv(keys().plugin(&name("p")), Vec::new(), at);
    let change = [Change::Plugin(name("p"))];
    assert_eq!(events(&mut index, Part::Plugins, vec![plugin(20)]), change);
    assert_eq!(listed(&mut index, Part::Plugins, vec![plugin(20)], 30), []);
    assert_eq!(events(&mut index, Part::Plugins, vec![plugin(31)]), change);
    assert_eq!(listed(&mut index, Part::Plugins, vec![], 40), change);
    assert!(index.plugin(&name("p")).is_none());
}
