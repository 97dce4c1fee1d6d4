//! Agents: the controllers that serve them, the DaemonSet for workers, and the unit for systemd.

use std::fs;

use clap::{Command, CommandFactory as _};
use serde_json::Value;

use super::kustomize::{Deploy, OVERLAYS, pod_specs, shipped};
use crate::support::quorate::binary;

const CONTROL: &str = "agents/control";
const WORKERS: &str = "agents/workers";

fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("there is no {kind} {name}"))
}

fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let mut list = list.as_array().unwrap().iter();
    list.find(|entry| entry["name"] == name)
        .unwrap_or_else(|| panic!("there is no {name}"))
}

fn agent() -> Command {
    let command = quorate::cli::Cli::command();
    command.find_subcommand("agent").unwrap().clone()
}

#[test]
fn the_controllers_read_the_authorities_where_the_secret_is_mounted() {
    let deploy = Deploy::prepared();
    let objects = deploy.objects(CONTROL);
    let deployment = object(&objects, "Deployment", "quorate");
    let pod = &deployment["spec"]["template"]["spec"];
    let container = named(&pod["containers"], "quorate");
    let ca_dir = named(&container["env"], "QUORATE_CA_DIR")["value"]
        .as_str()
        .unwrap();
    let mount = named(&container["volumeMounts"], "ca");
    // Where `quorate ca init` writes them.
    assert_eq!(mount["mountPath"], format!("{ca_dir}/current"));
    let secret = &named(&pod["volumes"], "ca")["secret"]["secretName"];
    let secret = object(&objects, "Secret", secret.as_str().unwrap());
    let files: Vec<&str> = secret["data"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        files,
        ["etcd-ca.crt", "etcd-ca.key", "node-ca.crt", "node-ca.key"]
    );
    // Where `quorate ca rotate` writes the next ones.
    let mount = named(&container["volumeMounts"], "ca-next");
    assert_eq!(mount["mountPath"], format!("{ca_dir}/next"));
    let next = &named(&pod["volumes"], "ca-next")["secret"];
    assert_eq!(
        (&next["secretName"], &next["optional"]),
        (&"quorate-ca-next".into(), &true.into())
    );
    // The patch keeps the fields of the base.
    assert!(container["readinessProbe"].is_object());
    named(&container["env"], "QUORATE_NODE_ID");
}

/// The other way to make the Secret: for an overlay without the generator.
#[test]
fn the_secret_that_quorate_ca_init_prints_is_the_one_that_the_controllers_mount() {
    let printed = std::process::Command::new(binary())
        .args(["ca", "init", "-o", "secret"])
        .output()
        .unwrap();
    let printed: Value = serde_saphyr::from_str(&String::from_utf8(printed.stdout).unwrap()).unwrap();
    let patch = fs::read_to_string(shipped().join(CONTROL).join("deployment.yaml")).unwrap();
    let patch: Value = serde_saphyr::from_str(&patch).unwrap();
    let mounted = named(&patch["spec"]["template"]["spec"]["volumes"], "ca");
    assert_eq!(printed["metadata"]["name"], mounted["secret"]["secretName"]);
    let deploy = Deploy::prepared();
    let objects = deploy.objects(CONTROL);
    let pods = pod_specs(&objects);
    let generated = pods.iter().find_map(|(_, pod)| {
        let mut volumes = pod["volumes"].as_array()?.iter();
        volumes.find(|volume| volume["name"] == "ca")?["secret"]["secretName"].as_str()
    });
    let generated = object(&objects, "Secret", generated.unwrap());
    let files = |data: &Value| data.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(files(&printed["stringData"]), files(&generated["data"]));
    assert_eq!(printed["type"], generated["type"]);
}

/// The authorities lie in one, and the holder of their keys holds the cluster.
#[test]
fn no_shipped_role_reads_secrets() {
    let deploy = Deploy::prepared();
    let mut roles = 0;
    for folder in OVERLAYS.iter().chain([&WORKERS]) {
        let objects = deploy.objects(folder);
        let is_role = |object: &&Value| object["kind"].as_str().is_some_and(|kind| kind.ends_with("Role"));
        for role in objects.iter().filter(is_role) {
            roles += 1;
            for rule in role["rules"].as_array().unwrap() {
                let resources = rule["resources"].as_array().into_iter().flatten();
                let mut names = resources.filter_map(Value::as_str);
                assert!(
                    names.all(|name| name != "*" && name.split('/').next() != Some("secrets")),
                    "{folder}: {rule}"
                );
            }
        }
    }
    assert!(roles > 0);
}

#[test]
fn the_port_for_agents_is_open_to_every_address_and_the_service_leads_to_it() {
    let deploy = Deploy::prepared();
    let objects = deploy.objects(CONTROL);
    let deployment = object(&objects, "Deployment", "quorate");
    let container = named(&deployment["spec"]["template"]["spec"]["containers"], "quorate");
    let port = named(&container["ports"], "control");
    let listen = named(&container["env"], "QUORATE_CONTROL_LISTEN")["value"]
        .as_str()
        .unwrap();
    assert!(
        listen.ends_with(&format!(":{}", port["containerPort"])),
        "{listen}"
    );
    let command = quorate::cli::Cli::command();
    let run = command.find_subcommand("run").unwrap();
    let mut arguments = run.get_arguments();
    let flag = arguments.find(|argument| argument.get_id() == "control_listen");
    assert_eq!(
        flag.unwrap().get_default_values(),
        [listen],
        "the port that the manuals name"
    );
    let policy = object(&objects, "NetworkPolicy", "quorate-control");
    let rule = &policy["spec"]["ingress"][0];
    assert_eq!(rule["ports"][0]["port"], port["name"]);
    assert_eq!(rule["from"], Value::Null);
    let service = object(&objects, "Service", "quorate-control");
    assert_eq!(service["spec"]["ports"][0]["targetPort"], port["name"]);
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    for selector in [
        &service["spec"]["selector"],
        &policy["spec"]["podSelector"]["matchLabels"],
    ] {
        for (name, value) in selector.as_object().unwrap() {
            assert_eq!(&labels[name], value);
        }
    }

    let workers = deploy.objects(WORKERS);
    let (_, pod) = pod_specs(&workers)[0];
    let server = named(&pod["containers"][0]["env"], "QUORATE_SERVER")["value"]
        .as_str()
        .unwrap();
    let spec = &service["metadata"];
    let expected = format!(
        "https://{}.{}.svc:{}",
        spec["name"].as_str().unwrap(),
        spec["namespace"].as_str().unwrap(),
        service["spec"]["ports"][0]["port"]
    );
    assert_eq!(server, expected);
}

#[test]
fn an_agent_reads_every_setting_and_finds_its_files_where_they_are_on_the_node() {
    let command = agent();
    let known: Vec<&str> = command
        .get_arguments()
        .filter_map(|argument| argument.get_env()?.to_str())
        .collect();
    let deploy = Deploy::prepared();
    let objects = deploy.objects(WORKERS);
    let pods = pod_specs(&objects);
    let [(_, pod)] = &pods[..] else {
        panic!("{} workloads", pods.len());
    };
    let container = &pod["containers"][0];
    for setting in container["env"].as_array().unwrap() {
        let name = setting["name"].as_str().unwrap();
        assert!(known.contains(&name), "no flag reads {name}; known: {known:?}");
    }
    let value = |name: &str| {
        named(&container["env"], name)["value"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    for volume in ["state", "plugins"] {
        let mounted = named(&container["volumeMounts"], volume)["mountPath"].clone();
        assert_eq!(
            mounted,
            named(&pod["volumes"], volume)["hostPath"]["path"],
            "{volume}"
        );
    }
    let state = named(&container["volumeMounts"], "state");
    assert_eq!(state["mountPath"], value("QUORATE_STATE_DIR"));
    assert_eq!(state["mountPropagation"], "Bidirectional");
    let token = named(&container["volumeMounts"], "token");
    assert_eq!(
        format!("{}/token", token["mountPath"].as_str().unwrap()),
        value("QUORATE_JOIN_TOKEN_FILE")
    );
    let secret = named(&pod["volumes"], "token")["secret"]["secretName"]
        .as_str()
        .unwrap();
    assert!(object(&objects, "Secret", secret)["data"]["token"].is_string());
    let listen = value("QUORATE_LISTEN");
    assert!(
        listen.ends_with(&format!(":{}", container["ports"][0]["containerPort"])),
        "{listen}"
    );
    assert_eq!(pod["automountServiceAccountToken"], false);
    let namespace = object(&objects, "Namespace", "quorate-agents");
    assert_eq!(
        namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"],
        "privileged"
    );
    for object in objects.iter().filter(|object| object["kind"] != "Namespace") {
        assert_eq!(object["metadata"]["namespace"], "quorate-agents");
    }
}

/// The text of a unit of systemd.
fn unit(name: &str) -> String {
    fs::read_to_string(shipped().join("agents").join(name)).unwrap()
}

/// The values of a setting of a unit.
fn settings(unit: &str, name: &str) -> Vec<String> {
    let begins = format!("{name}=");
    let values = unit.lines().filter_map(|line| line.strip_prefix(&begins));
    values.map(str::to_owned).collect()
}

#[test]
fn the_unit_of_etcd_reads_what_the_agent_writes_and_is_started_by_it_alone() {
    let (agent, etcd) = (unit("quorate-agent.service"), unit("quorate-etcd.service"));
    let state = format!("/var/lib/{}", settings(&agent, "StateDirectory")[0]);
    // Without the file there is no etcd to start: no dash before it.
    assert_eq!(settings(&etcd, "EnvironmentFile"), [format!("{state}/etcd.env")]);
    assert_eq!(settings(&etcd, "ReadWritePaths"), [state]);
    assert!(!etcd.contains("[Install]"), "the agent starts it");
    // The agent of a node that has no etcd stops none with itself.
    for binding in ["Requires", "BindsTo", "PartOf"] {
        assert!(settings(&etcd, binding).is_empty() && settings(&agent, binding).is_empty());
    }
}

#[test]
fn the_unit_starts_an_agent_and_no_removed_one_again() {
    let unit = unit("quorate-agent.service");
    let values = |name: &str| settings(&unit, name);
    let start = values("ExecStart").remove(0);
    let mut words = start.split(' ').map(str::to_owned).skip(1).collect::<Vec<_>>();
    assert_eq!(words[0], "agent");
    // As the file of the environment says.
    let server = unit
        .lines()
        .find_map(|line| line.strip_prefix("#   QUORATE_SERVER="));
    words.push(format!("--server={}", server.unwrap()));
    let parsed = agent()
        .try_get_matches_from(words)
        .unwrap_or_else(|error| panic!("{error}"));
    let state = parsed.get_one::<std::path::PathBuf>("state_dir").unwrap();
    assert_eq!(
        state.display().to_string(),
        format!("/var/lib/{}", values("StateDirectory")[0])
    );
    assert!(
        values("RestartPreventExitStatus")[0]
            .split(' ')
            .any(|code| code == "4")
    );
    assert_eq!(values("Restart"), ["always"]);
    // Decision 36: an etcd that is a child of the agent outlives it.
    assert_eq!(values("KillMode"), ["process"]);
    assert_eq!(values("OOMPolicy"), ["continue"]);
    // As the agent makes it: programs of other users pass through to the volumes.
    assert_eq!(values("StateDirectoryMode"), ["0711"]);
    for variable in values("Environment") {
        let (name, _) = variable.split_once('=').unwrap();
        let command = agent();
        let mut known = command.get_arguments().filter_map(|argument| argument.get_env());
        assert!(known.any(|known| known == name), "{name}");
    }
}
