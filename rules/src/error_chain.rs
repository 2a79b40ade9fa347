//! Errors as text.

/// Returns an error with all its causes, on one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let message = inner.to_string();
        // Some libraries wrap an error in another with the same message.
        if !text.ends_with(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{message}")]
    struct Wrapped {
        message: &'static str,
        source: Option<Box<Wrapped>>,
    }

    #[test]
    fn a_cause_with_the_same_message_appears_once() {
        let wrap = |message, source: Option<Wrapped>| Wrapped { message, source: source.map(Box::new) };
        let inner = wrap("refused", None);
        let error = wrap("cannot connect", Some(wrap("tcp error", Some(wrap("tcp error", Some(inner))))));
        assert_eq!(chain(&error), "cannot connect: tcp error: refused");
    }
}
