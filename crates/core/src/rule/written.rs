//! A limit written down again.

use super::Draft;
use crate::limit::{Algorithm, Limit, Opening, Phase, Ticks};

impl From<&Limit> for Draft {
    /// One bucket for everybody with this limit, as somebody would write it; building it gives the same limit.
    fn from(limit: &Limit) -> Self {
        let (window, time_zone) = match limit.algorithm() {
            Algorithm::FixedWindow { phase, .. } => match phase {
                Phase::Epoch => (Some("epoch"), None),
                Phase::First => (Some("first"), None),
                Phase::Spread => (Some("spread"), None),
                Phase::Calendar(calendar) => (Some("calendar"), Some(calendar.name.to_string())),
            },
            Algorithm::SlidingWindowCounter { opens: Opening::First, .. } => (Some("first"), None),
            _ => (None, None),
        };
        let aligned = match limit.algorithm() {
            Algorithm::TokenBucketInterval(refill) => Some(refill.ticks() == Ticks::Aligned),
            _ => None,
        };
        Draft {
            key: "global".to_owned(),
            limit: Some(limit.to_string()),
            algorithm: Some(limit.algorithm_name().as_str().to_owned()),
            window: window.map(str::to_owned),
            time_zone,
            aligned,
            ..Draft::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_written_down_and_built_is_the_same() {
        for (limit, algorithm, window, time_zone, aligned) in [
            ("10/s burst 50", None, None, None, None),
            ("3 every 7s burst 9", None, None, None, Some(true)),
            ("3 every 7s", None, None, None, None),
            ("5/s queue 20 free 5", None, None, None, None),
            ("5/min", Some("fixed_window"), None, None, None),
            ("5/min", Some("fixed_window"), Some("first"), None, None),
            ("5/min", Some("fixed_window"), Some("spread"), None, None),
            ("5/month", Some("fixed_window"), Some("calendar"), Some("Europe/Berlin"), None),
            ("5/90s", Some("sliding_window_log"), None, None, None),
            ("5/s", Some("sliding_window_counter"), Some("first"), None, None),
        ] {
            let text = |text: &str| text.to_owned();
            let draft = Draft {
                key: "global".to_owned(),
                limit: Some(limit.to_owned()),
                algorithm: algorithm.map(text),
                window: window.map(text),
                time_zone: time_zone.map(text),
                aligned,
                ..Draft::default()
            };
            let rule = draft.build().unwrap();
            let limit = rule.limit().unwrap();
            assert_eq!(Draft::from(limit).build().unwrap().limit(), Some(limit), "{limit}");
        }
    }
}
