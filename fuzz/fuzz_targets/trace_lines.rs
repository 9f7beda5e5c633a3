//! Any bytes are a trace or an error with a line number; what is replayed prints valid lines, and twice the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::replay::Replay;
use tollgate::rules;

const RULES: &str = r#"
rules:
  - { name: user, key: "user:{user_id}", limit: 10/s burst 3 }
  - { name: every, key: "user:{user_id}", limit: 2 every 5s, aligned: true, missing: shared }
  - { name: queue, key: "ip:{ip}", limit: 5/s queue 3 free 1 }
  - { name: window, key: global, limit: 9/min, algorithm: fixed_window, window: spread }
  - { name: log, key: "endpoint:{endpoint}", limit: 4/s, algorithm: sliding_window_log, mode: shadow }
  - { name: counter, key: "x:{user_id}:{endpoint}", limit: 4/s, algorithm: sliding_window_counter, window: first }
"#;

fn replayed(trace: &[u8]) -> (Vec<u8>, Option<String>) {
    let mut out = Vec::new();
    let rules = rules::parse("rules.yaml", RULES).expect("the rules above are fine");
    let result = Replay::new(rules).run(trace, |step| {
        step.write_json(&mut out);
        Ok(())
    });
    (out, result.err().map(|error| error.to_string()))
}

fuzz_target!(|trace: &[u8]| {
    let (out, error) = replayed(trace);
    assert!(std::str::from_utf8(&out).is_ok());
    assert!(error.as_ref().is_none_or(|error| error.starts_with("line ")));
    assert_eq!(replayed(trace), (out, error));
});
