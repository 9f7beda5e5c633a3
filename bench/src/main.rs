//! quick prototype
#![allow(
    clippy::all,
    missing_docs,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_possible_truncation
)]
use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tollgate::{Gate, MemoryStore};
fn now<F: Future>(f: F) -> F::Output {
    let mut f = std::pin::pin!(f);
    match f.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(v) => v,
        _ => panic!(),
    }
}
fn rng(s: &mut u64) -> u64 {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    *s
}
fn key(buf: &mut String, i: u64) {
    buf.clear();
    buf.push_str("user:");
    let mut d = [b'0'; 7];
    let mut i = i;
    for x in d.iter_mut().rev() {
        *x = b'0' + (i % 10) as u8;
        i /= 10;
    }
    buf.push_str(std::str::from_utf8(&d).unwrap());
}
fn run(name: &str, threads: u64, n: u64, ops: usize, f: impl Fn(&String) -> bool + Send + Sync) {
    let t = Instant::now();
    std::thread::scope(|s| {
        for i in 0..threads {
            let f = &f;
            s.spawn(move || {
                let mut seed = 0x1234567 + i as u64 * 7919;
                let mut ok = 0u64;
                let mut b = String::new();
                for _ in 0..ops {
                    key(&mut b, ((rng(&mut seed) as u128 * n as u128) >> 64) as u64);
                    ok += f(&b) as u64;
                }
                std::hint::black_box(ok);
            });
        }
    });
    let e = t.elapsed().as_nanos() as f64 / ops as f64;
    println!("{name:12} keys={n:8} thr={threads} {e:8.1} ns/op/thread  {:.2} Mops", threads as f64 * 1e3 / e);
}
fn rss() -> usize {
    let s = std::fs::read_to_string("/proc/self/statm").unwrap();
    s.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
fn main() {
    let n: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let thr: u64 = std::env::args().nth(2).unwrap().parse().unwrap();
    let ops = std::env::args().nth(3).map_or(3_000_000, |x| x.parse().unwrap());
    run("nothing", thr, n, ops, |k| k.as_bytes()[11] == 3);
    let r0 = rss();
    let gate = Gate::new("100/h burst 100000000".parse().unwrap(), MemoryStore::new());
    let mut b = String::new();
    for i in 0..n {
        key(&mut b, i);
        now(gate.allow(&b)).unwrap();
    }
    println!("rss/key {:.1} of {}", (rss() - r0) as f64 / n as f64, gate.store().stats().bytes / n as usize);
    run("tollgate", thr, n, ops, |k| now(gate.allow(k)).unwrap().allowed);
    let g = governor::RateLimiter::keyed(
        governor::Quota::per_hour(std::num::NonZeroU32::new(100).unwrap())
            .allow_burst(std::num::NonZeroU32::new(100000000).unwrap()),
    );
    for i in 0..n {
        key(&mut b, i);
        let _ = g.check_key(&b);
    }
    run("governor", thr, n, ops, |k| g.check_key(k).is_ok());
    run("tollgate", thr, n, ops, |k| now(gate.allow(k)).unwrap().allowed);
    run("governor", thr, n, ops, |k| g.check_key(k).is_ok());
}
