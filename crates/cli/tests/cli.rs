//! The command as its users meet it: arguments in, output and exit code out.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs the command in an environment that has none of our variables.
fn tollgate(args: &[&str]) -> Output {
    tollgate_with(args, "", &[])
}

fn tollgate_with(args: &[&str], input: &str, variables: &[(&str, &str)]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(args)
        .env_clear()
        .envs(variables.iter().copied())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    // A command that does not read its input may be gone already.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    child.wait_with_output().expect("the command ends")
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Standard error, without the line that says where rules come from.
fn err(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).expect("text");
    match text.split_once('\n') {
        Some((line, rest)) if line.starts_with("no server is running") => rest.to_owned(),
        _ => text,
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("not killed")
}

fn json_lines(output: &Output) -> Vec<Value> {
    out(output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// A file that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tollgate-cli-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("a writable temporary folder");
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a plain path")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const BAD_RULES: &str = "rules:\n  - { key: global, limt: 1/s }\n  - { name: b, key: global, limit: 0/s }\n";

#[test]
fn check_says_what_becomes_of_a_request_and_exits_accordingly() {
    let request = ["check", "--user-id", "42", "--plan", "free"];
    let allowed = tollgate(&request);
    assert_eq!((code(&allowed), err(&allowed)), (0, String::new()));
    assert_eq!(out(&allowed), "allowed  49 of 50 left  [per-user-free: user:42]\n");

    let refused = tollgate(&[&request[..], &["--cost", "51"]].concat());
    assert_eq!(code(&refused), 1);
    assert_eq!(out(&refused), "refused  a cost of 51 never fits a limit of 50  [per-user-free: user:42]\n");

    let unlimited = tollgate_with(&["check", "--rules", "-"], "rules: []", &[]);
    assert_eq!((code(&unlimited), out(&unlimited)), (0, "allowed  no limit applies\n".to_owned()));
}

#[test]
fn a_repeated_check_exits_with_1_if_any_was_refused() {
    let rules = "rules: [{ name: slow, key: global, limit: 2/h }]";
    let output = tollgate_with(&["check", "--rules", "-", "--repeat", "3"], rules, &[]);
    assert_eq!(code(&output), 1);
    let lines: Vec<String> = out(&output).lines().map(str::to_owned).collect();
    assert_eq!(lines[1], "allowed  0 of 2 left  [slow: global]");
    assert!(lines[2].starts_with("refused  try again in "), "{}", lines[2]);
    assert_eq!(lines.len(), 3);
}

#[test]
fn check_as_json_has_the_body_of_the_http_api() {
    let args = ["check", "--user-id", "42", "--plan", "free", "--attr", "beta=true", "--json"];
    let lines = json_lines(&tollgate(&args));
    assert_eq!(lines.len(), 1);
    let fields: Vec<&str> = lines[0].as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = [
        "allowed",
        "degraded",
        "delay_ms",
        "limit",
        "limits",
        "remaining",
        "reset_after_ms",
        "retry_after_ms",
        "violated_rule",
        "violated_tier",
    ];
    let mut sorted = fields.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, expected);
    assert_eq!((&lines[0]["limit"], &lines[0]["remaining"]), (&50.into(), &49.into()));
    assert_eq!(lines[0]["limits"][0]["key"], "user:42");
}

#[test]
fn every_flag_can_be_a_variable_and_the_flag_wins() {
    let variables =
        [("TOLLGATE_USER_ID", "7"), ("TOLLGATE_PLAN", "pro"), ("TOLLGATE_JSON", "1"), ("TOLLGATE_COST", "2")];
    let lines = json_lines(&tollgate_with(&["check", "--user-id", "8"], "", &variables));
    assert_eq!(lines[0]["limits"][0]["key"], "user:8");
    assert_eq!(lines[0]["remaining"], 498);
    let off = tollgate_with(&["check"], "", &[("TOLLGATE_JSON", "0")]);
    assert!(out(&off).starts_with("allowed  "));
}

#[test]
fn lint_counts_good_rules_and_draws_bad_ones() {
    let good = tollgate(&["rules", "lint", "../../examples/rules/starter.yaml"]);
    assert_eq!((code(&good), out(&good), err(&good)), (0, "ok: 6 rules\n".to_owned(), String::new()));

    let file = Scratch::new("lint.yaml", BAD_RULES);
    let bad = tollgate(&["rules", "lint", file.path()]);
    assert_eq!((code(&bad), out(&bad)), (2, String::new()));
    let drawn = err(&bad);
    assert!(drawn.contains("unknown field `limt`") && drawn.contains("^^^^"), "{drawn}");
    assert!(drawn.contains("= help: did you mean `limit`?"), "{drawn}");
    assert!(drawn.ends_with(": 2 problems\n"), "{drawn}");
    assert!(!drawn.contains('\x1b'), "colours without a terminal");

    let colored = tollgate(&["rules", "lint", file.path(), "--color", "always"]);
    assert!(err(&colored).contains('\x1b'));

    let report = tollgate(&["rules", "lint", file.path(), "--json"]);
    assert_eq!(code(&report), 2);
    let report = &json_lines(&report)[0];
    assert_eq!((&report["ok"], &report["problems"][0]["line"]), (&false.into(), &2.into()));
}

#[test]
fn bad_rules_stop_every_command_that_needs_them() {
    for command in [&["check"][..], &["explain"], &["rules", "list"], &["replay", "--trace", "x"]] {
        let output = tollgate_with(&[command, &["--rules", "-"]].concat(), BAD_RULES, &[]);
        assert_eq!(code(&output), 2, "{command:?}");
        assert!(err(&output).contains("<stdin>:2:20"), "{}", err(&output));
    }
}

#[test]
fn a_missing_file_is_named_together_with_the_way_out() {
    let rules = tollgate(&["check", "--rules", "no/such.yaml"]);
    assert_eq!(code(&rules), 2);
    assert_eq!(
        err(&rules),
        "error: cannot read the rules no/such.yaml: No such file or directory (os error 2); name another with \
         --rules, or leave it out for the built-in starter set\n"
    );
    let trace = tollgate(&["replay", "--trace", "no/such.jsonl"]);
    assert_eq!(code(&trace), 2);
    assert!(err(&trace).starts_with("error: cannot read the trace no/such.jsonl: "), "{}", err(&trace));
    assert_eq!(code(&tollgate(&["replay"])), 2);
    assert_eq!(code(&tollgate(&["check", "--ip", "nowhere"])), 2);
}

#[test]
fn list_and_show_know_the_starter_set() {
    let list = tollgate(&["rules", "list"]);
    assert_eq!(code(&list), 0);
    let first = out(&list).lines().nth(1).expect("a rule").to_owned();
    let words: Vec<&str> = first.split_whitespace().collect();
    assert_eq!(
        words,
        [
            "per-user-free",
            "user:{user_id}",
            "user",
            "free",
            "10/s",
            "burst",
            "50",
            "token_bucket",
            "enforce",
            "-"
        ]
    );
    assert_eq!(json_lines(&tollgate(&["rules", "list", "--json"])).len(), 6);

    let show = out(&tollgate(&["rules", "show", "per-user-free"]));
    assert!(show.contains("Each user_id has a bucket of 50 tokens, to which 10/s come back"), "{show}");
    let show = json_lines(&tollgate(&["rules", "show", "per-user-free", "--json"]));
    assert_eq!(show[0]["written"]["limit"], "10/s burst 50");

    let typo = tollgate(&["rules", "show", "per-user-fre"]);
    assert_eq!(code(&typo), 2);
    assert_eq!(err(&typo), "error: there is no rule `per-user-fre`; did you mean `per-user-free`?\n");
}

#[test]
fn explain_says_why_and_who_speaks() {
    let args = ["explain", "--user-id", "42", "--plan", "free"];
    let words = out(&tollgate(&args));
    assert!(words.contains("50 of 50 left  <- speaks"), "{words}");
    assert!(words.contains("only where plan is pro; here it is free"), "{words}");
    let report = &json_lines(&tollgate(&[&args[..], &["--json"]].concat()))[0];
    assert_eq!(report["rules"][0]["speaks"], true);
    assert_eq!(report["rules"][1]["applies"], false);
    assert_eq!(report["decision"]["limits"][0]["rule"], "per-user-free");
}

#[test]
fn replay_prints_a_line_for_each_line() {
    let folder = "../../tests/replay/tiers";
    let args = ["replay", "--rules", &format!("{folder}/rules.yaml"), "--json", "--trace"];
    let golden = std::fs::read_to_string(format!("{folder}/expected.jsonl")).expect("a golden file");
    let trace = std::fs::read_to_string(format!("{folder}/trace.jsonl")).expect("a trace");
    let from_file = tollgate(&[&args[..], &[&format!("{folder}/trace.jsonl")]].concat());
    assert_eq!((code(&from_file), out(&from_file)), (0, golden.clone()));
    assert_eq!(out(&tollgate_with(&[&args[..], &["-"]].concat(), &trace, &[])), golden);
}

#[test]
fn a_bad_line_stops_a_replay_with_its_number_and_what_came_before_is_printed() {
    let trace = "{\"t_us\": 0}\n\n{\"t_us\": 1, \"user_id\": \"a\"}\n{\"t_us\": 2}\n";
    let output = tollgate_with(&["replay", "--trace", "-", "--json"], trace, &[]);
    assert_eq!(code(&output), 2);
    assert_eq!(json_lines(&output).len(), 1);
    assert_eq!(
        err(&output),
        "error: <stdin>: line 3: column 21: unknown field `user_id`, expected one of `t_us`, `op`, `cost`, \
         `attributes`, `rules`\n"
    );
}

#[test]
fn a_replay_is_summed_up_for_people() {
    let output = tollgate(&["replay", "--trace", "../../examples/traces/one-greedy-user.jsonl"]);
    assert_eq!((code(&output), err(&output)), (0, String::new()));
    let words = out(&output);
    assert!(words.starts_with("383 checks in 59.67 s of the trace's time\n"), "{words}");
    assert!(words.contains("user:42  per-user-free       89"), "{words}");
    assert!(words.contains("Longest wait: "), "{words}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["check", "--repeat", "100000"])
        .env("TOLLGATE_DATA_DIR", "no-data")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the command ends");
    assert_eq!((code(&output), err(&output)), (0, String::new()));
}

#[test]
fn version_and_completions_are_there() {
    assert_eq!(out(&tollgate(&["--version"])), format!("tollgate {}\n", env!("CARGO_PKG_VERSION")));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = tollgate(&["completions", shell]);
        assert!(code(&script) == 0 && out(&script).contains("replay"), "{shell}");
    }
}

#[test]
fn doctor_exits_with_0_when_nothing_fails_and_2_otherwise() {
    let memory = tollgate(&["doctor"]);
    assert_eq!((code(&memory), err(&memory)), (0, String::new()));
    assert!(out(&memory).starts_with("store memory\n\n  ok    rules "), "{}", out(&memory));
    assert!(out(&memory).ends_with("\nnothing fails, 0 warnings\n"), "{}", out(&memory));

    // Nothing listens on port 1, and the password is nobody's business.
    let away = tollgate(&["doctor", "--store", "redis://:canary@127.0.0.1:1"]);
    assert_eq!(code(&away), 2);
    let text = out(&away);
    assert!(text.contains("fail  reachable    connection refused\n"), "{text}");
    assert!(text.contains("start Redis there") && text.ends_with("\n1 check fails, 0 warnings\n"), "{text}");
    assert!(!(text + &err(&away)).contains("canary"));
}

#[test]
fn doctor_speaks_json_and_looks_at_the_rules() {
    let rules = Scratch::new("doctor.yaml", BAD_RULES);
    let bad = tollgate(&["doctor", "--json", "--rules", rules.path()]);
    assert_eq!((code(&bad), err(&bad)), (2, String::new()));
    let report = &json_lines(&bad)[0];
    assert_eq!(report["ok"], false);
    assert_eq!(report["store"], "memory");
    let findings = report["findings"].as_array().expect("a list");
    assert_eq!(findings[0]["check"], "rules");
    assert_eq!(findings[0]["level"], "fail");
    assert_eq!(findings[1]["level"], "ok");
}
