"""transformers.Trainer: hf.py FOLDER STEPS [die] [best]. Prints where it began and a checksum."""

import hashlib
import os
import signal
import sys
import warnings

import torch
from transformers import TrainerCallback, TrainingArguments

from dlrover_run.flash_checkpoint.hf_trainer import FlashCkptTrainer

warnings.simplefilter("ignore")
folder, steps = sys.argv[1], int(sys.argv[2])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Linear(64, 1))

    def forward(self, x, labels):
        return {"loss": (self.layers(x).squeeze(-1) - labels).square().mean()}


class Die(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if "die" in sys.argv and state.global_step == steps:
            os.kill(os.getpid(), signal.SIGKILL)


def checksum(trainer):
    total = hashlib.sha256()
    for tensor in trainer.accelerator.unwrap_model(trainer.model).state_dict().values():
        total.update(tensor.cpu().numpy().tobytes())
    return total.hexdigest()[:16]


torch.manual_seed(1)
data = [{"x": torch.randn(16), "labels": torch.randn(())} for _ in range(400)]
arguments = TrainingArguments(
    output_dir=folder,
    max_steps=steps + ("die" in sys.argv),
    save_steps=5,
    per_device_train_batch_size=4,
    use_cpu=True,
    save_total_limit=2,
    logging_steps=1000,
    report_to=[],
    disable_tqdm=True,
    save_strategy="steps",
    # With others, the number of steps changes the rate.
    lr_scheduler_type="constant",
    **dict(load_best_model_at_end=True, eval_strategy="steps", eval_steps=5) if "best" in sys.argv else {},
)
trainer = FlashCkptTrainer(model=Model(), args=arguments, train_dataset=data, eval_dataset=data, callbacks=[Die()])
found = trainer.get_last_checkpoint()
print("found", found and os.path.basename(found), trainer.flash_checkpointer.last_load.source, flush=True)
trainer.train(resume_from_checkpoint=found or None)
trainer.wait_latest_checkpoint()
print("trained", trainer.state.global_step, checksum(trainer), flush=True)
