//! Numbers as Python reads them: torchrun's options accept exactly what `int()` and `float()` accept.

/// `int(text)`: white space around it, a sign and single underscores between digits are fine. A number
/// beyond 64 bits becomes the nearest one that fits, since Python's have no end and every use here
/// checks its range. `None` where Python raises `ValueError`.
pub(crate) fn int(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = without_underscores(digits)?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let size = digits.parse::<i64>().unwrap_or(i64::MAX);
    Some(if negative { -size } else { size })
}

/// `float(text)`. `None` where Python raises `ValueError`.
pub(crate) fn float(text: &str) -> Option<f64> {
    without_underscores(text.trim())?.parse().ok()
}

/// The text without its underscores; `None` when one is not between two digits.
fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let misplaced = bytes.iter().enumerate().any(|(at, byte)| {
        let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
        *byte == b'_' && !(is_digit(at.checked_sub(1)) && is_digit(at.checked_add(1)))
    });
    (!misplaced).then(|| text.replace('_', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_python_reads_them() {
        for (text, number) in [(" 2", 2), ("+2", 2), ("1_0", 10), ("-1", -1), ("007", 7), ("\t3\n", 3)] {
            assert_eq!(int(text), Some(number), "{text:?}");
        }
        for text in ["", " ", "a", "1.5", "1__0", "_1", "1_", "--1", "+-1", "0x10", "1 2", "-"] {
            assert_eq!(int(text), None, "{text:?}");
        }
    }

    #[test]
    fn an_integer_beyond_64_bits_becomes_the_nearest_that_fits() {
        assert_eq!(int("99999999999999999999"), Some(i64::MAX));
        assert_eq!(int("-99999999999999999999"), Some(-i64::MAX));
    }

    #[test]
    fn floats_are_read_as_python_reads_them() {
        for (text, number) in [("0.1", 0.1), (" 1e3 ", 1000.0), ("1_0.5", 10.5), (".5", 0.5), ("1.", 1.0)] {
            assert_eq!(float(text), Some(number), "{text:?}");
        }
        assert!(float("nan").is_some_and(f64::is_nan));
        assert_eq!(float("Infinity"), Some(f64::INFINITY));
        for text in ["", "a", "1e", "1_.5", "0x1p3"] {
            assert_eq!(float(text), None, "{text:?}");
        }
    }
}
