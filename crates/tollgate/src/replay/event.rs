//! One line of a trace.

use serde::de::DeserializeSeed as _;
use tollgate_core::rule::InvalidCost;
use tollgate_core::{Descriptor, Timestamp};

use super::line::Fields;
use crate::rules::RulesError;

/// The longest line in bytes, unless it brings new rules.
pub const MAX_LINE: usize = 64 << 10;
/// The longest line in bytes that brings new rules.
pub const MAX_RULES_LINE: usize = 16 << 20;
/// Something that happens in a trace.
#[derive(Debug)]
pub struct Event<'a> {
    /// When.
    pub at: Timestamp,
    /// What.
    pub op: Op<'a>,
    /// To which request; the one about which nothing is known where rules change.
    pub request: Descriptor<'a>,
    /// What the request costs, or how much is given back.
    pub cost: u64,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Op<'a> {
    /// Ask and charge.
    #[default]
    Check,
    /// Ask only.
    Peek,
    /// Give back.
    Refund,
    /// Forget.
    Reset,
    /// Replace the rules by this list, a JSON text.
    Rules(&'a str),
}

/// What is wrong with a line of a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// Not text.
    #[error("not UTF-8 from byte {at} on")]
    NotText {
        /// The first byte to blame, from 1.
        at: usize,
    },
    /// Not an object at all.
    #[error("expected a JSON object like {{\"t_us\": 0, \"attributes\": {{\"user_id\": \"42\"}}}}")]
    NotAnObject,
    /// Not JSON, or not of the right shape.
    #[error("column {column}: {message}")]
    Shape {
        /// Where, from 1.
        column: usize,
        /// What was found and what was expected.
        message: String,
    },
    /// Longer than a line may be.
    #[error("{length} bytes or more; a line has at most {MAX_LINE}, one with rules at most {MAX_RULES_LINE}")]
    TooLong {
        /// What was read of it.
        length: usize,
    },
    /// New rules without saying so, which would be lost.
    #[error("field `rules` goes with \"op\": \"rules\"; give it that op or drop the field")]
    StrayRules,
    /// A change of rules without any.
    #[error(
        "\"op\": \"rules\" needs the field `rules`, a list such as [{{\"key\": \"global\", \"limit\": \"10/s\"}}]"
    )]
    NoRules,
    /// Rules that make no set.
    #[error("{0}")]
    Rules(Box<RulesError>),
    /// A request whose cost attribute is invalid under the rules in effect.
    #[error("{0}")]
    Cost(Box<InvalidCost>),
}

impl<'a> Event<'a> {
    /// Reads one line.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and what was expected.
    #[inline]
    pub fn parse(line: &'a [u8]) -> Result<Self, EventError> {
        if line.len() > MAX_RULES_LINE {
            return Err(EventError::TooLong { length: line.len() });
        }
        let text =
            std::str::from_utf8(line).map_err(|error| EventError::NotText { at: error.valid_up_to() + 1 })?;
        // Said here, because the parser would only name the character it stumbled over.
        if !text.trim_ascii_start().starts_with('{') {
            return Err(EventError::NotAnObject);
        }
        let mut event =
            Event { at: Timestamp::default(), op: Op::Check, request: Descriptor::new(), cost: 1 };
        let mut json = serde_json::Deserializer::from_str(text);
        let given = Fields(&mut event).deserialize(&mut json).and_then(|rules| json.end().map(|()| rules));
        event.op = match (event.op, given.map_err(EventError::shape)?) {
            (Op::Rules(_), Some(rules)) => Op::Rules(rules.get()),
            (Op::Rules(_), None) => return Err(EventError::NoRules),
            (_, Some(_)) => return Err(EventError::StrayRules),
            (_, None) if text.len() > MAX_LINE => return Err(EventError::TooLong { length: text.len() }),
            (op, None) => op,
        };
        Ok(event)
    }
}

impl Op<'_> {
    /// The word in traces.
    pub const fn as_str(self) -> &'static str {
        match self {
            Op::Check => "check",
            Op::Peek => "peek",
            Op::Refund => "refund",
            Op::Reset => "reset",
            Op::Rules(_) => "rules",
        }
    }

    /// Whether no bucket can refuse it.
    pub const fn always_passes(self) -> bool {
        matches!(self, Op::Refund | Op::Reset | Op::Rules(_))
    }
}

impl EventError {
    #[cold]
    fn shape(error: serde_json::Error) -> Self {
        let text = error.to_string();
        // serde_json adds a place; lines are counted by the caller.
        let message = text.rsplit_once(" at line ").map_or(&*text, |(message, _)| message);
        EventError::Shape { column: error.column(), message: message.to_owned() }
    }
}
