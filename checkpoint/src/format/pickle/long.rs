//! Integers of any size, as a pickle has them.

/// Returns a decimal number, perhaps after a minus, in two's complement, little endian, in as few bytes as
/// Python.
pub fn from_digits(text: &str) -> Vec<u8> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let mut bytes = magnitude(digits.as_bytes());
    if is_negative {
        let mut carry = true;
        for byte in &mut bytes {
            (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
        }
    }
    // The sign is the highest bit of the last byte; a last byte that says no more than that is left out.
    let sign = if is_negative && bytes.iter().any(|byte| *byte != 0) { 0xff } else { 0 };
    bytes.push(sign);
    while let [.., below, last] = &bytes[..]
        && *last == sign
        && below & 0x80 == sign & 0x80
    {
        bytes.pop();
    }
    if bytes == [0] { Vec::new() } else { bytes }
}

/// The bytes of a number in decimal digits, little endian.
fn magnitude(digits: &[u8]) -> Vec<u8> {
    let mut limbs: Vec<u32> = Vec::new();
    // Nine digits at a time: as many as fit into a limb.
    for group in digits.rchunks(9).rev() {
        let value = group.iter().fold(0, |value: u64, digit| value * 10 + u64::from(digit - b'0'));
        let mut carry = value;
        for limb in &mut limbs {
            let product = u64::from(*limb) * 1_000_000_000 + carry;
            // The low half stays, the high half is carried.
            *limb = product as u32;
            carry = product >> 32;
        }
        if carry > 0 {
            limbs.push(carry as u32);
        }
    }
    limbs.iter().flat_map(|limb| limb.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_long_as_those_of_python() {
        // int.to_bytes with the length that pickle.encode_long takes.
        let cases: [(&str, &[u8]); 12] = [
            ("0", &[]),
            ("-0", &[]),
            ("1", &[1]),
            ("-1", &[0xff]),
            ("127", &[0x7f]),
            ("128", &[0x80, 0]),
            ("-128", &[0x80]),
            ("-129", &[0x7f, 0xff]),
            ("255", &[0xff, 0]),
            ("-256", &[0, 0xff]),
            ("0000000000000000000000000007", &[7]),
            ("18446744073709551616", &[0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ];
        for (text, bytes) in cases {
            assert_eq!(from_digits(text), bytes, "{text}");
        }
    }

    #[test]
    fn numbers_of_64_bits_are_right() {
        for value in [i64::MIN, i64::MAX, -1_000_000_007, 999_999_999, 1_000_000_000, 1 << 31, -(1 << 31)] {
            let mut bytes = from_digits(&value.to_string());
            let sign = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
            bytes.resize(8, sign);
            assert_eq!(bytes, value.to_le_bytes(), "{value}");
        }
    }
}
