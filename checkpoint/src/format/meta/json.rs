//! JSON, token by token. The shape of a meta is known, so that no value is built that is not a part of it;
//! and nodes lie deeper than a general reader lets them.

/// What was expected at which byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    pub at: usize,
    pub expected: &'static str,
}

#[derive(Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes that are read.
    pub fn at(&self) -> usize {
        self.at
    }

    pub fn fault(&self, expected: &'static str) -> JsonError {
        JsonError { at: self.at, expected }
    }

    /// The next byte that is not white space; it stays.
    pub fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.bytes.get(self.at) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    /// Takes a byte if it is the next.
    pub fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    pub fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), JsonError> {
        if self.take(byte) { Ok(()) } else { Err(self.fault(expected)) }
    }

    pub fn end(&mut self) -> Result<(), JsonError> {
        if self.peek().is_none() { Ok(()) } else { Err(self.fault("the end")) }
    }

    /// Takes a word such as `null`, if it is the next.
    pub fn word(&mut self, word: &str) -> bool {
        self.peek();
        let is_next = self.bytes[self.at..].starts_with(word.as_bytes());
        if is_next {
            self.at += word.len();
        }
        is_next
    }

    /// Takes a key of an object and the colon behind it.
    pub fn key(&mut self, key: &str, expected: &'static str) -> Result<(), JsonError> {
        let start = self.at;
        if self.string()? != key {
            self.at = start;
            return Err(self.fault(expected));
        }
        self.expect(b':', ": after a key")
    }

    pub fn string(&mut self) -> Result<String, JsonError> {
        let expected = "a string";
        if self.peek() != Some(b'"') {
            return Err(self.fault(expected));
        }
        let start = self.at;
        let mut end = start + 1;
        loop {
            match self.bytes.get(end) {
                None => return Err(self.fault("the end of a string")),
                Some(b'"') => break,
                Some(b'\\') => end += 2,
                Some(_) => end += 1,
            }
        }
        // Escapes and UTF-8 are checked by the general reader. A lone surrogate is refused: the client
        // pickles such a text.
        let Ok(text) = serde_json::from_slice(&self.bytes[start..=end]) else {
            return Err(self.fault(expected));
        };
        self.at = end + 1;
        Ok(text)
    }

    /// An integer without a fraction or an exponent.
    pub fn integer(&mut self) -> Result<i64, JsonError> {
        let expected = "a 64-bit integer";
        self.peek();
        let rest = &self.bytes[self.at..];
        let sign = usize::from(rest.first() == Some(&b'-'));
        let digits = rest[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let after = rest.get(sign + digits);
        let leads_with_zero = digits > 1 && rest[sign] == b'0';
        if digits == 0 || leads_with_zero || matches!(after, Some(b'.' | b'e' | b'E')) {
            return Err(self.fault(expected));
        }
        let text = std::str::from_utf8(&rest[..sign + digits]).unwrap_or_default();
        let Ok(value) = text.parse() else { return Err(self.fault(expected)) };
        self.at += sign + digits;
        Ok(value)
    }

    /// A count, a length or an offset: at most 2^63 - 1.
    pub fn count(&mut self) -> Result<u64, JsonError> {
        let start = self.at;
        let value = self.integer()?;
        u64::try_from(value).map_err(|_| {
            self.at = start;
            self.fault("a non-negative integer")
        })
    }

    /// Reads `[item, ...]`, each item by `read`.
    pub fn list<T, E: From<JsonError>>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, E>,
    ) -> Result<Vec<T>, E> {
        let mut items = Vec::new();
        self.expect(b'[', "[")?;
        if self.take(b']') {
            return Ok(items);
        }
        loop {
            items.push(read(self)?);
            if !self.take(b',') {
                break;
            }
        }
        self.expect(b']', ", or ]")?;
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_64_bits_and_one_form() {
        let read = |text: &str| {
            let mut cursor = Cursor::new(text.as_bytes());
            cursor.integer().and_then(|value| cursor.end().map(|()| value)).ok()
        };
        assert_eq!(read(" 0"), Some(0));
        assert_eq!(read("-9223372036854775808 "), Some(i64::MIN));
        for wrong in ["", "-", "01", "-01", "1.0", "1e3", "+1", "9223372036854775808", "1 2", "0x1", "\"1\""]
        {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert!(Cursor::new(b"-1").count().is_err());
    }

    #[test]
    fn texts_have_escapes() {
        let read = |text: &[u8]| Cursor::new(text).string().ok();
        assert_eq!(read(br#" "a\"\\\u00e9\ud83d\ude00""#).as_deref(), Some("a\"\\\u{e9}\u{1f600}"));
        for wrong in [&b"\"a"[..], b"\"a\\", b"\"a\\\"", b"\"\\ud800\"", b"\"\xff\"", b"\"\n\"", b"a", b""] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn lists_have_commas_between_their_items() {
        let read = |text: &str| Cursor::new(text.as_bytes()).list(Cursor::integer);
        assert_eq!(read(" [ ] "), Ok(vec![]));
        assert_eq!(read("[1 , 2]"), Ok(vec![1, 2]));
        for wrong in ["[1,]", "[,1]", "[1 2]", "[", "[1", "1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
