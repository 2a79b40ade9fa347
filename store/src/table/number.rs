//! The number in a value, as ADD reads it.

/// Parses the number of ADD as torch's server does (C++ `stoll`): white space, a sign, and digits up to the first
/// other byte. `None`: no digits, or more than 64 bits.
pub(super) fn parse(text: &[u8]) -> Option<i64> {
    let text = text.trim_ascii_start();
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let mut digits = digits.iter().take_while(|byte| byte.is_ascii_digit()).peekable();
    digits.peek()?;
    digits.try_fold(0i64, |number, byte| {
        let digit = i64::from(byte - b'0');
        let number = number.checked_mul(10)?;
        if negative { number.checked_sub(digit) } else { number.checked_add(digit) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_torch_reads_them() {
        let cases: [(&str, Option<i64>); 11] = [
            ("12", Some(12)),
            ("-7", Some(-7)),
            ("+12", Some(12)),
            (" 12", Some(12)),
            ("12abc", Some(12)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("abc", None),
            ("-", None),
            ("", None),
        ];
        for (text, number) in cases {
            assert_eq!(parse(text.as_bytes()), number, "{text:?}");
        }
    }
}
