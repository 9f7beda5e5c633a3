//! Days, weeks and months of a time zone.

use jiff::civil::{Date, Weekday};
use jiff::{Timestamp as Instant, ToSpan, Zoned};

use crate::limit::{Calendar, CalendarUnit};

/// The window around an instant: its first microsecond and that of the next window.
///
/// Midnights are those of the zone, so a day has 23 or 25 hours when clocks change.
pub(super) fn window(calendar: &Calendar, at: i64) -> (i64, i64) {
    let date = Instant::from_microsecond(at)
        .expect("instants are clamped far inside the years 1 to 9999")
        .to_zoned(calendar.zone.clone())
        .date();
    let (first, next) = match calendar.unit {
        CalendarUnit::Day => (date, date.saturating_add(1.day())),
        CalendarUnit::Week => {
            let monday = date.saturating_sub(i64::from(date.weekday().since(Weekday::Monday)).days());
            (monday, monday.saturating_add(7.days()))
        }
        CalendarUnit::Month => {
            let first = date.first_of_month();
            (first, first.saturating_add(1.month()))
        }
    };
    (midnight(first, calendar), midnight(next, calendar))
}

/// The first instant of a date.
fn midnight(date: Date, calendar: &Calendar) -> i64 {
    date.to_zoned(calendar.zone.clone())
        .and_then(|midnight: Zoned| midnight.start_of_day())
        .expect("every date between 1 and 9999 begins")
        .timestamp()
        .as_microsecond()
}
