"""Makes scripts for DLRover run without DLRover: `dlrover.trainer.torch.flash_checkpoint` is then this package's.

    import dlrover_run.shim            # at the beginning of a script, before it imports dlrover
    python3 -m dlrover_run.shim train.py ...

Processes that multiprocessing starts by `spawn` or `forkserver` (the latter is the default since Python 3.14), as a
DataLoader's workers, read the script again: for them it needs the line at its beginning.

Modules of an installed DLRover are never replaced: then nothing of it is used.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types

# Packages, and the modules whose names are ours.
_PACKAGES = (
    "dlrover",
    "dlrover.python",
    "dlrover.python.common",
    "dlrover.trainer",
    "dlrover.trainer.torch",
    "dlrover.trainer.torch.flash_checkpoint",
)
_MODULES = {
    "dlrover.python.common.storage": "strategies",
    "dlrover.trainer.torch.flash_checkpoint.checkpointer": "checkpointer",
    "dlrover.trainer.torch.flash_checkpoint.ddp": "ddp",
    "dlrover.trainer.torch.flash_checkpoint.deepspeed": "deepspeed",
    "dlrover.trainer.torch.flash_checkpoint.fsdp": "fsdp",
    "dlrover.trainer.torch.flash_checkpoint.hf_trainer": "hf_trainer",
    "dlrover.trainer.torch.flash_checkpoint.megatron": "megatron",
    "dlrover.trainer.torch.flash_checkpoint.megatron_dist_ckpt": "megatron_dist_ckpt",
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last, for what no installed package has."""

    def find_spec(self, name, path=None, target=None):
        if name not in _PACKAGES and name not in _MODULES:
            return None
        if name != "dlrover" and not hasattr(sys.modules.get("dlrover"), "__dlrover_run_shim__"):
            # A part that an installed DLRover does not have.
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=name in _PACKAGES)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__dlrover_run_shim__ = True
        return module

    def exec_module(self, module):
        ours = _MODULES.get(module.__name__)
        if ours is None:
            # A package: its modules are found by this finder.
            module.__path__ = []
            return
        found = importlib.import_module("dlrover_run.flash_checkpoint." + ours)
        module.__doc__ = found.__doc__
        for name in getattr(found, "__all__", ()):
            setattr(module, name, getattr(found, name))


def install():
    """Makes the names importable. Once is enough."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


install()
