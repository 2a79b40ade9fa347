//! What launchers ask each other when they have lost the master: whether the other one hears it (`rules::fence`).
//!
//! One connection, one question, one answer, both of a fixed length. Both carry an HMAC with the job's token as its key,
//! over who is asked, of which round, and a number that is used once. So the token itself never goes this way: a node
//! has no certificate to serve TLS with, whatever the master has. Without a token the job is open to whoever reaches its
//! ports, and so is this.
//!
//! ```text
//! question  "DLQ" version | round (u32, big endian) | number (16) | HMAC (32)
//! answer    1 lost, 2 hears, 3 moved on | HMAC (32)
//! ```

use ring::hmac;
use rules::{NodeId, Round, fence::Answer};

use crate::trust::Token;

const MAGIC: [u8; 4] = *b"DLQ\x01";
const TAG: usize = 32;

/// Bytes of the number that is used once.
pub const NUMBER: usize = 16;

/// Bytes of a question.
pub const QUESTION: usize = MAGIC.len() + 4 + NUMBER + TAG;

/// Bytes of an answer.
pub const ANSWER: usize = 1 + TAG;

/// What both sides know.
#[derive(Debug, Clone)]
pub struct Key(hmac::Key);

/// One question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Who is asked.
    pub of: NodeId,
    /// Of which round.
    pub round: Round,
    /// Never the same twice.
    pub number: [u8; NUMBER],
}

impl Key {
    /// From the job's token, if it has one.
    #[must_use]
    pub fn new(token: Option<&Token>) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, token.map_or(&[], Token::as_bytes)))
    }

    /// The bytes of a question.
    #[must_use]
    pub fn ask(&self, question: &Question) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(question.round.0.to_be_bytes());
        bytes.extend(question.number);
        bytes.extend(hmac::sign(&self.0, &question.signed(0)).as_ref());
        bytes
    }

    /// What they ask of node `of`; `None`: they are no question, or not one of this job and to this node.
    #[must_use]
    pub fn asked(&self, of: &NodeId, bytes: &[u8; QUESTION]) -> Option<Question> {
        let (head, tag) = bytes.split_at(QUESTION - TAG);
        let (magic, rest) = head.split_at(MAGIC.len());
        let (round, number) = rest.split_at(4);
        let round = Round(u32::from_be_bytes(round.try_into().ok()?));
        let question = Question { of: of.clone(), round, number: number.try_into().ok()? };
        let is_right = magic == MAGIC && hmac::verify(&self.0, &question.signed(0), tag).is_ok();
        is_right.then_some(question)
    }

    /// The bytes of an answer.
    #[must_use]
    pub fn answer(&self, question: &Question, answer: Answer) -> Vec<u8> {
        let word = match answer {
            Answer::Lost => 1,
            Answer::Hears => 2,
            Answer::MovedOn => 3,
        };
        let mut bytes = vec![word];
        bytes.extend(hmac::sign(&self.0, &question.signed(word)).as_ref());
        bytes
    }

    /// What they answer; `None`: nothing that the node that was asked has said.
    #[must_use]
    pub fn answered(&self, question: &Question, bytes: &[u8; ANSWER]) -> Option<Answer> {
        let (word, tag) = bytes.split_first()?;
        hmac::verify(&self.0, &question.signed(*word), tag).ok()?;
        match word {
            1 => Some(Answer::Lost),
            2 => Some(Answer::Hears),
            3 => Some(Answer::MovedOn),
            _ => None,
        }
    }
}

impl Question {
    /// What is signed; 0: of the question itself.
    fn signed(&self, word: u8) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(word);
        bytes.extend(self.round.0.to_be_bytes());
        bytes.extend(self.number);
        bytes.extend(self.of.0.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(of: &str) -> Question {
        Question { of: NodeId(of.into()), round: Round(7), number: [5; NUMBER] }
    }

    fn key(token: &str) -> Key {
        Key::new(Some(&Token::new(token).unwrap()))
    }

    #[test]
    fn a_question_and_its_answer_come_through() {
        for key in [key("s3cret"), Key::new(None)] {
            let question = question("a");
            let bytes: [u8; QUESTION] = key.ask(&question).try_into().unwrap();
            assert_eq!(key.asked(&question.of, &bytes).unwrap(), question);
            for answer in [Answer::Lost, Answer::Hears, Answer::MovedOn] {
                let bytes: [u8; ANSWER] = key.answer(&question, answer).try_into().unwrap();
                assert_eq!(key.answered(&question, &bytes), Some(answer));
            }
        }
    }

    #[test]
    fn nothing_else_is_one() {
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
        let bytes: [u8; ANSWER] = key.answer(&question, Answer::Hears).try_into().unwrap();
        assert!(other.answered(&question, &bytes).is_none());
        for at in 0..ANSWER {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            assert!(key.answered(&question, &wrong).is_none(), "byte {at}");
        }
        let later = Question { number: [6; NUMBER], ..question };
        assert!(key.answered(&later, &bytes).is_none(), "of an older question");
    }
}
