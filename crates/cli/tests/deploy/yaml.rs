//! YAML as JSON, every scalar as its text.

use std::collections::HashMap;

use granit_parser::{Event, Parser};
use serde_json::{Map, Value};

/// All documents of a file.
pub(crate) fn documents(name: &str, text: &str) -> Vec<Value> {
    let mut loader = Loader::default();
    for event in Parser::new_from_str(text) {
        let (event, _) = event.unwrap_or_else(|error| panic!("{name}: {error}"));
        loader.take(event);
    }
    loader.documents
}

#[derive(Default)]
struct Loader {
    documents: Vec<Value>,
    /// Lists and mappings whose end has not come: their anchors and what is in them.
    open: Vec<(usize, Vec<Value>)>,
    anchors: HashMap<usize, Value>,
}

impl Loader {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Scalar(text, _, anchor, _) => self.finish(anchor, Value::String(text.into_owned())),
            Event::SequenceStart(_, anchor, _) | Event::MappingStart(_, anchor, _) => {
                self.open.push((anchor, Vec::new()));
            }
            Event::SequenceEnd => {
                let (anchor, items) = self.open.pop().unwrap();
                self.finish(anchor, Value::Array(items));
            }
            Event::MappingEnd => {
                let (anchor, items) = self.open.pop().unwrap();
                self.finish(anchor, mapping(&items));
            }
            Event::Alias(anchor) => {
                let value = self.anchors[&anchor].clone();
                self.finish(0, value);
            }
            _ => {}
        }
    }

    fn finish(&mut self, anchor: usize, value: Value) {
        if anchor != 0 {
            self.anchors.insert(anchor, value.clone());
        }
        match self.open.last_mut() {
            Some((_, items)) => items.push(value),
            None => self.documents.push(value),
        }
    }
}

/// Keys and values in turn; `<<` takes over what the mapping does not say itself.
fn mapping(items: &[Value]) -> Value {
    let mut map = Map::new();
    let pairs = items.chunks(2).map(|pair| (pair[0].as_str().unwrap(), &pair[1]));
    let (merged, own): (Vec<_>, Vec<_>) = pairs.partition(|(key, _)| *key == "<<");
    for (_, other) in merged {
        map.extend(other.as_object().unwrap().clone());
    }
    let mut said = Vec::new();
    for (key, value) in own {
        assert!(!said.contains(&key), "`{key}` is said twice");
        said.push(key);
        map.insert(key.to_owned(), value.clone());
    }
    Value::Object(map)
}
