//! Any text is a rule set or a report; every problem lies within the text, and both renderings work.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::Descriptor;
use tollgate::rules::{self, Style};

fuzz_target!(|text: &str| {
    match rules::parse("rules.yaml", text) {
        Ok(rules) => {
            let request = Descriptor::new().with("user_id", "42").with("endpoint", "/a/b").with("ip", "10.0.0.1");
            let found = rules.matching(&request);
            let looked = (0..).zip(rules.rules()).filter(|(_, rule)| rule.applies_to(&request).is_ok());
            // `replaces` may take some away, nothing may be added.
            let looked: Vec<u32> = looked.map(|(place, _)| place).collect();
            assert!(found.iter().all(|rule| looked.contains(rule)));
            if rules.rules().iter().all(|rule| rule.replaces().is_empty()) {
                assert_eq!(found.to_vec(), looked);
            }
        }
        Err(error) => {
            assert!(!error.problems().is_empty());
            assert!(error.problems().iter().all(|problem| problem.span.end <= text.len()));
            assert!(!error.render(Style::Plain).is_empty());
            assert!(!error.to_string().is_empty());
        }
    }
});
