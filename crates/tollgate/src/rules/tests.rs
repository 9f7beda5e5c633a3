mod schema;

use tollgate_core::rule::CostDraft;

use super::errors::MAX_PROBLEMS;
use super::*;

const STARTER: &str = include_str!("../../../../examples/rules/starter.yaml");
const EVERY_FIELD: &str = include_str!("../../../../examples/rules/every-field.yaml");

/// The lines of the error, without the file's name.
fn problems(text: &str) -> Vec<String> {
    let error = parse("", text).unwrap_err();
    error.problems().iter().map(ToString::to_string).collect()
}

/// The only problem.
fn problem(text: &str) -> String {
    let mut all = problems(text);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

/// The only problem of a rule that has these fields besides `key: global`, on lines from 3.
fn problem_of(fields: &str) -> String {
    let fields = fields.replace('\n', "\n    ");
    problem(&format!("rules:\n  - key: global\n    {fields}\n"))
}

/// The drafts of a file that has the right shape.
fn draft(fields: &str) -> Draft {
    let fields = fields.replace('\n', "\n    ");
    parse_drafts("", &format!("rules:\n  - key: global\n    {fields}\n")).unwrap().remove(0)
}

#[test]
fn the_examples_are_rules() {
    assert_eq!(STARTER, super::STARTER, "the built-in set and the example are one file in two places");
    let starter = parse("starter.yaml", STARTER).unwrap();
    let labels: Vec<&str> = starter.rules().iter().map(Rule::label).collect();
    assert_eq!(
        labels,
        ["per-user-free", "per-user-pro", "per-user-enterprise", "search", "everybody", "per-address"]
    );
    parse("every-field.yaml", EVERY_FIELD).unwrap();
}

#[test]
fn every_field_is_read_and_the_example_has_them_all() {
    let drafts = parse_drafts("", EVERY_FIELD).unwrap();
    for field in Draft::names() {
        let has = |draft: &Draft| serde_json::to_value(draft).unwrap().get(field).is_some();
        assert!(drafts.iter().any(has), "{field} is not in every-field.yaml, or is not read");
    }
}

#[test]
fn values_are_text_as_written() {
    let draft = draft(
        "name: 0x10\nplan: 1.50\nlimit: \"10/s\"\nwhen: { user_id: [666, \"42\", true], beta: yes, zip: 01234 }\n\
         cost: 2\naligned: true\nipv6_prefix: 56\nreplaces: other\ndescription: |\n  two\n  lines",
    );
    assert_eq!(draft.name.as_deref(), Some("0x10"));
    assert_eq!(draft.plan.as_deref(), Some("1.50"));
    assert_eq!(draft.limit.as_deref(), Some("10/s"));
    assert_eq!(draft.when["user_id"], ["666", "42", "true"]);
    assert_eq!(draft.when["beta"], ["yes"]);
    assert_eq!(draft.when["zip"], ["01234"]);
    assert_eq!(draft.cost, Some(CostDraft::Times(2)));
    assert_eq!(draft.aligned, Some(true));
    assert_eq!(draft.ipv6_prefix, Some(56));
    assert_eq!(draft.replaces, ["other"]);
    assert_eq!(draft.description.as_deref(), Some("two\nlines"));
    assert_eq!(self::draft("cost: tokens").cost, Some(CostDraft::Attribute("tokens".into())));
}

#[test]
fn nothing_written_is_no_field() {
    let empty =
        draft("name:\nplan: ~\nlimit: null\nwhen:\ncost: ~\naligned: ~\nreplaces:\nipv6_prefix: null");
    assert_eq!(empty, Draft { key: "global".into(), ..Draft::default() });
    assert_eq!(draft("plan: 'null'").plan.as_deref(), Some("null"));
}

#[test]
fn no_rules_are_fine_and_no_file_is_not() {
    assert!(parse("", "rules: []").unwrap().rules().is_empty());
    assert!(parse_list("", "[]").unwrap().rules().is_empty());
    let empty =
        "1:1: the file is empty; write `rules:` and a list of rules below it, or `rules: []` for none";
    assert_eq!(problem(""), empty);
    assert_eq!(problem("# only words\n"), empty);
    assert_eq!(problem("---\n~").split_once(' ').unwrap().1, empty.split_once(' ').unwrap().1);
}

#[test]
fn json_is_yaml() {
    let rules = "[\n\t{\"key\":\"ip:{ip}\",\"limit\":\"5\\/s\",\"when\":{\"ip\":[\"10.0.0.0\\u002f8\"]},\"cost\":3}\n]";
    let set = parse_list("", rules).unwrap();
    assert_eq!(set.rules()[0].draft().limit.as_deref(), Some("5/s"));
    assert_eq!(set.rules()[0].draft().when["ip"], ["10.0.0.0/8"]);
    let rule = parse_rule("", r#"{"key": "global", "limit": "1/s"}"#).unwrap();
    assert_eq!(rule.label(), "global 1s");
    let error = parse_rule("body", r#"{"key": "global", "limit": "0/s"}"#).unwrap_err();
    assert!(error.to_string().starts_with("body:1:28: rule `global`: limit `0/s`: count is zero; "));
}

#[test]
fn the_top_level_is_a_mapping_with_rules() {
    assert_eq!(
        problem("5"),
        "1:1: a rules file is a mapping, not a number; begin it with `rules:` and a list of rules below it"
    );
    assert_eq!(problem("rulse: []"), "1:1: unknown field `rulse`; did you mean `rules`?");
    assert_eq!(
        problem("rules: []\nversion: 1"),
        "2:1: unknown field `version`; a rules file has one field, `rules`"
    );
    assert_eq!(
        problem("rules: {}"),
        "1:8: the rules are a list, not a mapping; begin each rule with `- `, or write `[]` for no rules"
    );
    assert_eq!(
        problem("rules:\n  - global"),
        "2:5: a rule is a mapping, not text; write it like `{ key: \"user:{user_id}\", limit: 100/min }`"
    );
    assert_eq!(
        problems("- key: global\n  limit: 0/s"),
        [
            "1:1: the file begins with a list, not with `rules:`; write `rules:` on a line of its own above the list",
            "2:10: rule `global`: limit `0/s`: count is zero; the least is 1 (to block a caller outright write `action: deny`)",
        ]
    );
    assert_eq!(
        problem("rules: []\n---\nrules: []"),
        "2:1: a second document begins here; a rules file is one document; drop the `---`"
    );
}

#[test]
fn unknown_and_repeated_fields_are_told_apart() {
    assert_eq!(
        problem_of("limit: 1/s\nalgoritm: token_bucket"),
        "4:5: rule `global`: unknown field `algoritm`; did you mean `algorithm`?"
    );
    assert_eq!(
        problem_of("limit: 1/s\nlimit: 2/s"),
        "4:5: rule `global`: `limit` is given twice, first on line 3; drop one of the two"
    );
    assert_eq!(
        problem_of("limit: 1/s\nwhen: {a: 1, a: 2}"),
        "4:18: rule `global`: `a` is given twice, first on line 4; drop one of the two"
    );
    // The misspelt limit is not missing as well.
    assert_eq!(problem_of("limt: 1/s"), "3:5: rule `global`: unknown field `limt`; did you mean `limit`?");
    assert!(
        problem_of("limit: 1/s\nbanana: 1")
            .contains("unknown field `banana`; a rule has the fields name, key")
    );
}

#[test]
fn wrong_types_say_what_to_write() {
    let cases = [
        (
            "limit: [1]",
            "3:12: rule `global`: `limit` takes text, not a list; write it like `limit: 100/min burst 20`",
        ),
        (
            "limit: 1/s\nwhen: 5",
            "4:11: rule `global`: `when` takes conditions, not `5`; write attribute and value, like `when: { method: [GET, POST] }`",
        ),
        (
            "limit: 1/s\nwhen: { a: { b: c } }",
            "4:16: rule `global`: a value is text, not a mapping; write one, or a list of them like `[a, b]`",
        ),
        (
            "limit: 1/s\nwhen: { a: [b, ~] }",
            "4:20: rule `global`: a value is missing in this list; drop the item, or put quotes around the text `null`",
        ),
        (
            "limit: 60 every 1h\naligned: yes",
            "4:14: rule `global`: `aligned` is true or false, not `yes`; write `aligned: true` or `aligned: false`, without quotes",
        ),
        (
            "limit: 1/s\nipv6_prefix: \"56\"",
            "4:18: rule `global`: `ipv6_prefix` is a whole number, not the text `\"56\"`; write it like `ipv6_prefix: 56`, without quotes",
        ),
        (
            "limit: 1/s\ncost: -1",
            "4:11: rule `global`: `cost` is a whole number or the name of an attribute, not `-1`; write `cost: 2` or `cost: tokens`",
        ),
        (
            "limit: 1/s\nplan: {free}",
            "4:11: rule `global`: `plan` takes text, not a mapping; write it like `plan: free`; a value that begins with `{` needs quotes",
        ),
        ("limit: 1/s\n? [a]\n: b", "4:7: rule `global`: a field's name is text, not a list"),
        (
            "limit: !fast 1/s",
            "3:12: rule `global`: the tag `!fast` means nothing here; drop it, or put quotes around a value that begins with `!`",
        ),
    ];
    for (fields, expected) in cases {
        assert_eq!(problem_of(fields), expected);
    }
}

#[test]
fn what_core_finds_is_put_where_it_was_written() {
    let cases = [
        (
            "limit: 1/s\nmode: shadw",
            "4:11: rule `global`: mode: `shadw` is not one of enforce, shadow, off; did you mean `shadow`?",
        ),
        (
            "limit: 1/s\nwhen:\n  ip: [10.0.0.0/8, here]",
            "5:24: rule `global`: when: `here` is neither an address nor a network; write `203.0.113.7` or `10.0.0.0/8`",
        ),
        (
            "limit: 1/s\nwhen: { plan: [] }",
            "4:13: rule `global`: when: no value is given for `plan`, so the rule could never apply; list at least one",
        ),
        (
            "plan: x",
            "2:5: rule `global`: a rule needs a `limit`, such as `limit: 100/min`, or an `action`: deny or allow",
        ),
        (
            "action: deny\nlimit: 1/s",
            "4:12: rule `global`: `action: deny` takes no `limit`; drop one of the two",
        ),
        ("limit: 1/s\nplan: ''", "4:11: rule `global`: plan is empty; drop the field or give it a value"),
        (
            "limit: 1/s\ncost: 0",
            "4:11: rule `global`: cost `0`: a cost is a number from 1 to 9007199254740991, or the name of an attribute",
        ),
    ];
    for (fields, expected) in cases {
        assert_eq!(problem_of(fields), expected);
    }
    assert_eq!(
        problem("rules: [{ limit: 1/s }]"),
        "1:11: the field `key` is missing; write one like `key: user:{user_id}`, `key: ip:{ip}` or `key: global`"
    );
}

/// What is no number, none that counts, or too large to be exact.
const ODD_NUMBERS: [&str; 12] = [
    "0",
    "-1",
    "-0.5",
    "1.5",
    "NaN",
    ".nan",
    "inf",
    "-.inf",
    "1e400",
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551616",
];

#[test]
fn odd_numbers_are_refused_wherever_they_are_written() {
    for odd in ODD_NUMBERS {
        let limits = [
            format!("{odd}/s"),
            format!("1/s burst {odd}"),
            format!("1/{odd}s"),
            format!("{odd} every 1s"),
            format!("1 every {odd}s"),
            format!("1/s queue {odd}"),
        ];
        for limit in limits.iter().filter(|limit| *limit != "1/s queue 0") {
            let told = problem_of(&format!("limit: '{limit}'"));
            assert!(told.starts_with("3:") && told.contains("limit"), "{limit}: {told}");
            let as_json = format!("{{\"rules\": [{{\"key\": \"global\", \"limit\": \"{limit}\"}}]}}");
            assert!(problem(&as_json).contains("limit"), "{as_json}");
        }
        // A word may be the name of an attribute.
        if !matches!(odd, "NaN" | "inf") {
            let told = problem_of(&format!("limit: 1/s\ncost: {odd}"));
            assert!(told.starts_with("4:11:") && told.contains("cost"), "{odd}: {told}");
        }
        if odd != "0" {
            let told = problem_of(&format!("limit: 1/s\nipv6_prefix: {odd}"));
            assert!(told.starts_with("4:") && told.contains("ipv6_prefix"), "{odd}: {told}");
        }
    }
}

#[test]
fn what_is_wrong_between_rules_points_at_the_later_one() {
    assert_eq!(
        problem("rules:\n- {name: a, key: global, limit: 1/s}\n- {name: a, key: 'ip:{ip}', limit: 1/s}"),
        "3:10: rule `a`: the name `a` is given twice, first on line 2; give one of them another `name`"
    );
    assert_eq!(
        problem("rules:\n- {key: global, limit: 1/s}\n- {key: global, limit: 2/s}"),
        "3:9: rule `global`: the rule `global 1s` is given twice, first on line 2; give one of them another `name`"
    );
    assert_eq!(
        problem(
            "rules:\n- {name: search, key: global, limit: 1/s}\n- {key: a, limit: 1/s, replaces: [search, serch]}"
        ),
        "3:43: rule `a`: replaces `serch`, but there is no rule of that name; did you mean `search`?"
    );
    let circle =
        "it replaces itself, directly or through others, so none of them would apply; drop one `replaces`";
    assert_eq!(
        problems(
            "rules:\n- {name: a, key: a, limit: 1/s, replaces: b}\n- {name: b, key: b, limit: 1/s, replaces: [a]}"
        ),
        [format!("2:43: rule `a`: {circle}"), format!("3:43: rule `b`: {circle}")]
    );
}

#[test]
fn a_broken_rule_can_still_be_replaced_and_still_has_its_name() {
    let text = "rules:\n- {name: a, key: global, limit: 0/s}\n- {name: b, key: b, limit: 1/s, replaces: a}\n\
                - {name: a, key: c, limit: 1/s}\n- {key: 'd:{', limit: 1/s}\n- {key: e, limit: 1/s, replaces: ['d:{ 1s']}";
    let all = problems(text);
    assert!(all[0].starts_with("2:33: rule `a`: limit `0/s`"), "{all:#?}");
    assert!(all[1].starts_with("4:10: rule `a`: the name `a` is given twice, first on line 2"), "{all:#?}");
    assert!(all[2].starts_with("5:9: rule `d:{`: key `d:{`: `{`"), "{all:#?}");
    assert_eq!(all.len(), 3, "{all:#?}");
}

#[test]
fn a_syntax_error_is_explained() {
    let cases = [
        ("rules: [", "1:8: this `[` is never closed; add the missing `]`"),
        ("rules: [1}", "1:8: this `[` is closed by a `}`; brackets come in pairs: `[…]` and `{…}`"),
        ("rules: \"a\n  b", "1:8: this quote is never closed; add the missing quote at the end of the value"),
        ("rules:\n\t- key: a", "2:1: a tab cannot indent; use spaces"),
        ("rules: @home", "1:8: a value cannot begin with `@`; put quotes around it"),
        ("rules:\n- key: *", "2:8: a value cannot begin with a bare `*` or `&`; put quotes around it"),
        (
            "rules:\n- key: a\n   limit: 1/s",
            "3:9: a `:` cannot stand here; line the field up with the others of its rule, or put quotes around a value that contains `: `",
        ),
        (
            "rules:\n  - key: a\n   limit: 1/s",
            "3:4: this line is not part of the list above it; line it up with the other fields of its rule, or begin a rule with `- `",
        ),
        (
            "rules:\n- key: a\n  limit",
            "3:3: a field's name is followed by `: `; write it like `limit: 100/min`",
        ),
        (
            "%TAG ! a ! b\nrules: []",
            "1:1: this is not YAML: while scanning a directive, did not find expected comment or line break",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(problem(text), expected);
    }
}

#[test]
fn anchors_aliases_and_merge_keys_are_errors_with_their_line() {
    let refused = |written: &str| {
        format!(
            "`{written}`: YAML anchors, aliases and merge keys are not supported; write the value out, or put quotes around \
             a text that begins with `&` or `*`"
        )
    };
    let text = "rules:\n- &free {name: free, key: 'user:{user_id}', limit: &rate 10/s}\n- {<<: *free, name: pro}\n\
                - {name: other, key: global, limit: *rate}\n- &block\n  name: block\n  key: global\n  limit: 1/s\n\
                - {<<: {a: b}, name: merged, key: global, limit: 2/s}\n";
    assert_eq!(
        problems(text)
            .iter()
            .filter(|problem| problem.contains("are not supported"))
            .cloned()
            .collect::<Vec<_>>(),
        [
            format!("2:3: {}", refused("&free")),
            format!("2:52: rule `free`: {}", refused("&rate")),
            format!("3:8: rule `pro`: {}", refused("*free")),
            format!("4:37: rule `other`: {}", refused("*rate")),
            format!("5:3: {}", refused("&block")),
            format!("9:4: rule `merged`: {}", refused("<<")),
        ]
    );
    assert_eq!(
        problem_of("limit: 1/s\nwhen: { endpoint: ** }"),
        format!("4:23: rule `global`: {}", refused("**"))
    );
}

#[test]
fn columns_count_characters_and_lines_end_either_way() {
    let text = "\u{feff}rules:\r\n- { key: 'größe:日本', limit: 0/s }\r\n";
    let error = parse("r", text).unwrap_err();
    assert_eq!((error.problems()[0].line, error.problems()[0].column), (2, 29));
    assert_eq!(&text[error.problems()[0].span.clone()], "0/s");
    assert!(error.render(Style::Plain).contains("--> r:2:29\n"));
    let first = parse("r", "\u{feff}rulse: []").unwrap_err();
    assert!(first.render(Style::Plain).contains("--> r:1:1\n"));
}

#[test]
fn everything_wrong_is_drawn_in_order() {
    let text = "\
rules:
  - name: search
    key: endpoint:/api/search
    limit: 0/min
    algoritm: token_bucket
  - name: search
    key: user:{user_id}
    limit: 10/s
    replaces: [serch]
";
    let error = parse("rules.yaml", text).unwrap_err();
    assert_eq!(
        error.to_string(),
        "\
rules.yaml:4:12: rule `search`: limit `0/min`: count is zero; the least is 1 (to block a caller outright write `action: deny`)
rules.yaml:5:5: rule `search`: unknown field `algoritm`; did you mean `algorithm`?
rules.yaml:6:11: rule `search`: the name `search` is given twice, first on line 2; give one of them another `name`
rules.yaml:9:16: rule `search`: replaces `serch`, but there is no rule of that name; did you mean `search`?"
    );
    assert_eq!(
        error.render(Style::Plain),
        "\
error: rule `search`: limit `0/min`: count is zero
 --> rules.yaml:4:12
  |
4 |     limit: 0/min
  |            ^^^^^
  |
  = help: the least is 1 (to block a caller outright write `action: deny`)

error: rule `search`: unknown field `algoritm`
 --> rules.yaml:5:5
  |
5 |     algoritm: token_bucket
  |     ^^^^^^^^
  |
  = help: did you mean `algorithm`?

error: rule `search`: the name `search` is given twice, first on line 2
 --> rules.yaml:6:11
  |
2 |   - name: search
  |           ------ first here
...
6 |   - name: search
  |           ^^^^^^
  |
  = help: give one of them another `name`

error: rule `search`: replaces `serch`, but there is no rule of that name
 --> rules.yaml:9:16
  |
9 |     replaces: [serch]
  |                ^^^^^
  |
  = help: did you mean `search`?"
    );
    assert!(error.render(Style::Color).contains("\u{1b}["));
}

#[test]
fn one_long_line_is_cut_around_the_problem() {
    let good = r#"{"key":"global","limit":"1/s","name":"a"},"#;
    let text = format!("[{}{{\"key\":\"x\",\"limt\":\"1/s\"}}]", good.repeat(200));
    let error = parse_list("body", &text).unwrap_err();
    let problem = error.problems().last().unwrap();
    assert_eq!(problem.column, 200 * good.len() + 13);
    let drawn = error.render(Style::Plain);
    assert!(drawn.lines().all(|line| line.chars().count() < 200));
    assert!(drawn.contains(&format!("body:1:{}", problem.column)));
}

#[test]
fn hostile_files_are_refused_with_a_reason() {
    let aliases = format!("rules: [&a {{key: global}}{}]", ",*a".repeat(100_000));
    assert_eq!(problems(&aliases).len(), MAX_PROBLEMS);
    assert!(problem(&"[".repeat(100_000)).contains("nested too deeply"));
    assert!(problem(&"- ".repeat(100_000)).contains("nested too deeply"));
    assert!(problem(&"{a: ".repeat(100_000)).contains("nested too deeply"));
    assert!(problem(&format!("rules: []\n#{}", " ".repeat(64 << 20))).contains("at most 67108864 are read"));
    assert!(problem_of(&format!("limit: {}", "1".repeat(20_000))).contains("a text of 20000 bytes"));
    let wide: String = (0..300).map(|field| format!("f{field}: 1\n")).collect();
    assert!(problem(&wide).contains("257:1: too many fields in one mapping; at most 256 are read"));
}

#[test]
fn reading_stops_after_many_problems() {
    let text = format!("rules:\n{}", "- {key: global, limit: 0/s}\n".repeat(MAX_PROBLEMS * 2));
    let error = parse("r", &text).unwrap_err();
    assert_eq!(error.problems().len(), MAX_PROBLEMS);
    let last = "reading stopped after 500 problems; correct these and read again";
    assert!(error.to_string().ends_with(&format!("\nr: {last}")));
    assert!(error.render(Style::Plain).ends_with(&format!("\nnote: {last}")));
}

#[test]
fn any_text_at_all_gives_rules_or_problems() {
    // Every prefix, and every text with one character gone: whatever it says, it does not panic.
    let ends = EVERY_FIELD.char_indices().map(|(at, _)| at).step_by(7);
    for at in ends {
        let rest = EVERY_FIELD[at..].chars().next().map_or(0, char::len_utf8);
        for text in
            [EVERY_FIELD[..at].to_owned(), format!("{}{}", &EVERY_FIELD[..at], &EVERY_FIELD[at + rest..])]
        {
            if let Err(error) = parse("", &text) {
                assert!(!error.problems().is_empty());
                assert!(!error.render(Style::Plain).is_empty());
            }
        }
    }
}
