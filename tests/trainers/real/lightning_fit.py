"""Lightning under the environment of torchrun, resumed from its own checkpoint."""
import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from common import die_once, say


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        die_once(self.current_epoch, 2)
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main():
    lightning.seed_everything(4)
    model = Model()
    folder = os.path.join(os.environ["PROBE_OUT"], "lightning")
    saved = lightning.pytorch.callbacks.ModelCheckpoint(folder, save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=4, logger=False, enable_progress_bar=False,
        callbacks=[saved], enable_model_summary=False,
    )
    points = TensorDataset(torch.randn(32, 8, generator=torch.Generator().manual_seed(5)))
    last = os.path.join(folder, "last.ckpt")
    trainer.fit(model, DataLoader(points, 4), ckpt_path=last if os.path.exists(last) else None)
    say("lightning", *model.parameters())


if __name__ == "__main__":
    main()
