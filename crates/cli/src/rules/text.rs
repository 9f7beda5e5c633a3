//! A rules file with some of its rules changed, and every other line as it was.
//!
//! Changes are cuts in the text: a stretch of bytes and what stands there instead. YAML can be written in more ways than
//! these cuts foresee, so whoever uses the new text reads it first and compares.

use std::collections::BTreeMap;
use std::ops::Range;

use tollgate::core::Draft;
use tollgate::rules::{FieldPlace, Place, Places};

use super::fields;
use super::yaml;

/// What to make of the rules of a file.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// By place: what the rule shall be, or nothing if it shall go.
    pub(super) changed: BTreeMap<usize, Option<Draft>>,
    /// At the end.
    pub(super) added: Vec<Draft>,
}

impl Changes {
    /// The rules that shall be.
    pub(super) fn result(&self, places: &Places) -> Vec<Draft> {
        let kept = places.rules.iter().enumerate().filter_map(|(at, place)| match self.changed.get(&at) {
            Some(changed) => changed.clone(),
            None => Some(place.draft.clone()),
        });
        kept.chain(self.added.iter().cloned()).collect()
    }
}

/// The new text in the ways there are to write it, the one that keeps most first.
pub(super) fn attempts(text: &str, places: &Places, changes: &Changes) -> Vec<String> {
    let texts = [Depth::Fields, Depth::Rules].map(|depth| {
        let old = Old { text, places, is_block: !text[places.list.clone()].starts_with('[') };
        let mut cuts = Vec::new();
        for (at, changed) in &changes.changed {
            match changed {
                Some(draft) => cuts.extend(old.replaced(*at, draft, depth)),
                None if old.is_block => cuts.push(Cut { range: old.lines(*at), with: String::new() }),
                None => {}
            }
        }
        cuts.extend(if old.is_block { old.block_end(changes) } else { old.flow_end(changes) });
        cut(text, cuts)
    });
    texts.into_iter().flatten().collect()
}

/// How much of a changed rule is written anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// Only the fields that are different; comments in the rule stay.
    Fields,
    /// All of it.
    Rules,
}

/// A stretch of the text and what stands there instead.
#[derive(Debug)]
struct Cut {
    range: Range<usize>,
    with: String,
}

/// The new text, unless cuts overlap.
fn cut(text: &str, mut cuts: Vec<Cut>) -> Option<String> {
    cuts.sort_by_key(|cut| (cut.range.start, cut.range.end));
    let mut new = String::with_capacity(text.len());
    let mut from = 0;
    for Cut { range, with } in cuts {
        new.push_str(text.get(from..range.start)?);
        if !new.is_empty() && !new.ends_with('\n') && with.trim_start_matches(' ').starts_with("- ") {
            new.push('\n'); // the last line of the file had no end
        }
        new.push_str(&with);
        from = range.end;
    }
    new.push_str(text.get(from..)?);
    Some(new)
}

/// The text as it is.
struct Old<'t> {
    text: &'t str,
    places: &'t Places,
    /// Whether rules are items behind `- `, rather than in brackets.
    is_block: bool,
}

impl Old<'_> {
    /// Writes a rule anew, or those of its fields that are different.
    fn replaced(&self, at: usize, draft: &Draft, depth: Depth) -> Vec<Cut> {
        let place = &self.places.rules[at];
        let in_braces = self.text[place.span.clone()].starts_with('{');
        match depth {
            Depth::Fields if in_braces => self.fields_in_braces(place, draft),
            Depth::Fields => self.fields_on_lines(place, draft),
            Depth::Rules if in_braces => {
                vec![Cut { range: place.span.clone(), with: yaml::braces(draft) }]
            }
            Depth::Rules => {
                let range = self.lines(at);
                vec![Cut { with: yaml::item(draft, self.indent(range.start)), range }]
            }
        }
    }

    fn fields_on_lines(&self, place: &Place, draft: &Draft) -> Vec<Cut> {
        let end = self.line_end(self.content_end(&place.span));
        let margin =
            place.fields.iter().map(|field| field.key.start).filter(|at| place.span.contains(at)).min();
        let margin = margin.map_or(0, |key| key - self.line_start(key));
        let mut cuts = Vec::new();
        for changed in fields::changes(&place.draft, draft) {
            let field = own_field(place, changed.field);
            cuts.extend(match (field, &changed.after) {
                (Some(field), Some(value)) => Some(self.value(field, yaml::line_value(value))),
                (None, Some(value)) => {
                    let newline = if self.text[..end].ends_with('\n') { "" } else { "\n" };
                    let line = format!("{:margin$}{}: {}", "", changed.field, yaml::line_value(value));
                    let with = if newline.is_empty() { line + "\n" } else { format!("\n{line}") };
                    Some(Cut { range: end..end, with })
                }
                (Some(field), None) => {
                    let start = self.line_start(field.key.start);
                    let is_alone = self.text[start..field.key.start].trim().is_empty();
                    let range = start..self.line_end(self.content_end(&(field.key.start..field.value.end)));
                    is_alone.then_some(Cut { range, with: String::new() })
                }
                (None, None) => None,
            });
        }
        cuts
    }

    fn fields_in_braces(&self, place: &Place, draft: &Draft) -> Vec<Cut> {
        let end = place.fields.iter().map(|field| field.value.end).filter(|at| place.span.contains(at)).max();
        let mut cuts = Vec::new();
        for changed in fields::changes(&place.draft, draft) {
            let field = own_field(place, changed.field);
            cuts.extend(match (field, &changed.after) {
                (Some(field), Some(value)) => Some(self.value(field, yaml::bracket_value(value))),
                (None, Some(value)) => end.map(|end| {
                    let with = format!(", {}: {}", changed.field, yaml::bracket_value(value));
                    Cut { range: end..end, with }
                }),
                (Some(field), None) => {
                    // From the end of the field before it, comma and all.
                    let before = place.fields.iter().map(|field| field.value.end);
                    let before = before.filter(|at| *at <= field.key.start && place.span.contains(at)).max();
                    before.map(|before| Cut { range: before..field.value.end, with: String::new() })
                }
                (None, None) => None,
            });
        }
        cuts
    }

    /// Another value for a field that may have had none.
    fn value(&self, field: &FieldPlace, with: String) -> Cut {
        let end = self.content_end(&field.value);
        if end > field.value.start {
            return Cut { range: field.value.start..end, with };
        }
        let colon = self.text[field.key.end..].find(':').map_or(field.key.end, |at| field.key.end + at + 1);
        Cut { range: colon..colon, with: format!(" {with}") }
    }

    /// What follows the last of the rules behind dashes.
    fn block_end(&self, changes: &Changes) -> Vec<Cut> {
        let Some(last) = self.places.rules.len().checked_sub(1) else { return Vec::new() };
        let indent = self.indent(self.lines(0).start);
        let mut with: String = changes.added.iter().map(|draft| yaml::item(draft, indent)).collect();
        if changes.result(self.places).is_empty() {
            with = format!("{indent}[]\n");
        }
        let end = self.lines(last).end;
        if with.is_empty() { Vec::new() } else { vec![Cut { range: end..end, with }] }
    }

    /// The rules in brackets that go, and those that come.
    fn flow_end(&self, changes: &Changes) -> Vec<Cut> {
        let goes = |at: &usize| matches!(changes.changed.get(at), Some(None));
        let rules = &self.places.rules;
        let added: Vec<String> = changes.added.iter().map(yaml::braces).collect();
        let Some(last) = (0..rules.len()).rev().find(|at| !goes(at)) else {
            // None is left: what comes, alone.
            if rules.is_empty()
                && let Some(cut) = self.begun(changes)
            {
                return vec![cut];
            }
            let going = !rules.is_empty() || !added.is_empty();
            let with = format!("[{}]", added.join(", "));
            return going.then(|| Cut { range: self.places.list.clone(), with }).into_iter().collect();
        };
        let end = rules[last].span.end;
        let with: String = added.iter().map(|rule| format!(", {rule}")).collect();
        let tail = Cut { range: end..rules.last().map_or(end, |rule| rule.span.end), with };
        let before = (0..last)
            .filter(goes)
            .map(|at| Cut { range: rules[at].span.start..rules[at + 1].span.start, with: String::new() });
        before.chain([tail]).collect()
    }

    /// The first rules of an empty list, a line for each field where `[]` ends the line.
    fn begun(&self, changes: &Changes) -> Option<Cut> {
        let Range { start, end } = self.places.list;
        let line = self.line_start(start);
        let before = self.text[line..start].trim_end();
        let is_last = self.text[end..self.line_end(end)].trim().is_empty();
        let items: String = changes.added.iter().map(|draft| yaml::item(draft, "  ")).collect();
        let items = items.trim_end_matches('\n');
        match before {
            _ if items.is_empty() || !is_last => None,
            "" => Some(Cut { range: line..end, with: items.to_owned() }),
            "rules:" => Some(Cut { range: line + before.len()..end, with: format!("\n{items}") }),
            _ => None,
        }
    }

    /// The lines of a rule behind a dash, without the comments that follow it.
    fn lines(&self, at: usize) -> Range<usize> {
        let span = &self.places.rules[at].span;
        let mut start = self.line_start(span.start);
        // The dash may stand on a line of its own.
        while start > 0 && !self.text[start..].trim_start_matches(' ').starts_with('-') {
            start = self.line_start(start - 1);
        }
        start..self.line_end(self.content_end(span))
    }

    fn indent(&self, line: usize) -> &str {
        let rest = &self.text[line..];
        &rest[..rest.len() - rest.trim_start_matches(' ').len()]
    }

    /// Where a value ends, without the blank lines and comments that follow it.
    fn content_end(&self, span: &Range<usize>) -> usize {
        let mut content = self.text[span.clone()].trim_end();
        while let Some((before, last)) = content.rsplit_once('\n') {
            if !last.trim_start().starts_with('#') {
                break;
            }
            content = before.trim_end();
        }
        span.start + content.len()
    }

    fn line_start(&self, at: usize) -> usize {
        self.text[..at].rfind('\n').map_or(0, |newline| newline + 1)
    }

    fn line_end(&self, at: usize) -> usize {
        self.text[at..].find('\n').map_or(self.text.len(), |newline| at + newline + 1)
    }
}

/// A field that the rule itself has, rather than a mapping it takes in.
fn own_field<'p>(place: &'p Place, name: &str) -> Option<&'p FieldPlace> {
    place.fields.iter().find(|field| field.name == name && place.span.contains(&field.key.start))
}
