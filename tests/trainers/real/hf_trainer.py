"""A transformers Trainer on a small random model, resumed from its own checkpoint."""
import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from common import die_once, say


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        words = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


class Death(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        die_once(state.global_step, 6)


def main():
    set_seed(3)
    folder = os.path.join(os.environ["PROBE_OUT"], "hf")
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        folder, max_steps=8, save_steps=4, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        disable_tqdm=True, logging_steps=100, seed=3, dataloader_num_workers=1,
    )
    trainer = Trainer(model, arguments, train_dataset=Words(), callbacks=[Death()])
    trainer.train(resume_from_checkpoint=os.path.isdir(os.path.join(folder, "checkpoint-4")))
    say("hf_trainer", *model.parameters())
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
