//! What happened, for the report of a failure.

use std::cell::RefCell;

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Prints the trace when a check fails.
#[derive(Debug)]
pub struct Trace;

impl Trace {
    pub fn new() -> Self {
        LINES.with_borrow_mut(Vec::clear);
        Self
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            LINES.with_borrow(|lines| lines.iter().for_each(|line| println!("    {line}")));
        }
    }
}

pub fn note(line: String) {
    LINES.with_borrow_mut(|lines| lines.push(line));
}
