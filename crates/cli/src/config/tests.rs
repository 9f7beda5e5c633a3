use super::*;
use tollgate::rules::{RulesError, Style};

/// The settings that flags and a file make together.
fn settled(words: &[&str], text: &str) -> Vec<(String, Option<String>, From)> {
    let folder = tollgate_tests::scratch::Scratch::new("config");
    let path = folder.path().join("tollgate.toml");
    std::fs::write(&path, text).unwrap();
    let config = path.to_str().unwrap();
    let given = Flags::command().get_matches_from([&["tollgate serve", "--config", config], words].concat());
    let config = Config::of(&given).unwrap();
    config.settings.into_iter().map(|Setting { key, value, from }| (key, value, from)).collect()
}

fn of<'a>(settings: &'a [(String, Option<String>, From)], key: &str) -> (Option<&'a str>, From) {
    let (_, value, from) = settings.iter().find(|(known, ..)| known == key).unwrap();
    (value.as_deref(), from.clone())
}

fn wrong(text: &str) -> RulesError {
    File::parse("tollgate.toml", text).expect_err(text)
}

#[test]
fn every_flag_of_serve_has_a_variable_and_a_line_in_the_file() {
    let flags = flags();
    assert!(flags.len() >= 15, "only {} flags", flags.len());
    for flag in flags {
        let variable = format!("TOLLGATE_{}", flag.key().to_uppercase());
        assert_eq!(flag.variable(), variable, "--{}", flag.long());
        let line = match (flag.is_a_switch(), flag.0.get_default_values().first()) {
            (true, _) => format!("{} = true", flag.key()),
            (false, Some(usual)) => format!("{} = '{}'", flag.key(), usual.to_string_lossy()),
            (false, None) if flag.key() == "metrics" => "metrics = ':9090'".to_owned(),
            (false, None) if flag.key() == "max_connections_per_address" => format!("{} = 100", flag.key()),
            (false, None) => format!("{} = 'some'", flag.key()),
        };
        let file = File::parse("tollgate.toml", &line).unwrap_or_else(|error| panic!("{error}"));
        assert!(file.value(&flag).is_some(), "{line}");
    }
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    let text = "http = '127.0.0.1:1'\nnodes = 3\nno_violations = true\nstore = 'redis://:sekret@127.0.0.1:1'";
    let settings = settled(&["--http", "127.0.0.1:2", "--violations-keep-days=7"], text);
    assert_eq!(of(&settings, "http"), (Some("127.0.0.1:2"), From::Flag));
    assert_eq!(of(&settings, "violations_keep_days"), (Some("7"), From::Flag));
    assert_eq!(of(&settings, "nodes"), (Some("3"), From::File));
    assert_eq!(of(&settings, "no_violations"), (Some("true"), From::File));
    assert_eq!(of(&settings, "key_prefix"), (Some("tg"), From::Default));
    assert_eq!(of(&settings, "rules"), (None, From::Default));
    let (store, _) = of(&settings, "store");
    assert!(store.is_some_and(|store| !store.contains("sekret")), "{store:?}");
}

#[test]
fn a_list_keeps_all_its_values() {
    let settings = settled(&[], "admin_host = ['a.example', 'b.example']");
    assert_eq!(of(&settings, "admin_host"), (Some("a.example,b.example"), From::File));
    let settings = settled(&["--admin-host", "a.example", "--admin-host=b.example,c.example"], "");
    assert_eq!(of(&settings, "admin_host"), (Some("a.example,b.example,c.example"), From::Flag));
    let error = wrong("admin_host = [1]").to_string();
    assert!(error.contains("admin_host: expected strings"), "{error}");
}

#[test]
fn flags_replace_lines_of_the_identify_table() {
    let text = "[identify]\ntrusted_proxies = ['10.0.0.0/8']\nhost = true\npaths = ['/a/{a}']\n";
    let flags = [
        "--trusted-proxies",
        "192.0.2.7, 2001:db8::/32",
        "--forwarding-header=forwarded",
        "--identify-headers=x-user=user_id,x-plan=plan",
        "--identify-api-key",
        "x-api-key",
        "--identify-paths",
        "/tenants/{tenant}/**",
    ];
    let settings = settled(&flags, text);
    assert_eq!(of(&settings, "identify.trusted_proxies"), (Some("192.0.2.7, 2001:db8::/32"), From::Flag));
    assert_eq!(of(&settings, "identify.host"), (Some("true"), From::File));
    let given = Flags::command().get_matches_from([&["tollgate serve"][..], &flags].concat());
    let table = File::parse("tollgate.toml", text).unwrap().identify;
    let identify = format!("{:?}", identify::replace(table, &given, &mut Vec::new()).unwrap());
    for part in ["192.0.2.7/32", "2001:db8::/32", "Forwarded", "header x-user as user_id", "host"] {
        assert!(identify.contains(part), "{part}: {identify}");
    }
    for part in ["API key x-api-key as api_key", "path /tenants/{tenant}/**", "header x-plan as plan"] {
        assert!(identify.contains(part), "{part}: {identify}");
    }
    assert!(!identify.contains("10.0.0.0/8") && !identify.contains("/a/{a}"), "{identify}");
}

#[test]
fn a_wrong_value_of_an_identify_flag_is_named_with_the_flag() {
    for (flag, value, part) in [
        ("--trusted-proxies", "10.0.0.0/33", "`10.0.0.0/33` is neither"),
        ("--identify-headers", "x-user", "as in x-user-id=user_id"),
        ("--identify-headers", "x-user=user id", "`user id` is not"),
        ("--identify-api-key", "x key", "`x key` cannot be"),
        ("--identify-paths", "tenants", "begin with a slash"),
    ] {
        let given = Flags::command().get_matches_from(["tollgate serve", flag, value]);
        let error = identify::replace(IdentifyConfig::default(), &given, &mut Vec::new()).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(part) && error.starts_with(flag), "{error}");
    }
}

#[test]
fn tables_are_read_too() {
    let text = "[identify]\ntrusted_proxies = ['10.0.0.0/8']\nheaders = { x-user = 'user_id' }\n\
                [headers]\nform = 'draft-06'\nretry_jitter_s = 0x05\n";
    let file = File::parse("tollgate.toml", text).unwrap();
    assert_eq!(file.identify.headers["x-user"], "user_id");
    assert!(
        format!("{:?}", file.headers).contains("Draft06")
            && format!("{:?}", file.headers).contains("retry_jitter_s: 5")
    );
    assert!(file.sections().any(|section| section == ("headers.form".to_owned(), "'draft-06'".to_owned())));
    assert_eq!(file.len(), 4);
}

#[test]
fn everything_that_is_wrong_is_shown_at_once_with_its_place_and_the_closest_name() {
    let text = "htpp = '127.0.0.1:1'\nnodes = 0\nno_violations = 'yes'\nkey_prefix = []\nstore_deadline_ms = 99999\n\
                [identify]\ntrusted_proxy = []\n[headers]\nform = 'draft-6'\nrest = 'unix'\nretry_jitter_s = -1\n";
    let error = wrong(text);
    let drawn = error.render(Style::Plain);
    for part in [
        "unknown key `htpp`",
        "tollgate.toml:1:1",
        "^^^^",
        "did you mean `http`?",
        "nodes: `0`: number would be zero",
        "no_violations: expected true or false, not a value of type string",
        "key_prefix: expected a string or a number, not a value of type array",
        "store_deadline_ms: `99999`: 99999 is not in 1..=60000",
        "unknown key `trusted_proxy`",
        "did you mean `trusted_proxies`?",
        "form: `draft-6` is not one of default, draft-06, draft-03, none",
        "did you mean `draft-06`?",
        "unknown key `rest`",
        "retry_jitter_s: expected a whole number from 0 to 3600",
    ] {
        assert!(drawn.contains(part), "{part} in\n{drawn}");
    }
    assert_eq!(error.problems().len(), 9, "{drawn}");
}

#[test]
fn odd_numbers_are_refused_wherever_they_are_written() {
    let odd = [
        "-1",
        "1.5",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
    ];
    for key in ["nodes", "store_deadline_ms", "max_connections", "decisions"] {
        for odd in odd {
            let error = wrong(&format!("{key} = {odd}\n"));
            let told = error.to_string();
            assert!(error.problems()[0].line == 1 && !told.contains("unknown key"), "{key} = {odd}: {told}");
        }
    }
    for odd in odd {
        let error = wrong(&format!("[headers]\nretry_jitter_s = {odd}\n"));
        assert_eq!(error.problems()[0].line, 2, "{odd}: {error}");
    }
}

#[test]
fn mistakes_inside_tables_are_shown_where_they_are() {
    for (text, line, part) in [
        ("[identify]\npaths = ['x']\n", 2, "begin with a slash"),
        (
            "[identify]\nhost = true\ntrusted_proxies = ['10.0.0.0/8', '10.0.0.0/33']\n",
            3,
            "`10.0.0.0/33` is neither",
        ),
        ("[identify]\nheaders = { x-user = 'user id' }\n", 2, "`user id` is not an attribute's name"),
        ("[identify.api_key]\nheader = 'x-key'\nhash = true\n", 3, "unknown field `hash`"),
        ("[identify]\nhost = 'x'\n", 2, "expected a boolean"),
        ("identify = 3\n", 1, "identify: expected a table"),
        ("[headers]\nform = 'draft-03'\nreset = 'unix'\n", 3, "counts seconds from now"),
        ("[headers]\npartition_secret_file = '/nowhere'\n", 2, "cannot read /nowhere"),
        ("http = \n", 1, ""),
        ("nodes = 1\nnodes = 2\n", 2, "duplicate"),
    ] {
        let error = wrong(text);
        let problem = &error.problems()[0];
        assert!(problem.line == line && error.to_string().contains(part), "{text}: {error}");
    }
}

#[test]
fn the_example_says_every_setting_there_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tollgate.toml");
    let text = std::fs::read_to_string(path).unwrap();
    File::parse("examples/tollgate.toml", &text).unwrap_or_else(|error| panic!("{error}"));
    // Lines behind a bare `#` are settings, too.
    let setting = |line: &str| {
        let line = line.strip_prefix('#').unwrap_or(line);
        line.starts_with(|c: char| c.is_ascii_lowercase() || c == '[').then(|| format!("{line}\n"))
    };
    let all: String = text.lines().filter_map(setting).collect();
    let all = all.replace("/etc/tollgate/partition.key", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let file = File::parse("examples/tollgate.toml", &all).unwrap_or_else(|error| panic!("{error}\n{all}"));
    for flag in flags() {
        assert!(file.value(&flag).is_some(), "the example has no line for `{}`", flag.key());
    }
    assert_eq!(file.sections().count(), 10, "every key of the tables");
}
