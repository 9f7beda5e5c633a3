use super::*;
use crate::json::MAX_ATTRIBUTES;

fn replayed(rules: &str, trace: &str) -> Result<Vec<String>, TraceError> {
    let rules = rules::parse("rules.yaml", rules).unwrap();
    let mut lines = Vec::new();
    Replay::new(rules).run(trace.as_bytes(), |step| {
        let mut line = Vec::new();
        step.write_json(&mut line);
        lines.push(String::from_utf8(line).expect("JSON is UTF-8"));
        Ok(())
    })?;
    Ok(lines)
}

fn refusal(trace: &str) -> String {
    replayed("rules: [{ key: 'user:{user_id}', limit: 1/s }]", trace).unwrap_err().to_string()
}

#[test]
fn fields_come_in_their_order_and_unlimited_requests_have_nulls() {
    let lines = replayed(
        "rules: [{ name: one, key: 'user:{user_id}', limit: 1/s }]",
        "{\"t_us\":5,\"attributes\":{\"user_id\":\"a\"}}\n\n{\"attributes\":{},\"t_us\":6,\"op\":\"peek\"}\r\n{\"t_us\":7,\"op\":\"rules\",\"rules\":[]}",
    );
    assert_eq!(
        lines.unwrap(),
        [
            r#"{"t_us":5,"op":"check","allowed":true,"limit":1,"remaining":0,"retry_after_us":0,"reset_after_us":1000000,"delay_us":0,"rule":"one","limits":[{"rule":"one","key":"user:a","allowed":true,"limit":1,"remaining":0,"retry_after_us":0,"reset_after_us":1000000,"delay_us":0,"mode":"enforce"}]}"#,
            r#"{"t_us":6,"op":"peek","allowed":true,"limit":null,"remaining":null,"retry_after_us":0,"reset_after_us":0,"delay_us":0,"rule":null,"limits":[]}"#,
            r#"{"t_us":7,"op":"rules"}"#,
        ]
    );
}

#[test]
fn a_refund_and_a_reset_of_a_denied_request_pass_and_change_nothing() {
    let lines = replayed(
        "rules: [{ name: ban, key: 'user:{user_id}', action: deny }]",
        "{\"t_us\":0,\"op\":\"refund\",\"attributes\":{\"user_id\":\"a\"}}",
    );
    assert_eq!(
        lines.unwrap(),
        [
            r#"{"t_us":0,"op":"refund","allowed":true,"limit":0,"remaining":0,"retry_after_us":0,"reset_after_us":0,"delay_us":0,"rule":"ban","limits":[{"rule":"ban","key":"user:a","allowed":true,"limit":0,"remaining":0,"retry_after_us":0,"reset_after_us":0,"delay_us":0,"mode":"enforce"}]}"#
        ]
    );
}

#[test]
fn whatever_a_name_contains_the_output_is_json() {
    let rules = "rules: [{ name: \"a\\\"b\\\\ü\", key: \"x\\ty:{user_id}\", limit: 1/s }]";
    let lines = replayed(rules, r#"{"t_us":0,"attributes":{"user_id":"\u0000\"ü"}}"#).unwrap();
    let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(line["rule"], "a\"b\\ü");
    assert_eq!(line["limits"][0]["key"], "x\ty:%00%22%C3%BC");
}

#[test]
fn numbers_and_booleans_are_text_as_written() {
    let key = |value: &str| {
        let trace = format!("{{\"t_us\":0,\"attributes\":{{\"v\":{value}}}}}");
        let lines = replayed("rules: [{ key: 'v:{v}', limit: 1/s }]", &trace).unwrap();
        let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        line["limits"][0]["key"].as_str().unwrap().to_owned()
    };
    for (value, shown) in [
        ("1.50", "v:1.50"),
        ("-0", "v:-0"),
        ("1e3", "v:1e3"),
        ("true", "v:true"),
        ("\"\"", "v:"),
        (r#""\u0041""#, "v:A"),
        ("12345678901234567890123", "v:12345678901234567890123"),
    ] {
        assert_eq!(key(value), shown);
    }
}

#[test]
fn a_bad_line_is_blamed_by_its_number_and_told_what_was_expected() {
    let good = "{\"t_us\":0}\n\n";
    for (bad, said) in [
        ("{}", "line 3: column 2: missing field `t_us`"),
        (
            "nonsense",
            "line 3: expected a JSON object like {\"t_us\": 0, \"attributes\": {\"user_id\": \"42\"}}",
        ),
        ("[0]", "line 3: expected a JSON object like {\"t_us\": 0, \"attributes\": {\"user_id\": \"42\"}}"),
        ("{\"t_us\":0", "line 3: column 9: EOF while parsing an object"),
        ("{\"t_us\":0} {", "line 3: column 12: trailing characters"),
        (
            "{\"t_us\":-1}",
            "line 3: column 10: invalid type: integer `-1`, expected a whole number from 0 to 9007199254740991",
        ),
        (
            "{\"t_us\":9007199254740992}",
            "line 3: column 24: invalid value: integer `9007199254740992`, expected a whole number from 0 to 9007199254740991",
        ),
        (
            "{\"t_us\":0,\"cost\":1.5}",
            "line 3: column 20: invalid type: floating point `1.5`, expected a whole number from 0 to 9007199254740991",
        ),
        (
            "{\"t_us\":0,\"cost\":null}",
            "line 3: column 21: invalid type: null, expected a whole number from 0 to 9007199254740991",
        ),
        (
            "{\"t_us\":0,\"op\":\"chek\"}",
            "line 3: column 21: invalid value: string \"chek\", expected one of \"check\", \"peek\", \"refund\", \"reset\", \"rules\"",
        ),
        (
            "{\"t_us\":0,\"user_id\":\"a\"}",
            "line 3: column 19: unknown field `user_id`, expected one of `t_us`, `op`, `cost`, `attributes`, `rules`",
        ),
        ("{\"t_us\":0,\"t_us\":1}", "line 3: column 19: duplicate field `t_us`"),
        (
            "{\"t_us\":0,\"attributes\":[]}",
            "line 3: column 23: invalid type: sequence, expected an object of attributes like {\"user_id\": \"42\"}",
        ),
        (
            "{\"t_us\":0,\"attributes\":{\"a\":{}}}",
            "line 3: column 31: attribute `a`: expected a string, a number, true or false",
        ),
        (
            "{\"t_us\":0,\"attributes\":{\"a\":null}}",
            "line 3: column 33: attribute `a`: expected a string, a number, true or false",
        ),
        ("{\"t_us\":0,\"attributes\":{\"a\":1,\"a\":1}}", "line 3: column 33: attribute `a` is given twice"),
        (
            "{\"t_us\":0,\"rules\":[]}",
            "line 3: field `rules` goes with \"op\": \"rules\"; give it that op or drop the field",
        ),
        (
            "{\"t_us\":0,\"op\":\"rules\"}",
            "line 3: \"op\": \"rules\" needs the field `rules`, a list such as [{\"key\": \"global\", \"limit\": \"10/s\"}]",
        ),
        (
            "{\"t_us\":0,\"op\":\"rules\",\"rules\":[{\"key\":\"global\",\"limt\":\"1/s\"}]}",
            "line 3: rules:1:18: rule `global`: unknown field `limt`; did you mean `limit`?",
        ),
    ] {
        assert_eq!(refusal(&format!("{good}{bad}\n{{\"t_us\":1}}\n")), said, "{bad}");
    }
}

#[test]
fn text_that_is_none_and_lines_without_end_are_refused() {
    let replay = Replay::new(RuleSet::default());
    let error = |line: &[u8]| replay.run(line, |_| Ok(())).unwrap_err().to_string();
    assert_eq!(error(b"{\"t_us\":0,\"\xff\"}"), "line 1: not UTF-8 from byte 12 on");
    let long = format!("{{\"t_us\":0,\"attributes\":{{\"a\":\"{}\"}}}}", "x".repeat(MAX_LINE));
    assert!(error(long.as_bytes()).contains("a line has at most 65536"));
    for byte in [b'x', b' '] {
        assert!(error(&vec![byte; MAX_RULES_LINE + 2]).starts_with("line 1: 16777217 bytes or more"));
    }
    let many: Vec<String> = (0..=MAX_ATTRIBUTES).map(|number| format!("\"a{number}\":1")).collect();
    let many = format!("{{\"t_us\":0,\"attributes\":{{{}}}}}", many.join(","));
    assert!(error(many.as_bytes()).ends_with("more than 64 attributes"));
}

#[test]
fn a_line_with_rules_may_be_long() {
    let rules: Vec<String> = (0..2_000)
        .map(|number| format!("{{\"name\":\"r{number}\",\"key\":\"x{number}\",\"limit\":\"1/s\"}}"))
        .collect();
    let line = format!("{{\"t_us\":0,\"op\":\"rules\",\"rules\":[{}]}}", rules.join(","));
    assert!(line.len() > MAX_LINE);
    assert_eq!(replayed("rules: []", &line).unwrap(), [r#"{"t_us":0,"op":"rules"}"#]);
}

#[test]
fn an_invalid_cost_attribute_is_an_error_of_its_line() {
    let rules = r#"rules: [{ name: model-tokens, key: "user:{user_id}", limit: 100/h, cost: tokens }]"#;
    for op in ["check", "peek", "refund"] {
        let good = r#"{"t_us":0,"attributes":{"user_id":"a","tokens":1e1}}"#;
        let bad = format!(r#"{{"t_us":0,"op":"{op}","attributes":{{"user_id":"a","tokens":-5}}}}"#);
        let error = replayed(rules, &format!("{good}\n{bad}")).unwrap_err();
        let said = "line 2: attribute `tokens` is `-5`, and rule `model-tokens` takes the cost from it; \
                    send a whole number from 1 to 9007199254740991";
        assert_eq!(error.to_string(), said);
    }
    let reset = r#"{"t_us":0,"op":"reset","attributes":{"user_id":"a","tokens":-5}}"#;
    assert!(replayed(rules, reset).is_ok(), "a reset has no cost");
}
