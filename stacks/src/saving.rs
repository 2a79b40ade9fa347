//! Whether a rank writes a checkpoint: a long write is no hang.

use crate::model::{RankDump, main_thread};

/// Functions that write a checkpoint, with the ends of their files' paths.
const SAVING: [(&str, &str); 7] = [
    ("save", "torch/serialization.py"),
    ("_save", "torch/serialization.py"),
    ("save", "torch/distributed/checkpoint/state_dict_saver.py"),
    ("_save_state_dict", "torch/distributed/checkpoint/state_dict_saver.py"),
    ("save_file", "safetensors/torch.py"),
    ("save_checkpoint", "deepspeed/runtime/engine.py"),
    ("save_checkpoint", "megatron/training/checkpointing.py"),
];

/// Returns whether the main thread of the rank is inside of a function that writes a checkpoint.
#[must_use]
pub fn is_saving(dump: &RankDump) -> bool {
    let Some(main) = main_thread(&dump.python) else { return false };
    main.frames.iter().any(|frame| {
        SAVING.iter().any(|(function, file)| frame.function == *function && frame.file.ends_with(file))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Frame, Thread};

    fn dump(thread: &str, function: &str, file: &str) -> RankDump {
        let frame = Frame { function: function.to_owned(), file: file.to_owned(), line: Some(7) };
        let main = Frame { function: "<module>".to_owned(), file: "train.py".to_owned(), line: None };
        let thread = Thread { name: thread.to_owned(), frames: vec![frame, main] };
        RankDump { python: vec![thread], ..RankDump::new(0, 2) }
    }

    #[test]
    fn a_rank_saves_when_its_main_thread_is_inside_of_a_save() {
        let torch = "/venv/lib/python3.11/site-packages/torch/serialization.py";
        assert!(is_saving(&dump("MainThread", "_save", torch)));
        assert!(!is_saving(&dump("MainThread", "load", torch)));
        assert!(!is_saving(&dump("MainThread", "save", "/work/model.py")), "a function of the user's own");
        assert!(!is_saving(&RankDump::new(0, 2)));
        let mut other = dump("MainThread", "step", "/work/train.py");
        other.python.insert(0, dump("writer", "save", torch).python.remove(0));
        assert!(!is_saving(&other), "training continues beside a thread that saves");
    }
}
