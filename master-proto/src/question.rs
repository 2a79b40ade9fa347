//! What launchers ask each other when they have lost the master: whether the other one still has it (`rules::fence`).
//!
//! One connection, one question, one answer, both of a fixed length. Both carry an HMAC with the job's token as its key,
//! over the node that is asked, the round, and a nonce. So the token itself is not sent: a node has no certificate to
//! serve TLS with. Without a token the job is open to every peer that reaches its ports, and so is this.
//!
//! ```text
//! question  "DLQ" version | round (u32, big endian) | nonce (16) | HMAC (32)
//! answer    1 lost, 2 connected, 3 moved on | HMAC (32)
//! ```

use ring::hmac;
use rules::{NodeId, Round, fence::Answer};

use crate::trust::Token;

const MAGIC: [u8; 4] = *b"DLQ\x01";
const TAG: usize = 32;

/// Bytes of a nonce.
pub const NONCE: usize = 16;

/// Bytes of a question.
pub const QUESTION: usize = MAGIC.len() + 4 + NONCE + TAG;

/// Bytes of an answer.
pub const ANSWER: usize = 1 + TAG;

/// The key of the HMAC.
#[derive(Debug, Clone)]
pub struct Key(hmac::Key);

/// One question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The node that is asked.
    pub of: NodeId,
    /// The round that is asked about.
    pub round: Round,
    /// Used once.
    pub nonce: [u8; NONCE],
}

impl Key {
    /// Derives the key from the job's token, if it has one.
    #[must_use]
    pub fn new(token: Option<&Token>) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, token.map_or(&[], Token::as_bytes)))
    }

    /// Encodes a question.
    #[must_use]
    pub fn ask(&self, question: &Question) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(question.round.0.to_be_bytes());
        bytes.extend(question.nonce);
        bytes.extend(hmac::sign(&self.0, &question.signed(0)).as_ref());
        bytes
    }

    /// Decodes a question to node `of`; `None` when it is invalid, of another job or to another node.
    #[must_use]
    pub fn asked(&self, of: &NodeId, bytes: &[u8; QUESTION]) -> Option<Question> {
        let (head, tag) = bytes.split_at(QUESTION - TAG);
        let (magic, rest) = head.split_at(MAGIC.len());
        let (round, nonce) = rest.split_at(4);
        let round = Round(u32::from_be_bytes(round.try_into().ok()?));
        let question = Question { of: of.clone(), round, nonce: nonce.try_into().ok()? };
        let is_valid = magic == MAGIC && hmac::verify(&self.0, &question.signed(0), tag).is_ok();
        is_valid.then_some(question)
    }

    /// Encodes an answer.
    #[must_use]
    pub fn answer(&self, question: &Question, answer: Answer) -> Vec<u8> {
        let code = match answer {
            Answer::Lost => 1,
            Answer::Connected => 2,
            Answer::MovedOn => 3,
        };
        let mut bytes = vec![code];
        bytes.extend(hmac::sign(&self.0, &question.signed(code)).as_ref());
        bytes
    }

    /// Decodes an answer; `None` when it is invalid or not from the node that was asked.
    #[must_use]
    pub fn answered(&self, question: &Question, bytes: &[u8; ANSWER]) -> Option<Answer> {
        let (code, tag) = bytes.split_first()?;
        hmac::verify(&self.0, &question.signed(*code), tag).ok()?;
        match code {
            1 => Some(Answer::Lost),
            2 => Some(Answer::Connected),
            3 => Some(Answer::MovedOn),
            _ => None,
        }
    }
}

impl Question {
    /// Returns the signed bytes; `code` is 0 for the question itself.
    fn signed(&self, code: u8) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(code);
        bytes.extend(self.round.0.to_be_bytes());
        bytes.extend(self.nonce);
        bytes.extend(self.of.0.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(of: &str) -> Question {
        Question { of: NodeId(of.into()), round: Round(7), nonce: [5; NONCE] }
    }

    fn key(token: &str) -> Key {
        Key::new(Some(&Token::new(token).unwrap()))
    }

    #[test]
    fn a_question_and_its_answer_survive_the_wire() {
        for key in [key("s3cret"), Key::new(None)] {
            let question = question("a");
            let bytes: [u8; QUESTION] = key.ask(&question).try_into().unwrap();
            assert_eq!(key.asked(&question.of, &bytes).unwrap(), question);
            for answer in [Answer::Lost, Answer::Connected, Answer::MovedOn] {
                let bytes: [u8; ANSWER] = key.answer(&question, answer).try_into().unwrap();
                assert_eq!(key.answered(&question, &bytes), Some(answer));
            }
        }
    }

    #[test]
    fn other_questions_and_answers_are_rejected() {
        let (key, question) = (key("s3cret"), question("a"));
        let bytes: [u8; QUESTION] = key.ask(&question).try_into().unwrap();
        let other = Key::new(Some(&Token::new("other").unwrap()));
        assert!(other.asked(&question.of, &bytes).is_none(), "of another job");
        assert!(key.asked(&NodeId("b".into()), &bytes).is_none(), "to another node");
        for at in 0..QUESTION {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            assert!(key.asked(&question.of, &wrong).is_none(), "byte {at}");
        }
        let bytes: [u8; ANSWER] = key.answer(&question, Answer::Connected).try_into().unwrap();
        assert!(other.answered(&question, &bytes).is_none());
        for at in 0..ANSWER {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            assert!(key.answered(&question, &wrong).is_none(), "byte {at}");
        }
        let later = Question { nonce: [6; NONCE], ..question };
        assert!(key.answered(&later, &bytes).is_none(), "of an older question");
    }
}
