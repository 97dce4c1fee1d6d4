//! Counts what an input allocates, and ends the process where that is more than its length explains.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What any input may take: the command line of the program alone, with all its commands, takes most of it.
const ALWAYS: usize = 8 << 20;

/// What each byte of an input may take besides.
const PER_BYTE: usize = 1 << 10;

/// What may stay of all inputs together: what is made once, when it is first needed.
const KEPT: usize = 8 << 20;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static FIRST: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the allocator of the system as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of this very function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of this very function.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs `input`, which has that many bytes.
///
/// # Panics
/// If it allocates more at once than so many bytes may, or leaves more behind than all inputs may.
pub fn bounded(length: usize, input: impl FnOnce()) {
    let before = LIVE.load(Ordering::Relaxed);
    let first = match FIRST.load(Ordering::Relaxed) {
        0 => {
            FIRST.store(before, Ordering::Relaxed);
            before
        }
        first => first,
    };
    PEAK.store(before, Ordering::Relaxed);
    input();
    let taken = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    let allowed = ALWAYS + PER_BYTE * length;
    assert!(
        taken <= allowed,
        "an input of {length} bytes took {taken} bytes of memory; at most {allowed} are allowed"
    );
    let kept = LIVE.load(Ordering::Relaxed).saturating_sub(first);
    assert!(
        kept <= KEPT,
        "all inputs so far have left {kept} bytes of memory behind; at most {KEPT} are allowed"
    );
}
