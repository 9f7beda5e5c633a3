//! An allocator that counts.

#![expect(unsafe_code, reason = "an allocator is unsafe to implement; this one only counts and passes on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    // By thread: the other tests of this program allocate meanwhile.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread asks for memory while it does something.
pub(crate) fn allocations_of(something: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    something();
    ALLOCATIONS.get() - before
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

// SAFETY: every call is passed on to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract, and all memory came from `System`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `realloc`'s contract, and all memory came from `System`.
        unsafe { System.realloc(memory, layout, size) }
    }
}
