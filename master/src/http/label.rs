//! Values of labels.

use std::fmt::{self, Write as _};

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

/// A label's value that may hold any text: names of jobs, hosts and directories come from users and other nodes. The
/// encoder writes a string as it is, so a quotation mark in it would end the value, and with it the whole scrape.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Label(String);

impl<T: Into<String>> From<T> for Label {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl EncodeLabelValue for Label {
    /// Escaped as Prometheus' text format and OpenMetrics ask for. Neither has an escape for other control characters.
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '\\' => encoder.write_str(r"\\")?,
                '"' => encoder.write_str("\\\"")?,
                '\n' => encoder.write_str("\\n")?,
                letter => encoder.write_char(if letter.is_control() {
                    char::REPLACEMENT_CHARACTER
                } else {
                    letter
                })?,
            }
        }
        Ok(())
    }
}
