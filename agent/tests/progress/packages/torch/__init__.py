# Stands in for torch where there is none: as much as the prelude meets, with the semantics of torch 2.
import os

if os.environ.get("TORCH_IS_BROKEN") == "before":
    raise RuntimeError("libtorch.so is missing")

from torch import optim as optim

if os.environ.get("TORCH_IS_BROKEN") == "after":
    raise RuntimeError("libtorch.so is missing")
