//! Floats as `float.hex` writes them: every bit of them, in text.

/// Returns the value of a text such as `-0x1.8000000000000p+1`, `inf` or `nan`, or nothing for any other
/// text.
pub fn read(text: &str) -> Option<f64> {
    let (is_negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let magnitude = match rest {
        "inf" => f64::INFINITY,
        "nan" if !is_negative => f64::NAN,
        _ => finite(rest)?,
    };
    Some(if is_negative { -magnitude } else { magnitude })
}

/// The bits of `0x1.<hex digits>p<exponent>`, or of `0x0.` with the exponent of zero and of the smallest
/// numbers.
fn finite(text: &str) -> Option<f64> {
    let (digits, exponent) = text.strip_prefix("0x")?.split_once('p')?;
    let (lead, digits) = digits.split_once('.').unwrap_or((digits, ""));
    if digits.len() > 13 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    if exponent.len() > 5 || !exponent.starts_with(['+', '-']) {
        return None;
    }
    let exponent: i64 = exponent.parse().ok()?;
    let fraction = format!("{digits:0<13}");
    let fraction = u64::from_str_radix(&fraction, 16).ok()?;
    let biased = match (lead, exponent) {
        ("1", -1022..=1023) => u64::try_from(exponent + 1023).ok()?,
        ("0", -1022) => 0,
        ("0", 0) if fraction == 0 => 0,
        _ => return None,
    };
    Some(f64::from_bits(biased << 52 | fraction))
}

/// Writes a float as `float.hex` does.
#[cfg(test)]
pub fn hex(value: f64) -> String {
    let sign = if value.is_sign_negative() { "-" } else { "" };
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return format!("{sign}inf");
    }
    let raw = value.to_bits();
    let (biased, fraction) = ((raw >> 52) & 0x7ff, raw & ((1 << 52) - 1));
    if biased == 0 && fraction == 0 {
        return format!("{sign}0x0.0p+0");
    }
    let (lead, exponent) = if biased == 0 { (0, -1022) } else { (1, biased.cast_signed() - 1023) };
    format!("{sign}0x{lead}.{fraction:013x}p{exponent:+}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_float_comes_back(bits: u64) {
            let value = f64::from_bits(bits);
            let back = read(&hex(value)).unwrap();
            prop_assert!(back.to_bits() == bits || value.is_nan() && back.is_nan());
        }

        #[test]
        fn no_text_panics(text in "-?0?x?[0-9a-f]{0,20}\\.?[0-9a-f]{0,20}p?[+-]?[0-9]{0,8}") {
            let _ = read(&text);
        }
    }

    #[test]
    fn every_form_of_python_is_read() {
        let cases = [
            ("0x0.0p+0", 0.0),
            ("-0x0.0p+0", -0.0),
            ("0x1.0000000000000p+0", 1.0),
            ("-0x1.8000000000000p+1", -3.0),
            ("0x1.999999999999ap-4", 0.1),
            ("0x1.fffffffffffffp+1023", f64::MAX),
            ("0x1.0000000000000p-1022", f64::MIN_POSITIVE),
            ("0x0.0000000000001p-1022", f64::from_bits(1)),
            ("inf", f64::INFINITY),
            ("-inf", f64::NEG_INFINITY),
        ];
        for (text, value) in cases {
            assert_eq!(read(text).unwrap().to_bits(), value.to_bits(), "{text}");
        }
        assert!(read("nan").unwrap().is_nan());
    }

    #[test]
    fn other_texts_are_no_float() {
        let wrong = [
            "",
            "-",
            "1.0",
            "0x1",
            "0x1.0p0",
            "0x2.0p+0",
            "0x1.0p+1024",
            "0x1.00000000000000p+0",
            "0x1.gp+0",
            "0x1.+1p+0",
            "0x0.1p+0",
            "0x1.0p+00000",
            "-nan",
            "--inf",
            "0x1.0p+-1",
            "0x1.\u{e9}p+0",
        ];
        for text in wrong {
            assert!(read(text).is_none(), "{text}");
        }
    }
}
