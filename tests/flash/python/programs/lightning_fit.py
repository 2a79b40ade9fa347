"""Lightning: lightning_fit.py FOLDER STEPS. Prints where it began and a checksum."""

import hashlib
import logging
import sys
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from dlrover_run.flash_checkpoint.lightning import FlashCheckpointIO

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
folder, steps = sys.argv[1], int(sys.argv[2])


def checksum(model):
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()[:16]


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Linear(64, 1))

    def training_step(self, batch, index):
        return self.layers(batch[0]).square().mean()

    def on_train_start(self):
        print("began", self.trainer.global_step, checksum(self), flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


torch.manual_seed(1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(400, 16)), batch_size=4)
io = FlashCheckpointIO(folder)
callback = ModelCheckpoint(dirpath=folder, every_n_train_steps=5, save_top_k=2, monitor="step", mode="max")
trainer = Trainer(
    plugins=[io],
    callbacks=[callback],
    max_steps=steps,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Model()
path = io.resume_path()
print("found", io._checkpointer.last_load.source, io._checkpointer.last_load.step, flush=True)
trainer.fit(model, data, ckpt_path=path)
print("trained", trainer.global_step, checksum(model), flush=True)
