//! Any text is a pattern or an error; what is a pattern makes keys of any values, different for different values.

#![no_main]

use std::hash::{DefaultHasher, Hash, Hasher};

use libfuzzer_sys::fuzz_target;
use tollgate::Descriptor;
use tollgate::core::{KeyPattern, Space};

fuzz_target!(|input: (&str, &str, &str)| {
    let (text, one, other) = input;
    let Ok(pattern) = KeyPattern::parse(text) else { return };
    let names: Vec<String> = pattern.attributes().map(str::to_owned).collect();
    let space = Space::new(&["rule"], pattern, 64);
    let request = |value: &str| {
        names.iter().fold(Descriptor::new(), |request, name| request.with(name.clone(), value.to_owned()))
    };
    let (one, other) = (request(one), request(other));
    let hash = |request: &Descriptor<'_>| {
        let mut hasher = DefaultHasher::new();
        space.key(request).hash(&mut hasher);
        hasher.finish()
    };
    // Values are brought into one form (paths, methods, networks) before they are compared.
    if space.key(&one) == space.key(&other) {
        assert_eq!(hash(&one), hash(&other));
        assert_eq!(space.key(&one).to_string(), space.key(&other).to_string());
    } else {
        assert_ne!(hash(&one), hash(&other));
        assert_ne!(space.key(&one).to_string(), space.key(&other).to_string());
    }
});
