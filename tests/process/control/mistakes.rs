//! Each mistake in `mistakes.txt` gets the answer that stands there: the object, the cause and the
//! next command. What the answer proposes works as it is printed.

use testkit::host;

use super::transcripts::Desk;

pub const TABLE: &str = include_str!("mistakes.txt");
/// So many were collected; none is lost.
const MISTAKES: usize = 63;

#[test]
fn each_mistake_is_answered_with_object_cause_and_next_command() {
    host::in_namespace(|| {
        let desk = Desk::new();
        let (wrong, count) = desk.replay(TABLE);
        assert!(wrong.is_empty(), "the answers are others than in mistakes.txt:\n{wrong}");
        assert!(count >= MISTAKES, "{count}");
        desk.stop();
    });
}
