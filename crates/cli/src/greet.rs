//! The first screen of `tollgate serve`: what listens, which rules, and a request that ends in a 429.

mod asks;

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tollgate::core::rule::Mode;
use tollgate::{Bounds, Clock, Descriptor, Limiter, MemoryStore, Outcome, Rule, RuleSet, Timestamp};

use crate::terminal::{Terminal, Tone};
use crate::words::quoted;

pub(crate) use asks::Asks;

/// More requests than these are no example.
const MOST_REQUESTS: u64 = 6;
/// More rules than these are not tried, so that a large set does not make a slow start.
const MOST_RULES: usize = 20;

/// What is shown.
pub(crate) struct FirstScreen<'a> {
    pub(crate) http: SocketAddr,
    pub(crate) asks: Asks<'a>,
    pub(crate) rules: String,
    pub(crate) store: String,
    pub(crate) config: Option<&'a str>,
    pub(crate) trial: Option<&'a Trial>,
}

impl FirstScreen<'_> {
    /// Prints it.
    ///
    /// # Errors
    ///
    /// Nobody reads it.
    pub(crate) fn print(&self, terminal: &mut Terminal) -> anyhow::Result<()> {
        let FirstScreen { http, asks, rules, store, .. } = self;
        let title = terminal.paint(Tone::Strong, concat!("tollgate ", env!("CARGO_PKG_VERSION")));
        let faint = |text: &str| terminal.paint(Tone::Faint, text);
        let scheme = asks.scheme();
        let here = format!("{scheme}://{}", reachable(*http));
        let request = self.trial.map_or_else(|| "--help".to_owned(), Trial::flags);
        let next = faint(&format!("tollgate explain --server {here}{} {request}", asks.of_tollgate()));
        let out = terminal.out();
        writeln!(out, "{title}\n")?;
        writeln!(out, "  listening  {scheme}://{http}")?;
        writeln!(out, "  rules      {rules}")?;
        writeln!(out, "  store      {store}")?;
        if let Some(config) = self.config {
            writeln!(out, "  config     {config}")?;
        }
        if let Some(trial) = self.trial {
            writeln!(out, "\n{}\n", trial.promise())?;
            writeln!(out, "{}", trial.curl(&here, asks))?;
        }
        writeln!(out, "\nWhich rules a request meets, and why:\n\n  {next}")?;
        let legend = asks.legend();
        if !legend.is_empty() {
            writeln!(out, "\nIn these commands\n\n  {}", legend.join("\n  "))?;
        }
        out.flush()?;
        Ok(())
    }
}

/// Where this machine reaches a listener: one on every address is also on loopback.
fn reachable(listener: SocketAddr) -> SocketAddr {
    let address = match listener.ip() {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    };
    SocketAddr::new(address, listener.port())
}

/// A request that is refused when it is sent so often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trial {
    /// Who refuses it in the end, and its limit.
    rule: String,
    limit: String,
    facts: Vec<(String, String)>,
    cost: u64,
    requests: u64,
}

impl Trial {
    /// One that meets the first rule with which it works.
    pub(crate) async fn of(rules: &Arc<RuleSet>) -> Option<Self> {
        let limited = |rule: &&Rule| rule.limit().is_some() && rule.mode() == Mode::Enforce;
        for rule in rules.rules().iter().filter(limited).take(MOST_RULES) {
            for (cost, requests) in rule.limit().map(|limit| attempts(limit.capacity())).into_iter().flatten()
            {
                let facts = facts(rule);
                if let Some((rule, limit)) = attempt(rules, &facts, cost, requests).await {
                    return Some(Trial { rule, limit, facts, cost, requests });
                }
            }
        }
        None
    }

    /// What the command does.
    fn promise(&self) -> String {
        let times = match self.requests {
            2 => "twice; the second".to_owned(),
            3 => "three times; the third".to_owned(),
            times => format!("{times} times; the last"),
        };
        let Trial { rule, limit, cost, .. } = self;
        match cost {
            1 => format!("The rule {rule} allows {limit}. Ask {times} is a 429:"),
            cost => format!("The rule {rule} allows {limit}. Ask for {cost} tokens {times} is a 429:"),
        }
    }

    /// The requests, to paste into a shell.
    fn curl(&self, server: &str, asks: &Asks<'_>) -> String {
        let json = |text: &str| serde_json::Value::from(text).to_string();
        let facts = self.facts.iter().map(|(name, value)| format!("{}: {}", json(name), json(value)));
        let attributes = facts.collect::<Vec<_>>().join(", ");
        let cost = if self.cost == 1 { String::new() } else { format!(", \"cost\": {}", self.cost) };
        let body = format!("{{\"attributes\": {{{attributes}}}{cost}}}");
        let counts: Vec<String> = (1..=self.requests).map(|count| count.to_string()).collect();
        let (counts, shown, body) = (counts.join(" "), asks.of_curl(), quoted(&body));
        format!("  for i in {counts}; do curl -i{shown} {server}/v1/check \\\n    -d {body}; done")
    }

    /// The request for other commands.
    fn flags(&self) -> String {
        let flag = |(name, value): &(String, String)| match name.as_str() {
            "user_id" | "plan" | "ip" | "endpoint" | "method" => {
                format!("--{} {}", name.replace('_', "-"), quoted(value))
            }
            _ => format!("--attr {}", quoted(&format!("{name}={value}"))),
        };
        self.facts.iter().map(flag).collect::<Vec<_>>().join(" ")
    }
}

/// How to use a limit up: in three requests if it is large enough, else one by one.
fn attempts(capacity: u64) -> impl Iterator<Item = (u64, u64)> {
    let three = (capacity >= 5).then_some((capacity / 5 * 2, 3));
    let one_by_one = (capacity < MOST_REQUESTS).then(|| (1, capacity + 1));
    three.into_iter().chain(one_by_one)
}

/// A request to which a rule applies: what its conditions demand, and something for the rest of its key.
fn facts(rule: &Rule) -> Vec<(String, String)> {
    let conditions = rule.conditions().iter();
    let mut facts: Vec<(String, String)> =
        conditions.map(|condition| (condition.attribute().to_owned(), condition.example())).collect();
    for name in rule.pattern().attributes() {
        if !facts.iter().any(|(known, _)| known == name) {
            let value = match name {
                "ip" => "203.0.113.7",
                "endpoint" => "/api/search",
                "method" => "GET",
                _ => "42",
            };
            facts.push((name.to_owned(), value.to_owned()));
        }
    }
    facts.sort_by_key(|(name, _)| name != "user_id");
    facts
}

/// Whether a request passes until the last time; the rule that refuses it then, and its limit.
async fn attempt(
    rules: &Arc<RuleSet>,
    facts: &[(String, String)],
    cost: u64,
    requests: u64,
) -> Option<(String, String)> {
    let clock = Clock::manual(Timestamp::from_micros(0));
    let limiter = Limiter::new(Arc::clone(rules), MemoryStore::with(clock, Bounds::default()));
    let request = facts.iter().fold(Descriptor::new(), |facts, (name, value)| facts.with(name, value));
    for _ in 1..requests {
        if !limiter.check(&request, cost).await.allowed() {
            return None;
        }
    }
    let last = limiter.check(&request, cost).await;
    let speaker = last.speaker().filter(|_| last.outcome() == Outcome::Refused)?;
    let rule = last.rules().rule(speaker.rule);
    Some((rule.label().to_owned(), rule.limit()?.to_string()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    async fn trial(rules: &str) -> Option<Trial> {
        Trial::of(&tollgate::rules::parse("rules.yaml", &format!("rules:\n{rules}")).unwrap().into()).await
    }

    #[tokio::test]
    async fn the_starter_set_is_tried_with_a_free_user() {
        let starter = tollgate::rules::parse("starter.yaml", tollgate::rules::STARTER).unwrap();
        let trial = Trial::of(&starter.into()).await.unwrap();
        assert_eq!(
            trial.promise(),
            "The rule per-user-free allows 10/s burst 50. Ask for 20 tokens three times; the third is a 429:"
        );
        assert_eq!(
            trial.curl("http://127.0.0.1:8080", &Asks::default()),
            "  for i in 1 2 3; do curl -i http://127.0.0.1:8080/v1/check \\\n    \
             -d '{\"attributes\": {\"user_id\": \"42\", \"plan\": \"free\"}, \"cost\": 20}'; done"
        );
        assert_eq!(trial.flags(), "--user-id 42 --plan free");
    }

    #[tokio::test]
    async fn other_rules_have_requests_of_their_own() {
        let logins = r#"  - { name: logins, key: "login:{ip}", limit: 2/15min, algorithm: sliding_window_log, when: { endpoint: "/login/**", method: POST, ip: 10.0.0.0/8 } }"#;
        let trial = trial(logins).await.unwrap();
        assert!(trial.requests == 3 && trial.cost == 1, "{trial:?}");
        let (facts, flags) = (&trial.facts, trial.flags());
        assert!(facts.contains(&("ip".to_owned(), "10.0.0.0".to_owned())), "{facts:?}");
        assert!(flags.contains("--endpoint /login/x") && flags.contains("--method POST"), "{flags}");
    }

    #[tokio::test]
    async fn what_the_server_asks_for_is_in_the_commands_and_every_value_is_one_word() {
        let asks = Asks {
            tls: true,
            certificate: true,
            check_tokens: Some(Path::new("check tokens")),
            admin_tokens: Some(Path::new("/etc/tollgate/tokens")),
        };
        let trial = trial(r#"  - { key: "team:{team}", limit: 1/h, when: { team: ["it's $HOME"] } }"#).await;
        let trial = trial.unwrap();
        assert_eq!(
            trial.curl("https://127.0.0.1:8080", &asks),
            "  for i in 1 2; do curl -i --cacert ca.pem --cert client.pem --key client.key \
             -H \"Authorization: Bearer $TOKEN\" https://127.0.0.1:8080/v1/check \\\n    \
             -d '{\"attributes\": {\"team\": \"it'\\''s $HOME\"}}'; done"
        );
        assert_eq!(trial.flags(), r"--attr 'team=it'\''s $HOME'");
        assert_eq!(
            asks.of_tollgate(),
            " --server-ca ca.pem --server-cert client.pem --server-key client.key --token-file /etc/tollgate/tokens"
        );
        assert!(asks.legend()[2].ends_with("is one of the tokens in 'check tokens'"));
    }

    #[tokio::test]
    async fn a_rule_that_another_one_spoils_is_passed_over() {
        let spoilt = "  - { name: banned, key: global, action: deny, when: { plan: free } }\n  \
                      - { name: free, key: global, plan: free, limit: 10/s }\n  \
                      - { name: trial, key: global, mode: shadow, limit: 1/s }\n  \
                      - { name: pro, key: global, plan: pro, limit: 1/min, cost: 1 }";
        let trial = trial(spoilt).await.unwrap();
        assert_eq!((&*trial.rule, trial.requests), ("pro", 2));
        assert!(trial.promise().ends_with("Ask twice; the second is a 429:"));
    }

    #[test]
    fn a_listener_on_every_address_is_reached_on_loopback() {
        for (listener, here) in [
            ("0.0.0.0:8080", "127.0.0.1:8080"),
            ("[::]:8080", "[::1]:8080"),
            ("192.0.2.7:8080", "192.0.2.7:8080"),
        ] {
            assert_eq!(reachable(listener.parse().unwrap()).to_string(), here);
        }
    }

    #[tokio::test]
    async fn rules_without_limits_have_nothing_to_try() {
        assert_eq!(trial("  - { key: global, action: deny }").await, None);
    }
}
