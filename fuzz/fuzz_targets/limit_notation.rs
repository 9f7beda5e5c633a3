//! Any text is a limit or an error; what is a limit prints as itself and decides without panicking.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::core::algorithm::{Bucket, Demand, Window};
use tollgate::{Limit, Micros, Timestamp};

fuzz_target!(|input: (&str, u32, u32)| {
    let (text, wait, cost) = input;
    let Ok(limit) = text.parse::<Limit>() else { return };
    assert_eq!(limit.to_string().parse::<Limit>().as_ref(), Ok(&limit), "{text}");
    let mut state = None;
    let mut now = 0_i64;
    for cost in [1, u64::from(cost), limit.capacity(), limit.capacity() + 1] {
        let mut bucket = Bucket::open(&limit, state.take(), Timestamp::from_micros(now), Window::Own);
        let answer = bucket.ask(Demand { cost, max_wait: Micros::MAX });
        if answer.allowed() {
            bucket.take(cost);
        }
        assert!(bucket.verdict(answer).remaining <= limit.capacity());
        state = bucket.close();
        now += i64::from(wait);
    }
});
