"""`.pt` files for training without torch: states of numbers, texts, bytes and what pickle knows. torch.load reads them."""

import pickle
import zipfile

# What torch.save puts beside the pickle.
_OTHER_RECORDS = (("archive/byteorder", b"little"), ("archive/version", b"3\n"))


class NeedsTorch(ValueError):
    """The file has tensors, and this Python has no torch."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module == "torch" or module.startswith("torch."):
            raise NeedsTorch("it has tensors, and torch cannot be imported here")
        return super().find_class(module, name)


def write(state, file):
    """Writes `state` as torch.save would: to a path or an open file."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("archive/data.pkl", "w", force_zip64=True) as record:
            # The protocol of torch.save.
            pickle.dump(state, record, protocol=2)
        for name, content in _OTHER_RECORDS:
            archive.writestr(name, content)


def read(path):
    """The state of a file. Raises NeedsTorch when it has tensors, and what zipfile and pickle raise.

    Checkpoints are trusted as the training script is.
    """
    with zipfile.ZipFile(path) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1:
            raise ValueError("it has %d records data.pkl; expected one" % len(pickles))
        with archive.open(pickles[0]) as record:
            return _Unpickler(record).load()
