//! Everything in `deploy/` is read, and compared with what `tollgate serve` understands.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod yaml;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tollgate_tests::poll;
use tollgate_tests::scratch::Scratch;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    let path = root().join("deploy").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn documents(name: &str) -> Vec<Value> {
    yaml::documents(name, &read(name))
}

/// The flags and variables of `tollgate serve`.
struct Understood {
    flags: BTreeSet<String>,
    variables: BTreeSet<String>,
}

impl Understood {
    fn ask() -> Self {
        let help = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["serve", "--help"]).output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        let words = || help.split(|letter: char| !(letter.is_ascii_alphanumeric() || "-_".contains(letter)));
        let those = |begin: &str| words().filter(|word| word.starts_with(begin)).map(str::to_owned).collect();
        Understood { flags: those("--"), variables: those("TOLLGATE_") }
    }

    /// Arguments as they are given to the binary.
    fn assert_command<'a>(&self, file: &str, arguments: impl IntoIterator<Item = &'a str>) {
        let mut arguments = arguments.into_iter();
        assert_eq!(arguments.next(), Some("serve"), "{file}");
        for flag in arguments.filter(|argument| argument.starts_with("--")) {
            assert!(self.flags.contains(flag), "{file}: `tollgate serve` knows no {flag}");
        }
    }

    fn assert_variable(&self, file: &str, name: &str) {
        assert!(self.variables.contains(name), "{file}: `tollgate serve` knows no {name}");
    }
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item.as_str().unwrap()).collect()
}

#[test]
fn kubernetes_manifests_are_of_the_expected_kinds_and_start_what_there_is() {
    let understood = Understood::ask();
    let manifests = documents("kubernetes/tollgate.yaml");
    let kinds: Vec<_> = manifests.iter().map(|manifest| manifest["kind"].as_str().unwrap()).collect();
    let expected = [
        "ConfigMap",
        "Deployment",
        "Service",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "NetworkPolicy",
    ];
    assert_eq!(kinds, expected);
    assert!(manifests.iter().all(|manifest| manifest["metadata"]["name"] == "tollgate"));
    let [config, deployment, service, scaler, budget, policy] = &manifests[..] else {
        panic!("six documents")
    };

    let pod = &deployment["spec"]["template"];
    let labels = &pod["metadata"]["labels"];
    for selected in [
        &deployment["spec"]["selector"]["matchLabels"],
        &service["spec"]["selector"],
        &budget["spec"]["selector"]["matchLabels"],
        &policy["spec"]["podSelector"]["matchLabels"],
    ] {
        assert_eq!(selected, labels, "who is selected is who is started");
    }
    let container = &pod["spec"]["containers"][0];
    understood.assert_command("kubernetes/tollgate.yaml", texts(&container["args"]));
    let mounts: Vec<_> =
        container["volumeMounts"].as_array().unwrap().iter().map(|mount| &mount["mountPath"]).collect();
    for variable in container["env"].as_array().unwrap() {
        understood.assert_variable("kubernetes/tollgate.yaml", variable["name"].as_str().unwrap());
        if let Some(path) = variable["value"].as_str().filter(|value| value.starts_with('/')) {
            let is_below = |mount: &&Value| path.starts_with(mount.as_str().unwrap());
            assert!(mounts.iter().any(is_below), "{path} is not mounted");
        }
    }
    assert_eq!(container["ports"][0]["name"], service["spec"]["ports"][0]["targetPort"]);
    for port in [0, 1] {
        assert_eq!(container["ports"][port]["name"], policy["spec"]["ingress"][port]["ports"][0]["port"]);
    }
    assert_eq!(scaler["spec"]["scaleTargetRef"]["kind"], "Deployment");
    let sources = pod["spec"]["volumes"][1]["projected"]["sources"].as_array().unwrap();
    assert_eq!(sources[0]["configMap"]["name"], config["metadata"]["name"]);
    let secrets =
        sources[1]["secret"]["items"].as_array().unwrap().iter().map(|item| item["path"].as_str().unwrap());
    let mounted: BTreeSet<&str> =
        config["data"].as_object().unwrap().keys().map(String::as_str).chain(secrets).collect();
    for variable in container["env"].as_array().unwrap() {
        if let Some(name) = variable["value"].as_str().and_then(|value| value.strip_prefix("/etc/tollgate/"))
        {
            assert!(mounted.contains(name), "{name} is not in the volume");
        }
    }

    let monitor = &documents("kubernetes/podmonitor.yaml")[..];
    let [monitor] = monitor else { panic!("one document: {monitor:?}") };
    assert_eq!(monitor["kind"], "PodMonitor");
    assert_eq!(&monitor["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["port"], container["ports"][1]["name"]);
    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["path"], "/metrics");
}

/// As in a new pod while the database is down: with the mounted files, no rules from before, and a database that refuses.
#[tokio::test]
async fn a_new_pod_serves_forward_auth_while_the_database_is_down() {
    let scratch = Scratch::new("pod");
    let manifests = documents("kubernetes/tollgate.yaml");
    for (name, text) in manifests[0]["data"].as_object().unwrap() {
        fs::write(scratch.path().join(name), text.as_str().unwrap()).unwrap();
    }
    let tokens = scratch.path().join("tokens");
    fs::write(&tokens, "app:check:0123456789abcdef\nops:write:fedcba9876543210\n").unwrap();
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o440)).unwrap(); // as the manifest mounts it
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .args([
            "serve",
            "--http",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--metrics",
            "127.0.0.1:0",
            "--ready-file",
            "ready.json",
        ])
        .current_dir(scratch.path());
    let closed = tollgate_tests::ports::free_port();
    command.env("TOLLGATE_RULES", format!("postgres://tollgate:secret@127.0.0.1:{closed}/tollgate"));
    for variable in manifests[1]["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap() {
        let Some(value) = variable["value"].as_str() else { continue };
        let value = value.replace("/etc/tollgate", ".").replace("/data", "./data");
        command.env(variable["name"].as_str().unwrap(), value);
    }
    let log = fs::File::create(scratch.path().join("log")).unwrap();
    let mut server = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    let said = |name: &str| fs::read_to_string(scratch.path().join(name)).unwrap_or_default();
    let ready = poll::until("a server that is ready", async || {
        assert!(server.try_wait().unwrap().is_none(), "{}", said("log"));
        serde_json::from_str::<Value>(&said("ready.json")).ok()
    })
    .await;
    let address = format!("http://{}", ready["http"].as_str().unwrap());

    let health = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["health", "--server", &address])
            .args(arguments)
            .output()
            .unwrap()
    };
    let (ready, live) = (health(&[]), health(&["--live"]));
    let asked = Command::new("curl")
        .args(["-si", &format!("{address}/v1/authz?deny_status=403"), "-H", "X-Original-Method: GET"])
        .args(["-H", "X-Original-URL: https://example.com/a", "-H", "X-Forwarded-For: 203.0.113.7"])
        .output()
        .unwrap();
    let checked =
        Command::new("curl").args(["-si", "-d", "{}", &format!("{address}/v1/check")]).output().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();

    assert_eq!(ready.status.code(), Some(0), "{ready:?}");
    let report: Value = serde_json::from_slice(&ready.stdout).unwrap();
    assert_eq!((&report["ready"], &report["rules"]), (&true.into(), &"stale".into()), "{report}");
    assert_eq!((live.status.code(), &*live.stdout), (Some(0), &b"ok\n"[..]));
    let asked = String::from_utf8(asked.stdout).unwrap();
    assert!(asked.starts_with("HTTP/1.1 200 OK\r\n"), "{asked}");
    assert!(asked.contains("\"fallback-per-address\";q=100"), "{asked}");
    let checked = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.starts_with("HTTP/1.1 401 "), "checks need a token: {checked}");
    assert!(said("log").contains("rules-fallback"), "{}", said("log"));
    let gone = health(&[]);
    assert_eq!(gone.status.code(), Some(2), "{gone:?}");
}

#[test]
fn compose_starts_two_tollgates_over_one_redis_and_one_postgresql() {
    let understood = Understood::ask();
    let file = &documents("docker/compose.yaml")[0];
    let services = file["services"].as_object().unwrap();
    let names: Vec<_> = services.keys().map(String::as_str).collect();
    assert_eq!(names, ["postgres", "redis", "tollgate-1", "tollgate-2"]);
    for name in ["tollgate-1", "tollgate-2"] {
        let service = &services[name];
        understood.assert_command(name, texts(&service["command"]));
        for variable in service["environment"].as_object().unwrap().keys() {
            understood.assert_variable(name, variable);
        }
        for needed in service["depends_on"].as_object().unwrap().keys() {
            assert!(services[needed]["healthcheck"].is_object(), "{needed} says when it is healthy");
        }
        let dockerfile = service["build"]["dockerfile"].as_str().unwrap();
        assert!(root().join(dockerfile).is_file(), "{dockerfile}");
        let volume = texts(&service["volumes"])[0].split_once(':').unwrap().0;
        assert!(file["volumes"].get(volume).is_some(), "{volume}");
    }
}

#[test]
fn the_unit_has_sections_and_settings_that_systemd_knows() {
    let unit = read("systemd/tollgate.service");
    let lines = unit.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (mut sections, mut command) = (Vec::new(), None);
    for line in lines {
        match line.strip_prefix('[') {
            Some(section) => sections.push(section.trim_end_matches(']')),
            None => {
                let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("no setting: {line}"));
                assert!(key.chars().all(|letter| letter.is_ascii_alphanumeric()), "{line}");
                if key == "ExecStart" {
                    command = Some(value);
                }
            }
        }
    }
    assert_eq!(sections, ["Unit", "Service", "Install"]);
    let mut words = command.unwrap().split_whitespace();
    assert_eq!(words.next(), Some("/usr/local/bin/tollgate"));
    let understood = Understood::ask();
    understood.assert_command("tollgate.service", words);
    let commented = unit.lines().filter_map(|line| line.strip_prefix("#Environment="));
    for line in commented {
        understood.assert_variable("tollgate.service", line.split('=').next().unwrap());
    }
}

/// With the binary's path replaced by ours: systemd asks whether it is there.
#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    let scratch = Scratch::new("unit");
    let unit = scratch.path().join("tollgate.service");
    let text = read("systemd/tollgate.service");
    fs::write(&unit, text.replace("/usr/local/bin/tollgate", env!("CARGO_BIN_EXE_tollgate"))).unwrap();
    let Ok(verified) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output()
    else {
        eprintln!("systemd-analyze is not here (Debian: systemd): the unit was only read");
        return;
    };
    let told = String::from_utf8_lossy(&verified.stderr);
    let of_ours: Vec<_> = told.lines().filter(|line| line.contains("tollgate.service")).collect();
    assert!(of_ours.is_empty(), "{told}");
}

/// The lines of a Dockerfile, those that go on joined.
fn instructions(text: &str) -> Vec<(String, String)> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').unwrap()).map(|(name, rest)| (name.into(), rest.into())).collect()
}

#[test]
fn the_image_is_built_from_what_is_there_and_starts_the_binary_it_has() {
    const KNOWN: [&str; 12] = [
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "ENV",
        "VOLUME",
        "EXPOSE",
        "USER",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
        "ARG",
    ];
    let understood = Understood::ask();
    let instructions = instructions(&read("docker/Dockerfile"));
    let of = |name: &str| {
        instructions
            .iter()
            .filter(|(known, _)| known == name)
            .map(|(_, rest)| rest.as_str())
            .collect::<Vec<_>>()
    };
    for (name, rest) in &instructions {
        assert!(KNOWN.contains(&name.as_str()), "{name} {rest}");
    }
    let [entry] = of("ENTRYPOINT")[..] else { panic!("one ENTRYPOINT") };
    let entry: Vec<String> = serde_json::from_str(entry).unwrap();
    let copied: Vec<&str> = of("COPY").into_iter().filter(|rest| rest.contains("--from=build")).collect();
    assert!(copied.iter().any(|rest| rest.ends_with(&entry[0])), "{entry:?} is not in the image: {copied:?}");
    let [command] = of("CMD")[..] else { panic!("one CMD") };
    let command: Vec<String> = serde_json::from_str(command).unwrap();
    understood.assert_command("Dockerfile", command.iter().map(String::as_str));
    for setting in of("ENV") {
        understood.assert_variable("Dockerfile", setting.split('=').next().unwrap());
    }
    let [health] = of("HEALTHCHECK")[..] else { panic!("one HEALTHCHECK") };
    let check: Vec<String> = serde_json::from_str(health.split_once("CMD ").unwrap().1).unwrap();
    assert_eq!(check, [&*entry[0], "health"]);
}

/// A file or a folder, without what `.dockerignore` leaves out.
fn copy(from: &Path, to: &Path) {
    if !from.is_dir() {
        fs::copy(from, to).unwrap();
        return;
    }
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        if name != "target" && name != "node_modules" {
            copy(&from.join(&name), &to.join(&name));
        }
    }
}

/// A tree of only what the Dockerfile copies, in which cargo finds every member and nothing to add to the lock file.
#[test]
fn what_the_image_copies_is_a_whole_workspace() {
    let scratch = Scratch::new("image");
    for (_, rest) in instructions(&read("docker/Dockerfile")).iter().filter(|(name, _)| name == "COPY") {
        if rest.contains("--from") {
            continue;
        }
        let words: Vec<&str> = rest.split_whitespace().collect();
        let (to, from) = words.split_last().unwrap();
        for source in from {
            let (from, into) = (root().join(source), scratch.path().join(to));
            assert!(from.exists(), "COPY {source}: it is not there");
            let target = if from.is_dir() { into } else { into.join(source) };
            copy(&from, &target);
        }
    }
    // Of this platform: what others need may never have been fetched.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", &platform])
        .current_dir(scratch.path())
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
}

#[test]
fn every_alert_has_a_page_that_says_what_it_means() {
    let page = fs::read_to_string(root().join("docs/operating/alerts.md")).unwrap();
    let file = &documents("prometheus/alerts.yaml")[0];
    let rules = file["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() > 5);
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        assert!(rule["expr"].is_string() && rule["annotations"]["summary"].is_string(), "{name}");
        assert!(page.contains(&format!("\n## {name}\n")), "alerts.md says nothing of {name}");
        let anchor = format!("docs/operating/alerts.md#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook"], anchor.as_str());
        assert!(["warning", "critical"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{name}");
    }
}

#[test]
fn prometheus_finds_nothing_wrong_with_the_alerts() {
    let file = root().join("deploy/prometheus/alerts.yaml");
    let Ok(checked) = Command::new("promtool").args(["check", "rules"]).arg(file).output() else {
        eprintln!("promtool is not here (Debian: prometheus): the alerts were only read");
        return;
    };
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn every_panel_of_the_dashboard_asks_something_and_stands_apart() {
    let dashboard: Value = serde_json::from_str(&read("grafana/tollgate.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has a number of its own");
    let mut taken = BTreeSet::new();
    for panel in panels {
        let title = &panel["title"];
        if panel["type"] != "row" {
            let asks = |target: &Value| target["expr"].as_str().is_some_and(|expr| !expr.is_empty());
            assert!(panel["targets"].as_array().unwrap().iter().all(asks), "{title}");
        }
        let at = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{title} is wider than the page");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{title} covers another panel");
            }
        }
    }
}
