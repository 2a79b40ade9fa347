"""Tensors into a slot and back: every kind of them. With torch."""

import collections
import gc
import os
import threading
import unittest

from support import ClientTest, bytes_of, needs_torch, same, torch

from dlrover_run.flash_checkpoint import DdpCheckpointer, StorageType, saver as saver_module

MEMORY = StorageType.MEMORY


def every_kind():
    """A state with tensors of all kinds that come back as they were."""
    torch.manual_seed(0)
    flat = torch.randn(50000)
    complex_numbers = torch.randn(64, 64, dtype=torch.complex64)
    state = {
        "zero dimensions": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "parts of one": [flat[:100], flat[100:200]],
        "channels last": torch.randn(8, 3, 40, 40).to(memory_format=torch.channels_last),
        "transposed": torch.randn(300, 100).t(),
        "with gaps": torch.randn(1000, 100)[:, ::3],
        "expanded": torch.randn(1).expand(1000, 1000),
        "complex": complex_numbers,
        "conjugated": complex_numbers.conj(),
        "negated": complex_numbers.conj().imag,
        "large": torch.randn(5 << 20),
        "one element of many": torch.randn(1 << 20)[77],
        "in odd leaves": {("a", "tuple"): torch.ones(3), "x": {frozenset([1]): [torch.zeros(2)]}},
        "ordered": collections.OrderedDict(a=torch.ones(1)),
        "shape": torch.Size([1, 2]),
        "type": torch.float16,
        "device": torch.device("cpu"),
    }
    for name in (
        "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 bool complex64 complex128 uint16 uint32 "
        "uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
    ).split():
        if hasattr(torch, name):
            state[name] = torch.randn(7).abs().to(getattr(torch, name))
            state["empty " + name] = torch.empty(0, dtype=getattr(torch, name))
    return state


@needs_torch
class Kinds(ClientTest):
    def saved_and_loaded(self, state):
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        self.assertTrue(checkpointer.save_checkpoint(1, state, storage_type=MEMORY))
        return checkpointer.load_checkpoint()

    def test_every_kind_comes_back(self):
        self.saver()
        state = every_kind()
        loaded = self.saved_and_loaded(state)
        same(state, loaded)
        for name in ("channels last", "transposed", "expanded"):
            self.assertEqual(state[name].stride(), loaded[name].stride(), name)
        self.assertTrue(loaded["with gaps"].is_contiguous())

    def test_a_state_dict_keeps_its_versions(self):
        self.saver()
        state = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).state_dict()
        loaded = self.saved_and_loaded({"model": state})["model"]
        same(state, loaded)
        self.assertEqual(state._metadata, loaded._metadata)
        self.assertEqual(loaded._metadata["1"], {"version": 2})

    def test_subclasses_and_other_layouts_are_pickled(self):
        self.saver()
        loaded = self.saved_and_loaded(
            {
                "sparse": torch.eye(3).to_sparse(),
                "quantized": torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8),
                "meta": torch.empty(3, device="meta"),
                "parameter": torch.nn.Parameter(torch.ones(2)),
            }
        )
        self.assertTrue(torch.equal(loaded["sparse"].to_dense(), torch.eye(3)))
        self.assertEqual((loaded["quantized"].dtype, loaded["meta"].shape), (torch.qint8, (3,)))
        self.assertTrue(torch.equal(loaded["parameter"], torch.ones(2)))

    def test_what_shares_memory_is_saved_once_and_shares_it_again(self):
        saver = self.reference()
        tied = torch.randn(1000, 100)
        state = {
            "one": tied,
            "other": tied.detach(),
            "rows": tied[10:20],
            "transposed": tied.t(),
            "apart": tied.clone(),
        }
        loaded = self.saved_and_loaded(state)
        same(state, loaded)
        loaded["one"][10, 0] = 7
        self.assertEqual((loaded["other"][10, 0], loaded["rows"][0, 0], loaded["transposed"][0, 10]), (7, 7, 7))
        self.assertNotEqual(loaded["apart"][10, 0], 7)
        slot = saver.shards[(self.folder, 0)].newest()
        self.assertLess(slot.size, 3 * tied.nbytes)

    def test_parts_of_a_large_tensor_that_is_not_saved_do_not_bring_it(self):
        saver = self.reference()
        whole = torch.randn(1 << 20)
        same({"a": whole[:10], "b": whole[-10:]}, self.saved_and_loaded({"a": whole[:10], "b": whole[-10:]}))
        self.assertLess(saver.shards[(self.folder, 0)].newest().size, whole.nbytes)

    def test_memory_of_others_may_be_in_several_storages(self):
        self.saver()
        memory = bytearray(range(256)) * 400
        state = {
            # The same address; one within the other; and views of both, which share.
            "first": torch.frombuffer(memory, dtype=torch.uint8, count=1000),
            "all": torch.frombuffer(memory, dtype=torch.uint8),
            "middle": torch.frombuffer(memory, dtype=torch.uint8, offset=500, count=90000),
        }
        state["view of first"], state["view of all"] = state["first"][10:], state["all"][300:]
        loaded = self.saved_and_loaded(state)
        same(state, loaded)
        loaded["all"][300] = 7
        self.assertEqual(loaded["view of all"][0], 7)

    def test_sharing_that_ends_is_noticed(self):
        self.saver()
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        one = torch.zeros(1000)
        checkpointer.save_checkpoint(1, {"a": one, "b": one}, storage_type=MEMORY)
        other = torch.ones(1000)
        checkpointer.save_checkpoint(2, {"a": one, "b": other}, storage_type=MEMORY)
        same({"a": one, "b": other}, checkpointer.load_checkpoint())

    def test_layouts_that_change_are_noticed(self):
        self.saver()
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        states = [
            {"a": torch.ones(10)},
            {"a": torch.ones(11)},
            {"a": torch.ones(11, dtype=torch.float64)},
            {"b": torch.ones(11, dtype=torch.float64)},
            {"b": torch.ones(2, 3).t()},
            {"b": torch.ones(2, 3)},
            {"b": torch.ones(3), "c": torch.ones(3)},
            {"b": {"c": torch.ones(3)}, "c": 5},
            {},
        ]
        for step, state in enumerate(states):
            self.assertTrue(checkpointer.save_checkpoint(step, state, storage_type=MEMORY))
            same(state, checkpointer.load_checkpoint() or {})

    def test_a_tensor_without_memory_is_an_error(self):
        self.reference()
        tensor = torch.ones(10)
        tensor.untyped_storage().resize_(0)
        checkpointer = DdpCheckpointer(self.folder)
        result = checkpointer.save_checkpoint(1, {"a": tensor}, storage_type=MEMORY)
        self.assertFalse(result)
        self.assertIn("of shape (10,) has no memory, so", result.error)
        self.assertEqual(checkpointer.load_checkpoint(), {})
        self.assertTrue(checkpointer.save_checkpoint(2, {"a": torch.ones(10)}, storage_type=MEMORY))

    def test_several_threads_copy_what_one_does(self):
        self.saver()
        from dlrover_run.flash_checkpoint import copying

        original = copying._threads, copying._LEAST_BYTES
        self.addCleanup(lambda: (setattr(copying, "_threads", original[0])))
        state = {str(i): torch.randn(1 << 18) for i in range(20)}
        state["large"] = torch.randn(10 << 20)
        state["tiny"] = [torch.randn(3) for _ in range(100)]
        for threads in (1, 2, 3, 4):
            copying._threads = lambda size: threads
            same(state, self.saved_and_loaded(state))

    def test_saves_in_inference_mode_and_outside_of_it(self):
        self.saver()
        from dlrover_run.flash_checkpoint import copying

        self.addCleanup(setattr, copying, "_threads", copying._threads)
        for threads in (1, 3):
            copying._threads = lambda size: threads
            checkpointer = DdpCheckpointer(os.path.join(self.folder, str(threads)))
            for step, is_inference in enumerate([True, False, True, False, False, True]):
                with torch.inference_mode(is_inference):
                    state = {str(number): torch.randn(1 << 10) for number in range(10)}
                    result = checkpointer.save_checkpoint(step, state, storage_type=MEMORY)
                    self.assertTrue(result, result.error)
                    same(state, checkpointer.load_checkpoint())


@needs_torch
class Restores(ClientTest):
    def test_training_does_not_change_the_slot_and_saves_do_not_change_the_tensors(self):
        saver = self.reference()
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        first = {"large": torch.randn(1 << 18), "small": torch.randn(5)}
        checkpointer.save_checkpoint(1, first, storage_type=MEMORY)
        held = checkpointer.load_checkpoint()
        held["large"][:100] = 7.0
        held["small"].add_(1)
        same(first, DdpCheckpointer(self.folder).load_checkpoint())
        expected = held["large"].clone()
        other = {"large": torch.zeros(1 << 18), "small": torch.zeros(5)}
        for step in range(2, 12):
            checkpointer.save_checkpoint(step, other, storage_type=MEMORY)
            self.assertTrue(torch.equal(held["large"], expected), step)
        # By a thread of the client, which may be later than ten saves.
        self.assertEventually(lambda: any(request["type"] == "loaded_done" for request in saver.requests))

    def test_a_slot_that_must_be_taken_is_left_in_peace_first(self):
        # One slot that is newest, one that is read from: the next save gets the latter.
        self.reference(slots=2)
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        checkpointer._saver.detach = lambda: None
        first = {"large": torch.randn(1 << 18)}
        checkpointer.save_checkpoint(1, first, storage_type=MEMORY)
        held = checkpointer.load_checkpoint()
        for step in (2, 3):
            checkpointer.save_checkpoint(step, {"large": torch.full((1 << 18,), float(step))}, storage_type=MEMORY)
        same(first, held)
        same(3.0, DdpCheckpointer(self.folder).load_checkpoint()["large"][0].item())

    def test_another_object_of_the_process_leaves_it_in_peace_too(self):
        self.reference(slots=2)
        loader, writer = (DdpCheckpointer(self.folder, on_error="raise") for _ in range(2))
        writer._saver.detach = lambda: None
        first = {"large": torch.randn(1 << 18)}
        writer.save_checkpoint(1, first, storage_type=MEMORY)
        held = loader.load_checkpoint()
        for step in (2, 3, 4):
            writer.save_checkpoint(step, {"large": torch.full((1 << 18,), float(step))}, storage_type=MEMORY)
        same(first, held)

    def test_a_slot_that_was_loaded_twice_is_released_with_the_last_one(self):
        saver = self.reference()
        one, other = (DdpCheckpointer(self.folder, on_error="raise") for _ in range(2))
        one._saver.detach = other._saver.detach = lambda: None
        first = {"large": torch.randn(1 << 18)}
        other.save_checkpoint(1, first, storage_type=MEMORY)
        slot = saver.shards[(self.folder, 0)].newest()
        held = one.load_checkpoint()
        for loader in (one, other, DdpCheckpointer(self.folder)):
            # It goes at once.
            same(first, loader.load_checkpoint())
        del loader
        gc.collect()
        for step in range(2, 8):
            one.save_checkpoint(step, {"large": torch.full((1 << 18,), float(step))}, storage_type=MEMORY)
            self.assertEqual(len(slot.readers), 1)
            same(first, held)
        del held
        gc.collect()
        self.assertEventually(lambda: slot.readers == set())

    def test_tensors_are_copied_where_the_kernel_cannot_populate(self):
        from dlrover_run.flash_checkpoint.mapping import Mapping

        saver = self.reference()
        # As before Linux 5.14.
        original, Mapping.populate = Mapping.populate, lambda *_: False
        self.addCleanup(setattr, Mapping, "populate", original)
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        base = torch.randn(1 << 18)
        # Also what shares memory.
        first = {"large": torch.randn(1 << 18), "base": base, "part": base[100000:]}
        checkpointer.save_checkpoint(1, first, storage_type=MEMORY)
        held = checkpointer.load_checkpoint()
        slot = saver.shards[(self.folder, 0)].newest()
        # Nothing of the slot is used any more.
        self.assertEqual(slot.readers, set())
        os.pwrite(slot.descriptor, bytes(slot.size), 0)
        same(first, held)
        held["base"][100000] = 7.0
        self.assertEqual(held["part"][0].item(), 7.0)

    def test_pages_are_written_where_the_kernel_fails_to_populate_later(self):
        from dlrover_run.flash_checkpoint.mapping import Mapping

        self.reference(slots=2)
        original = Mapping.populate
        # The page of the header only, which is tried first.
        Mapping.populate = lambda self, start, length: start == 0 and original(self, start, length)
        self.addCleanup(setattr, Mapping, "populate", original)
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        # Its last page is not full.
        first = {"large": torch.randn(100001)}
        checkpointer.save_checkpoint(1, first, storage_type=MEMORY)
        held = checkpointer.load_checkpoint()
        for step in range(2, 6):
            checkpointer.save_checkpoint(step, {"large": torch.full((100001,), float(step))}, storage_type=MEMORY)
            same(first, held)

    def test_memory_goes_with_the_last_tensor(self):
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        self.reference()
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        size = 64 << 20
        checkpointer.save_checkpoint(1, {"large": torch.zeros(size // 4)}, storage_type=MEMORY)
        held = checkpointer.load_checkpoint()
        held["large"].fill_(1)
        before = resident()
        del held
        gc.collect()
        self.assertLess(resident(), before - size // 2)

    def test_tensors_that_are_gone_release_the_slot(self):
        saver = self.reference()
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        checkpointer.save_checkpoint(1, {"large": torch.randn(1 << 18)}, storage_type=MEMORY)
        held = checkpointer.load_checkpoint()
        self.assertEqual(len(saver.shards[(self.folder, 0)].newest().readers), 1)
        view = held["large"][5:6]
        del held
        gc.collect()
        checkpointer._saver.detach = lambda: None
        checkpointer.save_checkpoint(2, {"large": torch.randn(1 << 18)}, storage_type=MEMORY)
        self.assertEqual([r for r in saver.requests if r["type"] == "loaded_done"], [])
        del view
        gc.collect()
        # Without a call: there may be none.
        self.assertEventually(lambda: [r for r in saver.requests if r["type"] == "loaded_done"])
        checkpointer.save_checkpoint(3, {"large": torch.randn(1 << 18)}, storage_type=MEMORY)
        self.assertEqual(len([r for r in saver.requests if r["type"] == "loaded_done"]), 1)

    def test_small_tensors_do_not_hold_the_slot(self):
        saver = self.reference()
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        checkpointer.save_checkpoint(1, {"small": torch.randn(5)}, storage_type=MEMORY)
        held = checkpointer.load_checkpoint()
        self.assertEqual(saver.requests[-1]["type"], "loaded_done")
        del held

    def test_a_rank_that_only_reads_gives_the_slot_back_when_training_is_under_way(self):
        saver = self.reference()
        state = {"large": torch.randn(1 << 18)}
        DdpCheckpointer(self.folder).save_checkpoint(1, state, storage_type=MEMORY)
        os.environ.update(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
        reader = DdpCheckpointer(self.folder)
        held = reader.load_checkpoint()
        slot = saver.shards[(self.folder, 0)].newest()
        self.assertEqual(len(slot.readers), 1)
        self.assertTrue(reader.save_checkpoint(2, {}))
        self.assertEventually(lambda: slot.readers == set())
        os.pwrite(slot.descriptor, bytes(slot.size), 0)
        same(state, held)

    def test_a_rank_that_only_reads_and_never_saves_gives_the_slot_back(self):
        saver = self.reference()
        self.addCleanup(setattr, saver_module, "_READER_PAUSE", saver_module._READER_PAUSE)
        saver_module._READER_PAUSE = 0.01
        state = {"large": torch.randn(1 << 18)}
        DdpCheckpointer(self.folder).save_checkpoint(1, state, storage_type=MEMORY)
        os.environ.update(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
        held = DdpCheckpointer(self.folder).load_checkpoint()
        slot = saver.shards[(self.folder, 0)].newest()
        self.assertEventually(lambda: [r for r in saver.requests if r["type"] == "loaded_done"])
        self.assertEventually(lambda: slot.readers == set())
        os.pwrite(slot.descriptor, bytes(slot.size), 0)
        same(state, held)

    def test_a_slot_that_cannot_be_released_now_is_released_later(self):
        saver = self.reference()
        self.addCleanup(setattr, saver_module, "_RELEASE_PAUSE", saver_module._RELEASE_PAUSE)
        saver_module._RELEASE_PAUSE = 0.01
        checkpointer = DdpCheckpointer(self.folder, save_timeout=0.2)
        checkpointer.save_checkpoint(1, {"large": torch.randn(1 << 18)})
        held = checkpointer.load_checkpoint()
        saver.faults["wait"] = "hang"
        waiter = threading.Thread(target=checkpointer.wait_latest_checkpoint)
        waiter.start()
        self.assertEventually(lambda: not saver.faults)
        # The connection is taken for as long as the other thread waits, which is longer than the time for a release.
        del held
        gc.collect()
        tried = []
        original = saver_module.Saver._release
        self.addCleanup(setattr, saver_module.Saver, "_release", original)
        saver_module.Saver._release = lambda *each: (tried.append(each), original(*each))
        self.assertEventually(lambda: len(tried) > 1)
        slot = saver.shards[(self.folder, 0)].newest()
        self.assertEqual(len(slot.readers), 1)
        saver.release()
        waiter.join()
        self.assertEventually(lambda: slot.readers == set())

    def test_a_forked_child_has_the_state_as_it_was(self):
        saver = self.reference(slots=2)
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        first = {"large": torch.randn(1 << 18)}
        checkpointer.save_checkpoint(1, first, storage_type=MEMORY)
        held = checkpointer.load_checkpoint()
        slot = saver.shards[(self.folder, 0)].newest()
        expected = bytes_of(first["large"])
        child_may_look, look = os.pipe()
        # As a worker of a data loader, which has what its data set holds.
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.read(child_may_look, 1)
                # Threads of torch are not here.
                code = 0 if held["large"].numpy().tobytes() == expected else 2
            finally:
                os._exit(code)
        os.pwrite(slot.descriptor, bytes(slot.size), 0)
        os.write(look, b"x")
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        same(first, held)
        for descriptor in (child_may_look, look):
            os.close(descriptor)

    def test_restored_tensors_may_be_saved_again(self):
        self.saver()
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        state = {"a": torch.randn(1 << 18), "b": [torch.randn(1 << 17), torch.randn(3)]}
        checkpointer.save_checkpoint(1, state, storage_type=MEMORY)
        held = checkpointer.load_checkpoint()
        for step in range(2, 9):
            checkpointer.save_checkpoint(step, held, storage_type=MEMORY)
            same(state, checkpointer.load_checkpoint())

    def test_an_optimizer_that_goes_on_leaves_the_saved_step_alone(self):
        self.saver()
        model = torch.nn.Linear(300, 300)
        optimizer = torch.optim.AdamW(model.parameters())

        def train(count):
            for _ in range(count):
                optimizer.zero_grad()
                model(torch.randn(4, 300)).square().mean().backward()
                optimizer.step()

        def state():
            return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

        train(2)
        checkpointer = DdpCheckpointer(self.folder, on_error="raise")
        checkpointer.save_checkpoint(2, state(), storage_type=MEMORY)
        before = {name: bytes_of(tensor) for name, tensor in _tensors(state())}
        loaded = checkpointer.load_checkpoint()
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        train(3)
        again = checkpointer.load_checkpoint()
        self.assertEqual(before, {name: bytes_of(tensor) for name, tensor in _tensors(again)})


@needs_torch
class Accelerators(ClientTest):
    """The registration with CUDA, against a runtime that is none."""

    class Runtime:
        def __init__(self, fail_at=None):
            self.fail_at, self.calls, self.undone = fail_at, [], []

        def cudaHostRegister(self, address, size, flags):
            self.calls.append((address, size))
            return 2 if len(self.calls) == self.fail_at else 0

        def cudaHostUnregister(self, address):
            self.undone.append(address)

    class Memory:
        address, size = 4096, 200 << 30

        def __init__(self):
            self.before_unmap = []

    def test_all_or_nothing_is_pinned(self):
        from dlrover_run.flash_checkpoint import accelerator

        memory, runtime = self.Memory(), self.Runtime()
        self.assertTrue(accelerator.pin(memory, runtime))
        self.assertEqual(sum(size for _, size in runtime.calls), memory.size)
        self.assertTrue(all(size < 512 << 30 for _, size in runtime.calls))
        memory.before_unmap[0]()
        self.assertEqual(sorted(runtime.undone), sorted(address for address, _ in runtime.calls))
        memory, runtime = self.Memory(), self.Runtime(fail_at=3)
        self.assertFalse(accelerator.pin(memory, runtime))
        self.assertEqual((len(runtime.undone), memory.before_unmap), (2, []))
        self.assertSaid("cannot be pinned (CUDA error 2)")

    def test_without_a_gpu_nothing_happens(self):
        from dlrover_run.flash_checkpoint import accelerator

        self.assertIsNone(accelerator.device_of([torch.ones(1)]))
        if not torch.cuda.is_available():
            done = []
            thread = threading.Thread(target=lambda: done.append(accelerator.register(self.Memory(), 0)))
            thread.start()
            thread.join()
            self.assertEqual(done, [False])


def _tensors(state, path=""):
    if isinstance(state, dict):
        for key, value in state.items():
            yield from _tensors(value, "%s.%s" % (path, key))
    elif isinstance(state, list):
        for index, value in enumerate(state):
            yield from _tensors(value, "%s.%d" % (path, index))
    elif isinstance(state, torch.Tensor):
        yield path, state


if __name__ == "__main__":
    unittest.main()
