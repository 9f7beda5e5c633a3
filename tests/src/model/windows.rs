//! The windows that the clock decides: epoch, spread and calendar.

use std::ops::Range;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};

use super::{CalendarUnit, Phase, floor_to};

/// The window that contains `at`; `None` for `first`, whose windows begin with a take.
pub(super) fn clock_window(phase: &Phase, length: i128, at: i128) -> Option<Range<i128>> {
    match phase {
        Phase::Epoch => Some(periodic(0, length, at)),
        Phase::First => None,
        Phase::Spread { phase_us } => Some(periodic(i128::from(*phase_us), length, at)),
        Phase::Calendar { unit, time_zone } => Some(calendar(*unit, time_zone, at)),
    }
}

/// The window that contains `at` among those of `length` with an edge at `edge`.
pub(super) fn periodic(edge: i128, length: i128, at: i128) -> Range<i128> {
    let start = edge + floor_to(at - edge, length);
    start..start + length
}

/// From the last boundary at or before `at` to the first one after it.
fn calendar(unit: CalendarUnit, time_zone: &str, at: i128) -> Range<i128> {
    let zone = TimeZone::get(time_zone).expect("the caller names a zone of the tz database");
    let at_us = i64::try_from(at).expect("an instant of this era");
    let today =
        Timestamp::from_microsecond(at_us).expect("an instant of this era").to_zoned(zone.clone()).date();
    let first_day = match unit {
        CalendarUnit::Day => today,
        CalendarUnit::Week => later(today, -i64::from(today.weekday().to_monday_zero_offset()).days()),
        CalendarUnit::Month => today.first_of_month(),
    };
    // One more on either side: a clock set back over midnight shows the day before once again.
    let boundaries = (-1..=2).map(|count| midnight(later(first_day, units(unit, count)), &zone));
    let start = boundaries.clone().filter(|boundary| *boundary <= at).max();
    let end = boundaries.filter(|boundary| *boundary > at).min();
    start.expect("the window before began")..end.expect("the window after next will begin")
}

fn units(unit: CalendarUnit, count: i64) -> Span {
    match unit {
        CalendarUnit::Day => count.days(),
        CalendarUnit::Week => count.weeks(),
        CalendarUnit::Month => count.months(),
    }
}

fn later(date: Date, span: Span) -> Date {
    date.checked_add(span).expect("a date of this era")
}

/// The instant a day begins; where the clock skips midnight, the instant of the skip.
fn midnight(date: Date, zone: &TimeZone) -> i128 {
    date.to_zoned(zone.clone()).expect("a date of this era").timestamp().as_microsecond().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> i128 {
        text.parse::<Timestamp>().unwrap().as_microsecond().into()
    }

    fn window(unit: CalendarUnit, zone: &str, instant: &str) -> Range<i128> {
        clock_window(&Phase::Calendar { unit, time_zone: zone.into() }, 1, at(instant)).unwrap()
    }

    #[test]
    fn periodic_windows_also_hold_before_the_epoch() {
        assert_eq!(clock_window(&Phase::Epoch, 100, 250), Some(200..300));
        assert_eq!(clock_window(&Phase::Epoch, 100, -1), Some(-100..0));
        assert_eq!(clock_window(&Phase::Spread { phase_us: 30 }, 100, 229), Some(130..230));
        assert_eq!(clock_window(&Phase::Spread { phase_us: 30 }, 100, 230), Some(230..330));
        assert_eq!(clock_window(&Phase::First, 100, 230), None);
    }

    #[test]
    fn days_weeks_and_months_begin_at_the_places_midnight() {
        let (day, week, month) = (CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month);
        // Sunday the 31st of March 2024 has 23 hours in Berlin.
        let noon = "2024-03-31T10:00:00Z";
        let tomorrow = at("2024-03-31T22:00:00Z");
        assert_eq!(window(day, "Europe/Berlin", noon), at("2024-03-30T23:00:00Z")..tomorrow);
        assert_eq!(window(week, "Europe/Berlin", noon), at("2024-03-24T23:00:00Z")..tomorrow);
        assert_eq!(window(month, "Europe/Berlin", noon), at("2024-02-29T23:00:00Z")..tomorrow);
        assert_eq!(window(day, "Europe/Berlin", "2024-03-31T22:00:00Z").start, tomorrow);
        assert_eq!(window(week, "Europe/Berlin", "2024-03-31T21:59:59Z").end, tomorrow);
    }

    #[test]
    fn a_midnight_that_is_skipped_begins_the_day_with_the_skip() {
        let skip = at("2018-11-04T03:00:00Z"); // São Paulo: 00:00 became 01:00
        let next = at("2018-11-05T02:00:00Z");
        assert_eq!(window(CalendarUnit::Day, "America/Sao_Paulo", "2018-11-04T12:00:00Z"), skip..next);
        assert_eq!(window(CalendarUnit::Day, "America/Sao_Paulo", "2018-11-04T02:59:59Z").end, skip);
        // Samoa had no 30th of December 2011.
        let eve = at("2011-12-30T10:00:00Z");
        assert_eq!(window(CalendarUnit::Day, "Pacific/Apia", "2011-12-30T09:59:59Z").end, eve);
        assert_eq!(window(CalendarUnit::Day, "Pacific/Apia", "2011-12-30T10:00:00Z").start, eve);
    }
}
