//! Bundles: `bundle.yaml` and manifests.

use quorate::resources::Bundle;

/// What divides the files of an input.
const DIVIDER: &str = "\n=====\n";

/// Reads a text as a bundle: `bundle.yaml`, then manifests.
pub fn bundle(data: &[u8]) {
    let files = crate::text(data).split(DIVIDER).enumerate().map(|(at, text)| {
        let name = match at {
            0 => "bundle.yaml".to_owned(),
            at => format!("{at}.yaml"),
        };
        (name, text.to_owned())
    });
    match Bundle::parse("a-bundle", files.collect()) {
        Ok(bundle) => {
            assert!(bundle.min_reconciler_release <= bundle.release(), "{bundle:?}");
            assert!(bundle.min_apiserver_release <= bundle.release(), "{bundle:?}");
        }
        Err(bad) => {
            assert!(!bad.faults.is_empty());
            let said = bad.to_string();
            assert!(said.contains("a-bundle") && said.contains(".yaml"), "{said}");
        }
    }
}
